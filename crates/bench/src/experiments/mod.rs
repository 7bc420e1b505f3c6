//! What can be measured: one folder for each experiment, which is a subcommand of `ramfold-bench`.
//!
//! To add an experiment, add a folder and a line in `commands.rs`. The folder has
//! - `mod.rs`: the arguments, as a struct that implements [`Command`](crate::commands::Command),
//!   and what it does: it opens the machine ([`open_host`](crate::harness::open_host)), measures,
//!   prints;
//! - `measurement.rs`: runs what is measured, each in turn for several rounds;
//! - `report.rs`: rows of medians, as a table and, if there is one, as a plot. Where these are
//!   short they are in `mod.rs`.
//!
//! `memeater` is the shortest that needs the machine, `train` the shortest of all. Experiments
//! share code by the rooms below, and [`files`] by those on files; none uses another but for
//! `codec`'s subjects.

pub(crate) mod codec;
mod files;
pub(crate) mod memeater;
pub(crate) mod mount;
pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod train;
pub(crate) mod web;
