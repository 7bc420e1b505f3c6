//! What is known of a counter or gauge besides its value.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{Counters, Process, Session};
use crate::statistics::Statistics;

/// How a value comes about, which says how values of several times compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A total that only grows, over all processes of the run, those that have ended included.
    Counter,
    /// An amount as it is now, over all processes that live.
    Gauge,
    /// The largest value of a gauge so far.
    Maximum,
    /// A value that a given share of all recorded values does not exceed.
    Quantile,
    /// How many recorded values there are in each range.
    Histogram,
    /// One of several names.
    Name,
}

impl MetricKind {
    /// The word for it in tables.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Maximum => "maximum",
            MetricKind::Quantile => "quantile",
            MetricKind::Histogram => "histogram",
            MetricKind::Name => "name",
        }
    }
}

/// What a value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Pages of 4,096 bytes.
    Pages,
    /// Things or events that the metric's name or help names: faults, processes, spans.
    Count,
    /// Not a number.
    None,
}

impl Unit {
    /// The word for it in tables; empty where the value is not a number.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Nanoseconds => "ns",
            Unit::Pages => "pages",
            Unit::Count => "count",
            Unit::None => "",
        }
    }
}

/// A counter, a gauge, or what is calculated of them.
pub struct Metric {
    /// Its name in the statistics. The unit comes last: `pool_used_bytes`, `fault_ns_p99`.
    pub name: &'static str,
    /// How its value comes about.
    pub kind: MetricKind,
    /// What its value counts.
    pub unit: Unit,
    /// What it means, in Markdown: the beginning of a sentence, without a full stop.
    pub help: &'static str,
    pub(crate) source: Source,
}

/// Where a value comes from.
pub(crate) enum Source {
    /// A number in the session, or a sum over its processes.
    Session(fn(&Session) -> u64),
    /// A number that is calculated of other statistics.
    Derived(fn(&Statistics) -> u64),
    /// A quantile of the time that faults took.
    Quantile(f64),
    /// All of these times.
    Histogram,
    /// The name of the codec.
    Codec,
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Metric { name, kind, unit, help, source: _ } = self;
        f.debug_struct("Metric")
            .field("name", name)
            .field("kind", kind)
            .field("unit", unit)
            .field("help", help)
            .finish_non_exhaustive()
    }
}

/// Metrics that belong together.
#[derive(Debug)]
pub struct Section {
    /// A heading.
    pub title: &'static str,
    /// A sentence that holds for all of them, or nothing.
    pub note: &'static str,
    /// The metrics, in the order in which they are listed.
    pub metrics: &'static [Metric],
}

/// The sum of an amount over the processes of a session.
pub(crate) fn sum_of_gauge(session: &Session, gauge: fn(&Process) -> &AtomicU64) -> u64 {
    session.used_processes().map(|process| gauge(process).load(Ordering::Relaxed)).sum()
}

/// The sum of a total over the processes of a session, those that have ended included.
pub(crate) fn sum_of_counter(session: &Session, counter: fn(&Counters) -> &AtomicU64) -> u64 {
    let living = session.used_processes().map(|process| &process.counters);
    let all = core::iter::once(&session.retired).chain(living);
    all.map(|counters| counter(counters).load(Ordering::Relaxed)).sum()
}
