//! The options and the report of the process of a synthetic workload.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use ramfold_codec::PAGE_SIZE;
use serde::{Deserialize, Serialize};

use crate::content::heap_pages::PageSource;
use crate::harness::latency::{Bucket, Latency};

/// When the measured phase ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Quota {
    Accesses(u64),
    Seconds(f64),
}

/// The options of the started process.
#[derive(Clone, Debug)]
pub(crate) struct ChildOptions {
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// The measured phase; `None` for the workload's own number of accesses.
    pub(super) quota: Option<Quota>,
    pub(super) seed: u64,
    pub(super) thread_count: usize,
    pub(super) pages: Option<PathBuf>,
    pub(super) latency: bool,
}

impl ChildOptions {
    /// The number of operations, of a workload that does not end by the clock.
    pub(super) fn operations(&self, usual: u64) -> Result<u64> {
        match self.quota {
            Some(Quota::Accesses(count)) => Ok(count),
            Some(Quota::Seconds(_)) => bail!("{} takes --operations, not --seconds", self.name),
            None => Ok(usual),
        }
    }

    /// Does a workload that is measured as a whole: so many operations, unless another number is
    /// asked for. `work` returns a hash of what came of them.
    pub(super) fn run_whole(
        &self,
        usual: u64,
        work: impl FnOnce(u64) -> String,
    ) -> Result<ChildReport> {
        let operations = self.operations(usual)?;
        let start = Instant::now();
        let hash = work(operations);
        let measured = start.elapsed().as_secs_f64();
        let seconds = PhaseSeconds { measured, ..PhaseSeconds::default() };
        Ok(self.report(seconds, operations, hash))
    }

    /// What the heap is filled with.
    pub(super) fn page_source(&self) -> Result<PageSource> {
        PageSource::of_option(self.pages.as_deref(), self.seed)
    }

    /// Pages of the heap.
    pub(super) fn page_count(&self) -> Result<usize> {
        Ok(usize::try_from(self.size_bytes / PAGE_SIZE as u64)?)
    }

    /// The report of one thread that did `access_count` operations in the measured phase.
    pub(super) fn report(
        &self,
        seconds: PhaseSeconds,
        access_count: u64,
        hash: String,
    ) -> ChildReport {
        ChildReport {
            workload: self.name.clone(),
            heap_bytes: self.size_bytes,
            thread_count: 1,
            seed: self.seed,
            seconds,
            access_count,
            ns_per_access: seconds.measured * 1e9 / access_count as f64,
            latency: None,
            latency_histogram: Vec::new(),
            lz4_percent: None,
            hash,
        }
    }
}

#[cfg(test)]
impl ChildOptions {
    /// A mebibyte and one thread, for tests.
    pub(super) fn small(name: &str, seed: u64) -> ChildOptions {
        ChildOptions {
            name: name.to_owned(),
            size_bytes: 1 << 20,
            quota: None,
            seed,
            thread_count: 1,
            pages: None,
            latency: false,
        }
    }
}

/// Seconds of the phases of a synthetic workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseSeconds {
    pub(crate) fill: f64,
    pub(crate) warm_up: f64,
    pub(crate) measured: f64,
    pub(crate) verify: f64,
}

/// What a synthetic workload prints as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChildReport {
    pub(crate) workload: String,
    pub(crate) heap_bytes: u64,
    pub(crate) thread_count: usize,
    pub(crate) seed: u64,
    pub(crate) seconds: PhaseSeconds,
    /// Accesses in the measured phase, of all threads.
    pub(crate) access_count: u64,
    /// Wall time of the measured phase over the accesses of one thread.
    pub(crate) ns_per_access: f64,
    pub(crate) latency: Option<Latency>,
    /// All accesses by how long they took; empty where they were not timed.
    pub(crate) latency_histogram: Vec<Bucket>,
    /// Compressed size of a sample of the heap in percent, as LZ4 makes it.
    pub(crate) lz4_percent: Option<f64>,
    /// Of the final contents: equal for equal seeds, sizes and counts.
    pub(crate) hash: String,
}
