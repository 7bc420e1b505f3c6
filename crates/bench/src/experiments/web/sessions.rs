//! Visitors of a site, each in a thread of its own.

use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};

use super::client::{Answer, Client};
use super::site::{GOOD, Site, TOLERABLE, Visitor};
use crate::harness::latency::Histogram;
use crate::machine::interrupt;

/// Of a visitor's thread, whose buffer is on the heap.
const STACK_BYTES: usize = 128 << 10;

/// What visitors have received.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Pages that were received whole, downloads included.
    pub(super) pages: u64,
    /// Bytes received, of pages that were not received whole too.
    pub(super) bytes: u64,
    pub(super) good: u64,
    pub(super) tolerable: u64,
    /// Times of downloads.
    pub(super) downloads: Histogram,
}

impl Tally {
    fn merge(&mut self, other: &Tally) {
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.good += other.good;
        self.tolerable += other.tolerable;
        self.downloads.merge(&other.downloads);
    }
}

const WARMING: u8 = 0;
const COUNTING: u8 = 1;
const OVER: u8 = 2;

struct Crowd<'a> {
    socket: &'a Path,
    phase: AtomicU8,
    /// Why a visitor could not go on.
    failure: Mutex<Option<Error>>,
}

/// Runs all sessions of a site for two durations. What they receive is counted in the second, which
/// `begin` precedes and `end` follows.
pub(super) fn visit<B, E>(
    site: Site,
    socket: &Path,
    durations: [Duration; 2],
    begin: impl FnOnce() -> Result<B>,
    end: impl FnOnce(B) -> Result<E>,
) -> Result<(Tally, E)> {
    let crowd = Crowd { socket, phase: WARMING.into(), failure: Mutex::new(None) };
    thread::scope(|scope| {
        let mut visitors = Vec::new();
        let attend = || {
            for seed in 0..site.sessions as u64 {
                visitors.push(crowd.start(scope, site, seed)?);
            }
            crowd.wait(durations[0])?;
            let begun = begin()?;
            crowd.phase.store(COUNTING, Ordering::Relaxed);
            crowd.wait(durations[1])?;
            crowd.phase.store(OVER, Ordering::Relaxed);
            end(begun)
        };
        let ended = attend();
        crowd.phase.store(OVER, Ordering::Relaxed);
        for visitor in &visitors {
            visitor.thread().unpark();
        }
        let mut tally = Tally::default();
        for visitor in visitors {
            match visitor.join() {
                Ok(of_one) => tally.merge(&of_one),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok((tally, ended?))
    })
}

impl Crowd<'_> {
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        site: Site,
        seed: u64,
    ) -> Result<ScopedJoinHandle<'scope, Tally>> {
        let visitor = thread::Builder::new().stack_size(STACK_BYTES);
        let visit = move || {
            let mut tally = Tally::default();
            if let Err(error) = self.visit_alone(Visitor::new(site, seed), &mut tally) {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
            }
            tally
        };
        visitor.spawn_scoped(scope, visit).context("cannot start a thread for each session")
    }

    /// Waits, unless a visitor has failed or a signal came.
    fn wait(&self, duration: Duration) -> Result<()> {
        let until = Instant::now() + duration;
        loop {
            interrupt::check()?;
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(error) = failure.take() {
                return Err(error);
            }
            drop(failure);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }

    /// One visitor's pages, until it is over.
    fn visit_alone(&self, mut visitor: Visitor, tally: &mut Tally) -> Result<()> {
        // So they do not come all at once.
        if !self.pause(visitor.think()) {
            return Ok(());
        }
        let mut client = Client::connect(self.socket)?;
        loop {
            let wanted = visitor.choose();
            let started = Instant::now();
            let answer = client.get(
                &wanted,
                || self.phase() != OVER,
                |bytes| {
                    if self.phase() == COUNTING {
                        tally.bytes += bytes.len() as u64;
                    }
                },
            )?;
            if answer == Answer::Left {
                return Ok(());
            }
            if self.phase() == COUNTING {
                tally.pages += 1;
                if wanted.download {
                    let took = started.elapsed();
                    tally.downloads.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                    let bytes_per_s = wanted.bytes as f64 / took.as_secs_f64();
                    tally.good += u64::from(bytes_per_s >= GOOD);
                    tally.tolerable += u64::from(bytes_per_s >= TOLERABLE);
                }
            }
            if !self.pause(visitor.think()) {
                return Ok(());
            }
        }
    }

    /// False when it is over.
    fn pause(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        loop {
            if self.phase() == OVER {
                return false;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            thread::park_timeout(left);
        }
    }
}
