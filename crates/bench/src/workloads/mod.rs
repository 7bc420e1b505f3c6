//! The programs that are measured.
//!
//! Synthetic ones are this binary started anew (`ramfold-bench workload NAME`),
//! time their own phases and print a [`ChildReport`]; real ones are timed from
//! start to end and known by the hash of their output.

mod fit;
mod gcc;
mod gnu_sort;
mod heap;
mod idle;
mod matrix;
mod media;
mod python_demo;
mod redis;
mod synthetic;

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::host::Host;
use crate::idle::Window;
use crate::latency::{Bucket, Latency};
use crate::measure::Program;
use crate::size::Memory;

pub use heap::Pattern;
pub use synthetic::{ChildOptions, Quota, child};

/// What the person chose for all workloads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Heap of the synthetic workloads, in bytes; the text of gnu-sort follows it.
    pub size_bytes: u64,
    /// Factor on the number of accesses.
    pub scale: f64,
    pub seed: u64,
    pub thread_count: usize,
    /// Time every single access.
    pub latency: bool,
    /// Raw pages to fill heaps with instead of generated ones.
    pub pages: Option<PathBuf>,
    /// Script of python-demo.
    pub demo: Option<PathBuf>,
}

/// Which clock makes the figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// The program's own, around its measured phase.
    Phase,
    /// The harness's, from start to end.
    Whole,
}

/// A workload ready to run, any number of times.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub program: Program,
    /// Whether it prints a [`ChildReport`].
    pub reports: bool,
    pub timing: Timing,
    /// For a program that sleeps until its standard input ends: when it is looked at.
    pub idle: Option<Window>,
    /// Whether the kernel ends a run in which a peer does not hold its cap.
    pub ends_over_cap: bool,
}

/// A program to measure.
pub trait Workload {
    fn name(&self) -> &'static str;

    /// One line for `--list`.
    fn about(&self) -> &'static str;

    /// The totals it is given, one after the other, when the person asks for `asked`.
    fn memories(&self, asked: &[Memory]) -> Vec<Memory> {
        asked.to_vec()
    }

    /// Makes its input and says how to start it.
    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared>;
}

/// Seconds of the phases of a synthetic workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    pub fill: f64,
    pub warm_up: f64,
    pub measured: f64,
    pub verify: f64,
}

/// What a synthetic workload prints as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildReport {
    pub workload: String,
    pub heap_bytes: u64,
    pub thread_count: usize,
    pub seed: u64,
    pub seconds: PhaseSeconds,
    /// Accesses in the measured phase, of all threads.
    pub access_count: u64,
    /// Wall time of the measured phase over the accesses of one thread.
    pub ns_per_access: f64,
    pub latency: Option<Latency>,
    /// All accesses by how long they took; empty where they were not timed.
    pub latency_histogram: Vec<Bucket>,
    /// Compressed size of a sample of the heap in percent, as LZ4 makes it.
    pub lz4_percent: Option<f64>,
    /// Of the final contents: equal for equal seeds, sizes and counts.
    pub hash: String,
}

/// Every workload, in the order of the table.
pub fn all() -> Vec<Box<dyn Workload>> {
    let mut all: Vec<Box<dyn Workload>> = Pattern::ALL
        .into_iter()
        .map(|pattern| Box::new(synthetic::HeapWorkload(pattern)) as Box<dyn Workload>)
        .collect();
    all.push(Box::new(synthetic::FitWorkload));
    all.push(Box::new(python_demo::PythonDemo));
    all.push(Box::new(gnu_sort::GnuSort));
    all.push(Box::new(gcc::Gcc));
    all.push(Box::new(redis::Redis));
    all.push(Box::new(media::Adpcm));
    all.push(Box::new(media::Jpeg));
    all.push(Box::new(media::Mpeg2));
    all.push(Box::new(synthetic::MatrixWorkload));
    all.push(Box::new(idle::Idle));
    all.push(Box::new(idle::Prefork));
    all
}

/// Those named, or all where none is.
pub fn select(names: &[String]) -> Result<Vec<Box<dyn Workload>>> {
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
