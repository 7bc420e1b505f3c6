//! `ramfold calibrate-workload`: what `ramfold advise` runs to see what faults cost on a machine.

use anyhow::Context;
use ramfold_advise::machine::workload::{self, Kind};

/// The name of the command, which nobody but `advise` calls.
pub(crate) const NAME: &str = "calibrate-workload";

/// Touch memory as the calibration of `ramfold advise` needs it.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How
    kind: Kind,
    /// How much memory
    bytes: usize,
}

/// # Errors
/// When there is not so much memory, or whoever started it is gone.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    workload::run(arguments.kind, arguments.bytes).context("running the calibration's workload")
}
