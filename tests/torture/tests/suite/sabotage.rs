//! What a checker says that never finds anything is worth nothing: here it must find damage.

use crate::program::{End, run};

/// Runs with one kind of damage, which must be noticed and described.
fn sabotaged(kind: &str) -> End {
    let end = run(&format!("--operations 400 --megabytes 16 --seed 11 --sabotage {kind}"));
    assert_eq!(end.status, Some(1), "{end:#?}");
    assert_eq!(end.out, "", "{end:#?}");
    assert!(end.err.contains("ramfold-torture: WRONG: "), "{end:#?}");
    assert!(end.err.contains("--seed 11 --threads 4 --megabytes 16"), "{end:#?}");
    end
}

/// As `sabotaged`, where it is a page of a region that is damaged.
fn sabotaged_page(kind: &str, found: &str) {
    let end = sabotaged(kind);
    for part in ["address 0x", "expected 0x", "found 0x", "last operations", found] {
        assert!(end.err.contains(part), "{part} is missing: {end:#?}");
    }
}

#[test]
fn one_flipped_bit_is_noticed() {
    sabotaged_page("flip", "  1 bytes differ");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_zeroed_page_is_noticed() {
    sabotaged_page("zero", "found:    zeros");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn an_old_page_is_noticed_and_recognised() {
    sabotaged_page("stale", "found:    another state of the page: pattern of region 0 page");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn exchanged_pages_are_noticed_and_recognised() {
    sabotaged_page("swap", "found:    what page ");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_flipped_bit_in_unwritten_memory_is_noticed() {
    sabotaged_page("fixed", "(never written)");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_lost_addition_is_noticed() {
    assert!(sabotaged("counter").err.contains("additions were completed"));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn damage_in_a_child_is_noticed() {
    assert!(sabotaged("child").err.contains(", a child of "));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn damage_to_shared_memory_is_noticed() {
    assert!(sabotaged("beside").err.contains("shared anonymous memory, page 1 byte 5"));
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn standstill_is_noticed() {
    let end = run("--operations 400 --megabytes 16 --seed 12 --hang-seconds 2 --sabotage hang");
    assert_eq!(end.status, Some(2), "{end:#?}");
    assert!(end.err.contains("HANG: no progress for 2 s"), "{end:#?}");
    for thread in 0..=4 {
        assert!(end.err.contains(&format!("  thread {thread} (tid ")), "{end:#?}");
    }
}
