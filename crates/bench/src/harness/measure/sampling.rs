//! What is sampled while a program runs, for want of peak counters.

use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Launch;
use crate::harness::idle::{Idle, Watch};
use crate::machine::interrupt::Running;
use crate::machine::processes::anonymous_bytes_of_tree;

/// How often quantities without a peak counter of their own are read.
///
/// It also keeps programs under kernel swap alive. Linux 6.18 decides whether to
/// refill a cgroup's inactive list from statistics that are brought up to date
/// every two seconds or when memory.stat is read; a program that swaps at
/// random empties the list sooner, reclaim then finds nothing although swap is
/// free, and the program is killed (seen in the tracepoints of vmscan: no
/// shrink_active for 16 attempts). With readers at this pace it hardly happens.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
/// The largest samples, and what happened meanwhile.
#[derive(Default)]
pub(super) struct Peaks {
    pub(super) anonymous_bytes: u64,
    pub(super) usage_bytes: u64,
    pub(super) pool_bytes: u64,
    pub(super) timed_out: bool,
    pub(super) idle: Option<Idle>,
}

impl Launch<'_> {
    pub(super) fn is_pool_full(&self, peaks: &Peaks) -> bool {
        self.pool_bytes_max.is_some_and(|most| peaks.pool_bytes > most)
    }
}

/// A program that runs.
pub(super) struct Sampler<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) running: &'a Running,
    pub(super) started: Instant,
    pub(super) has_printed: &'a AtomicBool,
}

impl Sampler<'_> {
    /// Samples until the other end of `stopped` is dropped. Ends the program when its time is over
    /// or its pool is full, and `stdin` when it has slept as long as it is observed.
    pub(super) fn run(&self, stopped: &Receiver<()>, stdin: Option<ChildStdin>) -> Result<Peaks> {
        let mut peaks = Peaks::default();
        let mut sleeping = self.launch.idle.map(Watch::new).zip(stdin);
        let deadline = self.started + self.launch.time_limit;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(SAMPLE_INTERVAL) {
            if Instant::now() > deadline && !peaks.timed_out {
                peaks.timed_out = true;
                self.running.kill();
            }
            if let Err(error) = self.sample(&mut peaks) {
                // This thread is what enforces the time limit.
                self.running.kill();
                return Err(error);
            }
            if self.launch.is_pool_full(&peaks) {
                self.running.kill();
            }
            if let Some((watch, _)) = &mut sleeping {
                let printed = self.has_printed.load(Ordering::Relaxed);
                peaks.idle = watch.look(printed, || self.running.processes());
            }
            if peaks.idle.is_some() {
                // The end of its input wakes the program.
                sleeping = None;
            }
        }
        Ok(peaks)
    }

    fn sample(&self, peaks: &mut Peaks) -> Result<()> {
        if let Some(pool) = &self.launch.pool {
            peaks.pool_bytes = peaks.pool_bytes.max(pool()?);
        }
        let (usage_bytes, anonymous_bytes) = match self.launch.cgroup {
            Some(cgroup) => (cgroup.usage_bytes()?, cgroup.anonymous_bytes()?),
            None => {
                let bytes = anonymous_bytes_of_tree(self.running.leader);
                (bytes, bytes)
            }
        };
        peaks.usage_bytes = peaks.usage_bytes.max(usage_bytes);
        peaks.anonymous_bytes = peaks.anonymous_bytes.max(anonymous_bytes);
        Ok(())
    }
}
