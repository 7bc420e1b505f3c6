//! Under `ramfold run`, with half of the memory: a minute's worth. `make test` builds `ramfold`
//! beside the torture program.
//!
//! RAMFOLD_TORTURE_SEEDS=FIRST..LAST runs other seeds, ten seconds each.

use std::path::Path;
use std::process::Command;

use crate::program::{End, PROGRAM, end};

fn under_ramfold(cap: &str, arguments: &str) -> End {
    let ramfold = Path::new(PROGRAM).with_file_name("ramfold");
    assert!(ramfold.exists(), "{} is missing: cargo build --release -p ramfold", ramfold.display());
    let doctor = Command::new(&ramfold).arg("doctor").output().expect("ramfold starts");
    if !doctor.status.success() {
        eprintln!("SKIPPED in part: ramfold cannot look after memory here (`ramfold doctor`)");
    }
    let mut command = Command::new(ramfold);
    command.args(["run", "--memory", cap, "--", PROGRAM, "--allow-split"]);
    command.args(arguments.split_ascii_whitespace());
    end(command).expect("ramfold starts")
}

#[test]
fn every_byte_is_right() {
    let seeds = match std::env::var("RAMFOLD_TORTURE_SEEDS") {
        Ok(text) => {
            let (first, last) = text.split_once("..").expect("FIRST..LAST");
            first.parse::<u64>().expect("a seed")..last.parse().expect("a seed")
        }
        Err(_) => 1..4,
    };
    for seed in seeds {
        under_ramfold("64M", &format!("--seconds 10 --seed {seed}")).passed();
    }
}

#[test]
fn every_byte_is_right_with_much_that_does_not_compress() {
    under_ramfold("64M", "--seconds 8 --seed 20 --incompressible 60").passed();
}

#[test]
fn every_byte_is_right_in_a_crowd() {
    under_ramfold("64M", "--seconds 8 --seed 21 --threads 12 --children 8").passed();
}

#[test]
fn every_byte_is_right_when_descriptors_are_closed() {
    under_ramfold("64M", "--seconds 8 --seed 22 --close-descriptors").passed();
}
