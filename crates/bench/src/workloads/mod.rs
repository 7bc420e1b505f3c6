//! The programs that are measured.
//!
//! To add a workload, add a file with a type that implements [`Workload`], and a line in [`all`].
//!
//! A real program is timed from start to end and recognised by the hash of its output: its
//! `prepare` writes what it reads and returns [`Prepared::whole`].
//!
//! A synthetic workload is this binary, started again as `ramfold-bench workload NAME` (`command`).
//! Its `prepare` returns [`Prepared::synthetic`] and its `run` is what the started process does: it
//! times its own phases and returns a [`ChildReport`] (`child`), which is printed as JSON.

mod child;
mod command;
mod fit;
mod gcc;
mod gnu_sort;
mod heap;
mod idle;
mod matrix;
mod media;
mod python_demo;
mod redis;

use std::path::PathBuf;

use anyhow::{Result, bail};

pub(crate) use child::{ChildReport, PhaseSeconds};
pub(crate) use command::{Options, positive};
pub(crate) use gnu_sort::write_text;
pub(crate) use heap::{Order, Picker};
pub(crate) use python_demo::{python, python_with_numpy};

use crate::harness::idle::Window;
use crate::harness::size::Memory;
use crate::machine::host::Host;
use crate::machine::program::Program;
use child::ChildOptions;

/// A program to measure.
pub(crate) trait Workload {
    fn name(&self) -> &'static str;

    /// One line for `--list`.
    fn about(&self) -> &'static str;

    /// The totals that it is given, one after the other, when the user asks for `asked`.
    fn memories(&self, asked: &[Memory]) -> Vec<Memory> {
        asked.to_vec()
    }

    /// Writes its input, and returns how to start it.
    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared>;

    /// For a synthetic workload: does the work, in the started process.
    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        bail!("there is no synthetic workload '{}'", options.name)
    }
}

/// Every workload, in the order of the results.
pub(crate) fn all() -> Vec<Box<dyn Workload>> {
    let mut all: Vec<Box<dyn Workload>> = Vec::new();
    all.extend(heap::all());
    all.push(Box::new(fit::Fit));
    all.push(Box::new(python_demo::PythonDemo));
    all.push(Box::new(gnu_sort::GnuSort));
    all.push(Box::new(gcc::Gcc));
    all.push(Box::new(redis::Redis));
    all.push(Box::new(media::Adpcm));
    all.push(Box::new(media::Jpeg));
    all.push(Box::new(media::Mpeg2));
    all.push(Box::new(matrix::Matrix));
    all.push(Box::new(idle::Idle));
    all.push(Box::new(idle::Prefork));
    all
}

/// Those with the given names, or all where no name is given.
pub(crate) fn select(names: &[String]) -> Result<Vec<Box<dyn Workload>>> {
    let mut all = all();
    if names.is_empty() {
        return Ok(all);
    }
    let mut selected = Vec::new();
    for name in names {
        match all.iter().position(|workload| workload.name() == name) {
            Some(index) => selected.push(all.remove(index)),
            None if selected.iter().any(|workload| workload.name() == name) => {}
            None => bail!("there is no workload '{name}' (ramfold-bench run --list names them)"),
        }
    }
    Ok(selected)
}

/// What the user chose for all workloads.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Heap of the synthetic workloads, in bytes; the input of the others is in proportion.
    pub(crate) size_bytes: u64,
    /// Factor on the number of accesses.
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    pub(crate) thread_count: usize,
    /// Time every single access.
    pub(crate) latency: bool,
    /// A file of raw pages to fill heaps with, instead of generated ones.
    pub(crate) pages: Option<PathBuf>,
    /// Script of python-demo.
    pub(crate) demo: Option<PathBuf>,
}

/// Which clock is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timing {
    /// The program's own, around its measured phase.
    Phase,
    /// The harness's, from start to end.
    Whole,
}

/// A workload that is ready to run, any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) program: Program,
    /// Whether it prints a [`ChildReport`].
    pub(crate) reports: bool,
    pub(crate) timing: Timing,
    /// For a program that sleeps until its standard input ends: when its processes are observed.
    pub(crate) idle: Option<Window>,
    /// Whether the kernel ends a run in which a peer does not hold its cap.
    pub(crate) ends_over_cap: bool,
}

impl Prepared {
    /// A real program.
    fn whole(program: Program) -> Self {
        Self { program, reports: false, timing: Timing::Whole, idle: None, ends_over_cap: true }
    }

    /// A synthetic workload that does `operations`, rounded up.
    fn synthetic(
        host: &Host,
        settings: &Settings,
        name: &str,
        operations: f64,
        timing: Timing,
    ) -> Self {
        let program = command::program(host, settings, name, (operations.ceil() as u64).max(1));
        Self { program, reports: true, timing, idle: None, ends_over_cap: true }
    }
}
