//! All steps of the load, on one cache.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;
use serde_json::Value;

use super::client::Client;
use super::servers::{Server, ServerKind};
use super::sessions;
use super::site::{Item, Site};
use crate::experiments::files::{Bed, Setup};
use crate::harness::latency::Latency;
use crate::machine::host::Host;
use crate::machine::interrupt;
use crate::peers::cache::Cache;

/// Descriptors for anything but sessions.
const DESCRIPTORS_MORE: u64 = 256;

/// The counters of ramfold's `--stats` that are reported for each step.
const COUNTED: [&str; 12] = [
    "decompress_ns",
    "kernel_dropped_pages",
    "pages_compressed",
    "pages_left",
    "pages_read",
    "pages_returned",
    "pool_hit_pages",
    "pool_miss_pages",
    "rejected_busy_pages",
    "source_read_bytes",
    "source_read_ns",
    "source_reads",
];

/// What is measured.
pub(super) struct Plan<'a> {
    pub(super) setup: Setup<'a>,
    /// Steps of the load.
    pub(super) sessions: &'a [u32],
    pub(super) scale: u32,
    pub(super) seconds: u32,
    pub(super) warm_seconds: u32,
}

impl Plan<'_> {
    /// The site with all files that any step needs.
    pub(super) fn site(&self) -> Site {
        self.site_of(self.sessions.iter().copied().max().unwrap_or(1))
    }

    /// The site of a step.
    pub(super) fn site_of(&self, sessions: u32) -> Site {
        Site { sessions: sessions as usize, scale: self.scale }
    }
}

/// What was measured in one step.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StepFigures {
    pub(super) pages_per_s: f64,
    /// Sent to visitors.
    pub(super) bytes_per_s: f64,
    pub(super) downloads: u64,
    /// Times of downloads.
    pub(super) latency: Option<Latency>,
    /// Shares of the downloads.
    pub(super) good: Option<f64>,
    pub(super) tolerable: Option<f64>,
    pub(super) disk_bytes: u64,
    pub(super) user_seconds: f64,
    pub(super) system_seconds: f64,
    pub(super) seconds: f64,
    /// Memory of the server when it had started; the limit of the cgroup is this much higher.
    pub(super) server_bytes: u64,
    /// The growth of counters of ramfold's `--stats`.
    pub(super) ramfold_meanwhile: Option<BTreeMap<&'static str, u64>>,
    /// What `--stats` says at the end.
    pub(super) ramfold: Option<Value>,
}

/// Runs all steps of a plan, on what the earlier ones have left in the cache.
pub(super) fn run(
    host: &Host,
    bed: &Bed<'_>,
    kind: ServerKind,
    cache: &dyn Cache,
    plan: &Plan<'_>,
    mut tell: impl FnMut(u32),
) -> Result<Vec<StepFigures>> {
    let site = plan.site();
    allow_descriptors(site.sessions)?;
    let samples = read_samples(bed, site)?;
    let stage = bed.stage(cache, &plan.setup)?;
    let before = stage.cgroup().anonymous_bytes()?;
    let page = &samples[0].0;
    let server = Server::start(host, kind, stage.cgroup(), stage.folder(), site.sessions, page)?;
    let server_bytes = stage.cgroup().anonymous_bytes()?.saturating_sub(before);
    stage.limit(plan.setup.memory_bytes + server_bytes)?;
    compare(&server, &samples)?;
    drop(samples);
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let durations = [seconds(plan.warm_seconds), seconds(plan.seconds)];
    let mut found = Vec::new();
    for &sessions in plan.sessions {
        tell(sessions);
        let begin = || Ok((stage.statistics()?, stage.meter()?));
        let (tally, (spent, earlier)) = sessions::visit(
            plan.site_of(sessions),
            server.socket(),
            durations,
            begin,
            |(earlier, meter)| Ok((meter.spent()?, earlier)),
        )?;
        let ramfold = stage.statistics()?;
        let downloads = tally.downloads.count();
        let share = |count: u64| (downloads > 0).then(|| count as f64 / downloads as f64);
        found.push(StepFigures {
            pages_per_s: tally.pages as f64 / spent.seconds,
            bytes_per_s: tally.bytes as f64 / spent.seconds,
            downloads,
            latency: tally.downloads.latency(),
            good: share(tally.good),
            tolerable: share(tally.tolerable),
            disk_bytes: spent.disk_bytes,
            user_seconds: spent.user_seconds,
            system_seconds: spent.system_seconds,
            seconds: spent.seconds,
            server_bytes,
            ramfold_meanwhile: earlier.zip(ramfold.as_ref()).map(|(one, two)| since(&one, two)),
            ramfold,
        });
    }
    server.finish()?;
    stage.finish()?;
    Ok(found)
}

/// The growth of counters between two readings of ramfold's statistics.
fn since(earlier: &Value, later: &Value) -> BTreeMap<&'static str, u64> {
    let number = |statistics: &Value, name: &str| statistics[name].as_u64().unwrap_or(0);
    let more =
        |name: &'static str| (name, number(later, name).saturating_sub(number(earlier, name)));
    COUNTED.into_iter().map(more).collect()
}

/// Files and their contents. Read before the caches are emptied, so that none of it is cached.
fn read_samples(bed: &Bed<'_>, site: Site) -> Result<Vec<(Item, Vec<u8>)>> {
    let read = |item: Item| {
        let path = bed.source().join(&item.path);
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((item, bytes))
    };
    site.samples().into_iter().map(read).collect()
}

/// Compares what the server sends with what is on the disk.
fn compare(server: &Server, samples: &[(Item, Vec<u8>)]) -> Result<()> {
    let mut client = Client::connect(server.socket())?;
    let mut given = Vec::new();
    for (item, expected) in samples {
        given.clear();
        client.get(item, || interrupt::check().is_ok(), |bytes| given.extend_from_slice(bytes))?;
        interrupt::check()?;
        ensure!(given == *expected, "the web server gives other bytes than {} has", item.path);
    }
    Ok(())
}

/// Each session is a connection, at both of its ends, and a file.
fn allow_descriptors(sessions: usize) -> Result<()> {
    let needed = 2 * sessions as u64 + DESCRIPTORS_MORE;
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |most: Option<u64>| most.is_none_or(|most| most >= needed);
    if is_enough(limit.current) {
        return Ok(());
    }
    let maximum = if is_enough(limit.maximum) { limit.maximum } else { Some(needed) };
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum }).with_context(|| {
        format!(
            "{sessions} sessions need {needed} file descriptors (ulimit -n), which are not allowed"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_are_of_the_step_alone() {
        let earlier = json!({ "pool_hit_pages": 5, "source_reads": 7 });
        let later = json!({ "pool_hit_pages": 9, "source_reads": 7, "kernel_bytes": 1 });
        let meanwhile = since(&earlier, &later);
        assert_eq!((meanwhile["pool_hit_pages"], meanwhile["source_reads"]), (4, 0));
        assert!(!meanwhile.contains_key("kernel_bytes"));
    }
}
