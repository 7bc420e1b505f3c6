//! All operations together.

use crate::program::{run, run_unprivileged};

#[test]
#[ignore = "slow: make test-all runs it"]
fn passes_on_several_seeds() {
    for seed in 1..=3 {
        let line = format!("--seconds 3 --megabytes 64 --seed {seed}");
        let end = run(&line);
        assert!(end.passed().contains(&format!("seed {seed}, hash ")), "{end:#?}");
        assert!(end.err.contains(&format!("seed {seed}, 4 threads, 64 MiB")), "{end:#?}");
    }
}

#[test]
fn passes_without_privileges() {
    if let Some(end) = run_unprivileged("--seconds 3 --megabytes 32 --seed 4") {
        end.passed();
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn passes_alone_and_crowded() {
    run("--seconds 2 --megabytes 16 --threads 1 --children 1 --seed 5").passed();
    run("--seconds 2 --megabytes 48 --threads 12 --children 8 --seed 6").passed();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn passes_with_incompressible_memory() {
    run("--seconds 2 --megabytes 32 --incompressible 100 --seed 7").passed();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn passes_when_descriptors_are_closed() {
    run("--seconds 2 --megabytes 32 --close-descriptors --seed 8").passed();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn counted_operations_give_the_same_line_each_time() {
    let arguments = "--operations 500 --megabytes 32 --seed 9";
    let first = run(arguments);
    let line = first.passed();
    assert!(line.starts_with("ramfold-torture: ok, 500 operations, seed 9, hash "), "{line}");
    assert_eq!(run(arguments).passed(), line);
    assert_ne!(run("--operations 500 --megabytes 32 --seed 10").passed(), line);
}
