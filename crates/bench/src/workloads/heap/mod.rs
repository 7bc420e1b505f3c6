//! A heap of pages that is gone over in some order, with every byte accounted for.
//!
//! [`Pattern`] says in what order and with what access; `memory` is the heap and its checks;
//! `stretch` is what one thread does to its part of it; `picker` yields the pages of an order.

mod memory;
mod pattern;
mod picker;
mod stretch;

use std::time::Instant;

use anyhow::{Result, bail};
use ramfold_codec::PAGE_SIZE;

pub(super) use memory::Heap;
pub(crate) use pattern::Order;
pub(crate) use picker::Picker;

use super::child::{ChildOptions, ChildReport, PhaseSeconds, Quota};
use super::{Prepared, Settings, Timing, Workload};
use crate::harness::latency::Histogram;
use crate::machine::host::Host;
use pattern::Pattern;

/// A workload for each access pattern.
pub(super) fn all() -> impl Iterator<Item = Box<dyn Workload>> {
    Pattern::ALL.into_iter().map(|pattern| Box::new(HeapWorkload(pattern)) as Box<dyn Workload>)
}

/// One access pattern over a heap.
struct HeapWorkload(Pattern);

impl Workload for HeapWorkload {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn about(&self) -> &'static str {
        self.0.about
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let page_count = settings.size_bytes / PAGE_SIZE as u64;
        let access_count = page_count as f64 * self.0.accesses_per_page() * settings.scale;
        Ok(Prepared::synthetic(host, settings, self.name(), access_count, Timing::Phase))
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        let (pattern, page_count) = (self.0, options.page_count()?);
        if page_count < options.thread_count || options.thread_count == 0 {
            bail!("{page_count} pages are too few for {} threads", options.thread_count);
        }
        if u32::try_from(page_count).is_err() {
            bail!("a heap of more than 16 TiB is not supported");
        }
        let source = options.page_source()?;
        let usual = pattern.accesses_per_page() * page_count as f64;
        let quota = options.quota.unwrap_or(Quota::Accesses(usual as u64));
        let start = Instant::now();
        let mut heap = Heap::fill(page_count, &source, options.seed)?;
        let fill = start.elapsed().as_secs_f64();
        let lz4_percent = heap.lz4_percent();
        let warm_up_quota = pattern.warm_up(page_count);
        let warm_up = heap.walk(pattern, warm_up_quota, options.thread_count, 1, false)?;
        let walk = heap.walk(pattern, quota, options.thread_count, 2, options.latency)?;
        let start = Instant::now();
        let hash = heap.verify(warm_up.write_count + walk.write_count)?;
        let seconds = PhaseSeconds {
            fill,
            warm_up: warm_up.elapsed.as_secs_f64(),
            measured: walk.elapsed.as_secs_f64(),
            verify: start.elapsed().as_secs_f64(),
        };
        let threads = options.thread_count as f64;
        let histogram = walk.histogram.as_ref();
        Ok(ChildReport {
            heap_bytes: page_count as u64 * PAGE_SIZE as u64,
            thread_count: options.thread_count,
            ns_per_access: seconds.measured * 1e9 * threads / walk.access_count as f64,
            latency: histogram.and_then(Histogram::latency),
            latency_histogram: histogram.map(Histogram::buckets).unwrap_or_default(),
            lz4_percent: Some(lz4_percent),
            ..options.report(seconds, walk.access_count, hash)
        })
    }
}
