//! All counters and gauges of a session together, at one time.

use crate::histogram::Quantiles;
use crate::layout::Session;
use crate::metric::{Metric, Source};
use crate::schema::{METRIC_COUNT, SECTIONS};

/// All metrics, in the order of the statistics.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    SECTIONS.iter().flat_map(|section| section.metrics)
}

/// The values of all metrics of a session.
#[derive(Clone)]
pub struct Statistics {
    /// In the order of [`metrics`]; zero where the value is none of these.
    numbers: [u64; METRIC_COUNT],
    codec: &'static str,
    fault_ns: Quantiles,
}

/// The value of a metric.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// In the metric's unit.
    Number(u64),
    /// One of several names.
    Name(&'static str),
    /// Counts of values by ranges.
    Histogram(&'a Quantiles),
}

impl Session {
    /// What the session's accounts say now. Counts are over all processes there were; amounts of
    /// memory are what the living hold, and the last word of `program`, the process that was
    /// started.
    pub fn statistics(&self, program: u32) -> Statistics {
        self.bury_the_dead(program);
        let mut fault_ns = Quantiles::default();
        self.retired_fault_ns.add_to(&mut fault_ns);
        for process in self.used_processes() {
            process.fault_ns.add_to(&mut fault_ns);
        }
        let mut statistics =
            Statistics { numbers: [0; METRIC_COUNT], codec: self.codec().name(), fault_ns };
        for (index, metric) in metrics().enumerate() {
            statistics.numbers[index] = match metric.source {
                Source::Session(read) => read(self),
                Source::Quantile(share) => statistics.fault_ns.quantile_ns(share),
                Source::Derived(_) | Source::Histogram | Source::Codec => 0,
            };
        }
        for (index, metric) in metrics().enumerate() {
            if let Source::Derived(calculate) = metric.source {
                statistics.numbers[index] = calculate(&statistics);
            }
        }
        statistics
    }
}

impl Statistics {
    /// Each metric with its value, in the order of [`metrics`].
    pub fn iter(&self) -> impl Iterator<Item = (&'static Metric, Value<'_>)> {
        metrics().zip(self.numbers).map(|(metric, number)| {
            let value = match metric.source {
                Source::Codec => Value::Name(self.codec),
                Source::Histogram => Value::Histogram(&self.fault_ns),
                _ => Value::Number(number),
            };
            (metric, value)
        })
    }

    /// The value of the metric with this name; `None` where there is no such metric, or where it is
    /// not a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.iter().find_map(|(metric, value)| match value {
            Value::Number(number) if metric.name == name => Some(number),
            _ => None,
        })
    }
}

/// What the processes have uncompressed.
pub(crate) fn resident_bytes(statistics: &Statistics) -> u64 {
    let number = |name| statistics.number(name).unwrap_or_default();
    let others = ["pool_total_bytes", "metadata_bytes", "staging_bytes", "page_table_bytes"];
    number("cost_bytes").saturating_sub(others.into_iter().map(number).sum())
}

/// A map of names and values: numbers, a string, and for a histogram pairs as
/// [`Quantiles::buckets`] has them.
#[cfg(feature = "serde")]
impl serde::Serialize for Statistics {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(metric, value)| (metric.name, value)))
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Value<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => serializer.serialize_u64(*number),
            Value::Name(name) => serializer.serialize_str(name),
            Value::Histogram(quantiles) => serializer.collect_seq(quantiles.buckets()),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use ramfold_codec::Choice;

    use super::*;
    use crate::metric::{MetricKind, Unit};
    use crate::owned::OwnedSession;

    #[test]
    fn sums_over_processes_and_over_those_that_are_gone() {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        let first = session.claim(std::process::id()).unwrap();
        first.counters.faults.store(3, Ordering::Relaxed);
        first.fault_ns.record(1000);
        let again = session.claim(std::process::id()).unwrap();
        again.counters.faults.store(4, Ordering::Relaxed);
        again.cost_bytes.store(100, Ordering::Relaxed);
        again.pool_total_bytes.store(30, Ordering::Relaxed);
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        session.claim(gone.id()).unwrap().cost_bytes.store(1000, Ordering::Relaxed);
        let stats = session.statistics(std::process::id());
        assert_eq!(stats.number("faults"), Some(7));
        assert_eq!(stats.number("resident_bytes"), Some(70));
        assert_eq!(stats.number("memory_cap_bytes"), Some(1 << 30));
        assert!(stats.iter().any(|(metric, value)| {
            metric.name == "codec" && matches!(value, Value::Name("auto"))
        }));
        assert!(stats.number("fault_ns_p50").unwrap() >= 1000);
        assert_eq!(stats.number("codec"), None);
        assert_eq!(stats.number("no_such_metric"), None);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn every_metric_is_serialised_by_its_name() {
        let session = OwnedSession::create(1 << 30, Choice::Auto).unwrap();
        session.claim(std::process::id()).unwrap().fault_ns.record(1000);
        let json = serde_json::to_value(session.statistics(std::process::id())).unwrap();
        let fields: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, metrics().map(|metric| metric.name).collect::<Vec<_>>());
        assert_eq!(json["memory_cap_bytes"], 1 << 30);
        assert_eq!(json["codec"], "auto");
        assert_eq!(json["fault_ns_histogram"], serde_json::json!([[1024, 1]]));
    }

    #[test]
    fn names_are_unique_and_end_with_their_unit() {
        let mut names: Vec<_> = metrics().map(|metric| metric.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRIC_COUNT);
        for metric in metrics() {
            let name = metric.name;
            assert_eq!(metric.unit == Unit::Bytes, name.contains("_bytes"), "{name}");
            assert_eq!(metric.unit == Unit::Nanoseconds, name.contains("_ns"), "{name}");
            assert_eq!(metric.kind == MetricKind::Maximum, name.ends_with("_max"), "{name}");
            assert!(!metric.help.is_empty() && !metric.help.ends_with('.'), "{name}");
        }
    }
}
