//! What can be measured: one folder for each experiment, which is a subcommand of `ramfold-bench`.
//!
//! To add an experiment, add a folder and a line in [`ALL`]. The folder has
//! - `mod.rs`: the arguments, as a struct that implements [`Command`](crate::commands::Command),
//!   and what it does: it opens the machine ([`open_host`](crate::harness::open_host)), measures,
//!   prints;
//! - `measurement.rs`: runs what is measured, each in turn for several rounds;
//! - `report.rs`: rows of medians, as a table and, if there is one, as a plot. Where these are
//!   short they are in `mod.rs`.
//!
//! `memeater` is the shortest that needs the machine, `train` the shortest of all. Experiments
//! share code by the rooms below, and [`files`] by those on files; none uses another but for
//! `codec`'s subjects. Each declares all of its options itself, those too that others have: what
//! they say and what they are by default is the experiment's.

mod advise;
mod block;
mod codec;
mod curve;
mod files;
mod memeater;
mod mount;
mod run;
mod store;
mod train;
mod web;

use crate::commands::{Entry, entry};

/// Every experiment, in the order of the help, and what some start of themselves.
pub(crate) const ALL: &[Entry] = &[
    entry::<run::Options>(),
    entry::<advise::Options>(),
    entry::<curve::Options>(),
    entry::<codec::Options>(),
    entry::<memeater::Options>(),
    entry::<mount::Options>(),
    entry::<block::Options>(),
    entry::<store::Options>(),
    entry::<web::Options>(),
    entry::<train::Options>(),
    entry::<codec::CountOptions>(),
    entry::<memeater::EaterOptions>(),
    entry::<curve::TracedOptions>(),
];
