//! Under `ramfold run`, with half of the memory: a minute's worth. `make test-all` builds `ramfold`
//! beside the torture program.
//!
//! RAMFOLD_TORTURE_SEEDS=FIRST..LAST runs other seeds, four seconds each.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use crate::program::{End, PATIENCE, PROGRAM, end};

fn under_ramfold(options: &str, arguments: &str) -> End {
    let ramfold = Path::new(PROGRAM).with_file_name("ramfold");
    assert!(
        ramfold.exists(),
        "{} is missing: build ramfold with the same profile",
        ramfold.display()
    );
    let doctor = Command::new(&ramfold).arg("doctor").output().expect("ramfold starts");
    if !doctor.status.success() {
        eprintln!("SKIPPED in part: ramfold cannot look after memory here (`ramfold doctor`)");
    }
    let mut command = Command::new(ramfold);
    command.arg("run").args(options.split_ascii_whitespace());
    command.args(["--", PROGRAM, "--allow-split"]).args(PATIENCE);
    command.args(arguments.split_ascii_whitespace());
    end(command).expect("ramfold starts")
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    match std::env::var("RAMFOLD_TORTURE_SEEDS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("FIRST..LAST");
            first.parse::<u64>().expect("a seed")..last.parse().expect("a seed")
        }
        Err(_) => usual,
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right() {
    for seed in seeds(1..3) {
        under_ramfold("--memory 64M", &format!("--seconds 3 --seed {seed}")).passed();
    }
}

/// Everything is cold most of the time, with memory short and with room for all.
#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right_in_proactive_mode() {
    for seed in seeds(23..24) {
        for cap in ["64M", "2G"] {
            let options = format!("--memory {cap} --cold-after 50ms --slowdown 100%");
            under_ramfold(&options, &format!("--seconds 3 --seed {seed}")).passed();
        }
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right_with_much_that_does_not_compress() {
    under_ramfold("--memory 64M", "--seconds 3 --seed 20 --incompressible 60").passed();
}

/// Most of it on disk: what compresses badly, and what there is no room for.
#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right_with_a_spill_file() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let spill = format!("--memory 64M --spill {folder}:4G");
    for seed in seeds(24..25) {
        let arguments = format!("--seconds 3 --seed {seed} --incompressible 60");
        under_ramfold(&spill, &arguments).passed();
    }
    under_ramfold(&spill, "--seconds 3 --seed 26 --threads 12 --children 8").passed();
    // Hardly room for any of it.
    let small = format!("--memory 64M --spill {folder}:8M");
    under_ramfold(&small, "--seconds 3 --seed 27 --incompressible 60").passed();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right_in_a_crowd() {
    under_ramfold("--memory 64M", "--seconds 3 --seed 21 --threads 12 --children 8").passed();
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn every_byte_is_right_when_descriptors_are_closed() {
    under_ramfold("--memory 64M", "--seconds 3 --seed 22 --close-descriptors").passed();
}
