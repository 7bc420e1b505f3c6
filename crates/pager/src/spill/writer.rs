//! The thread that writes to the spill file.
//!
//! It sleeps until memory is short and the pool has more than its part of it, or has pages that do
//! not compress. When the disk is full or fails it says so and tries again later; until then
//! everything stays where it is.

use core::sync::atomic::Ordering;

use ramfold_store::{Choose, Spill, SpillError, SpillWriter};
use ramfold_sys::Errno;
use rustix::thread::{Timespec, futex};

use super::claims::SessionClaims;
use super::{leaving_bytes, shape};
use crate::agent::{Active, Agent};
use crate::cost;
use crate::kernel::time;
use crate::monitor::privileges::Privileges;
use crate::session::Once;

/// Writes the store's objects to the session's file.
pub(crate) type Writer = Spill<'static, SpillWriter<'static>, SessionClaims>;

/// A few pages that do not compress wait so long for more: a write takes a segment, full or not.
const GATHER_NS: u64 = 5_000_000;
/// After a failure nothing is written for so long; twice as long after each that follows.
const RETRY_NS_MIN: u64 = 500_000_000;
const RETRY_NS_MAX: u64 = 60_000_000_000;
/// When nothing was written for so long the buffers' memory goes back. Nor does this thread sleep
/// for longer: it follows the program in what that may do.
const REST_NS: u64 = 1_000_000_000;

/// Entry of the thread.
pub(crate) extern "C" fn thread_main(agent: *mut ()) -> ! {
    // SAFETY: the monitor passes the agent, which lives for ever.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    let Some(active) = agent.active() else {
        agent.fail(format_args!("the spill writer started before the agent was active"));
    };
    // SAFETY: this is that thread, of which there is one.
    run(agent, active, &mut unsafe { make(agent, active) })
}

/// What writes the spill file.
///
/// # Safety
/// There is one.
pub(crate) unsafe fn make(agent: &'static Agent, active: &'static Active) -> Writer {
    let Some(access) = &active.spill else {
        agent.fail(format_args!("the spill writer started without a file"));
    };
    let writer = SpillWriter::new(&access.file, true);
    // SAFETY: by the caller's word.
    let made = unsafe { Spill::new(&active.store, &access.memory, writer, SessionClaims(agent)) };
    match made {
        Ok(mut spill) => {
            spill.begin_child(&active.store);
            spill
        }
        Err(error) => agent.fail(format_args!("cannot use the spill file: {error}")),
    }
}

/// Is there something to write, and the thread asleep: then it is woken.
pub(crate) fn wake_if_wanted(agent: &Agent, active: &Active) {
    if active.spill.is_some()
        && agent.spill_work.is_seen_asleep()
        && wanted(agent, active).is_some()
    {
        agent.spill_work.wake();
    }
}

/// What is to be written now.
fn wanted(agent: &Agent, active: &Active) -> Option<Choose> {
    let session = agent.session();
    let low = cost::own_watermarks(agent).low;
    if agent.cost() <= low {
        return None;
    }
    let limit = match session.spill.pool_bytes.load(Ordering::Relaxed) {
        // It grows, and pages are compressed faster than they are written: better now than when
        // there is no room left.
        limit if agent.hints.outruns() => limit / 2,
        limit => limit,
    };
    let own = active.store.cost_bytes() as u64;
    let others = session
        .pool_bytes()
        .saturating_sub(agent.process().pool_total_bytes.load(Ordering::Relaxed));
    // Each gives up of what it has more than its part.
    let part = (u128::from(limit) * u128::from(own) / u128::from((own + others).max(1))) as u64;
    if own > part && own + others > limit {
        return Some(Choose::Oldest);
    }
    (leaving_bytes(agent) > 0).then_some(Choose::Raw)
}

fn run(agent: &'static Agent, active: &'static Active, spill: &mut Writer) -> ! {
    let mut retry_ns = RETRY_NS_MIN;
    // Since when a few pages wait for more.
    let mut gathering = None;
    let mut privileges = Privileges::default();
    agent.spill_work.set_works(true);
    loop {
        let seen = agent.spill_work.seen();
        let choose = wanted(agent, active);
        let now = time::monotonic_ns();
        privileges.follow(agent, now);
        if choose == Some(Choose::Raw) && is_little(agent, spill) {
            let since = *gathering.get_or_insert(now);
            if now - since < GATHER_NS {
                let _ = settle(agent, active, spill);
                sleep(agent, active, choose, seen, GATHER_NS - (now - since));
                continue;
            }
        }
        gathering = None;
        let written = match choose {
            Some(choose) => write(agent, active, spill, choose),
            None => settle(agent, active, spill).map(|()| false),
        };
        match written {
            Ok(true) => retry_ns = RETRY_NS_MIN,
            // What there is was stored a moment ago, or can not be spilled.
            Ok(false) if choose.is_some() => pause(agent, &mut privileges, GATHER_NS),
            Ok(false) => {
                sleep(agent, active, None, seen, REST_NS);
                if wanted(agent, active).is_none() {
                    // It cannot fail: nothing is under way.
                    let _ = spill.rest(&active.store);
                    spill.release_empty(&active.store);
                }
            }
            Err(error) => {
                tell(agent, &error);
                agent.spill_work.set_works(false);
                agent.process().counters.spill_errors.fetch_add(1, Ordering::Relaxed);
                publish(agent, spill);
                pause(agent, &mut privileges, retry_ns);
                retry_ns = (retry_ns * 2).min(RETRY_NS_MAX);
                agent.spill_work.set_works(true);
            }
        }
    }
}

/// Less than fills half of a segment, beside what is being written, and nobody waits for it.
fn is_little(agent: &Agent, spill: &Writer) -> bool {
    let half = shape(agent.session()).map_or(0, |shape| shape.segment_bytes / 2);
    (leaving_bytes(agent) as usize) < half + spill.bytes_under_way()
        && !agent.progress.fault_waits()
}

/// Begins to write a batch, once the one before is done. `false` if nothing has come of it.
pub(crate) fn write(
    agent: &Agent,
    active: &Active,
    spill: &mut Writer,
    choose: Choose,
) -> Result<bool, SpillError> {
    let Some(access) = &active.spill else { return Ok(false) };
    let (before, writes) = (active.store.cost_bytes(), spill.counts().writes);
    let written = spill.write(&active.store, &access.cipher, choose);
    note_freed(agent, active, before);
    publish(agent, spill);
    match written {
        // What is under way may be all that is wanted.
        Ok(false) => settle(agent, active, spill).map(|()| spill.counts().writes > writes),
        other => other,
    }
}

/// Waits until the last batch is written.
fn settle(agent: &Agent, active: &Active, spill: &mut Writer) -> Result<(), SpillError> {
    let before = active.store.cost_bytes();
    let settled = spill.finish(&active.store);
    note_freed(agent, active, before);
    publish(agent, spill);
    settled
}

/// Memory was freed: for reclaim, and for faults that wait.
fn note_freed(agent: &Agent, active: &Active, before: usize) {
    let freed = before.saturating_sub(active.store.cost_bytes());
    if freed > 0 {
        agent.progress.begin_free();
        agent.subtract_cost(freed as u64);
        agent.progress.end_free();
    }
}

fn publish(agent: &Agent, spill: &Writer) {
    let (process, counts) = (agent.process(), spill.counts());
    let counters = &process.counters;
    // The thread counts from its process's beginning, as the account does.
    counters.pages_spilled.store(counts.pages_written, Ordering::Relaxed);
    counters.pages_spill_moved.store(counts.pages_moved, Ordering::Relaxed);
    counters.spill_writes.store(counts.writes, Ordering::Relaxed);
    counters.spill_write_bytes.store(counts.bytes_written, Ordering::Relaxed);
}

fn tell(agent: &Agent, error: &SpillError) {
    let session = agent.session();
    match error {
        SpillError::Full => {
            let area = &session.spill;
            let bytes = area.segment_count.load(Ordering::Relaxed)
                * area.segment_bytes.load(Ordering::Relaxed);
            session.say(
                Once::SpillFull,
                format_args!(
                    "the spill file is full at {} MiB: what does not fit stays in memory; --spill DIR:SIZE allows more",
                    bytes >> 20
                ),
            );
        }
        error => {
            let reason = match error {
                SpillError::Write { errno, .. } => reason(*errno),
                _ => "",
            };
            session.say(
                Once::SpillFailed,
                format_args!(
                    "{error}{reason}; what was to be written stays in memory, and is tried again later"
                ),
            );
        }
    }
}

/// The agent has no library that knows errors by their numbers.
fn reason(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC => " (the disk is full)",
        Errno::DQUOT => " (the disk quota is used up)",
        Errno::FBIG => " (the file may not be larger)",
        Errno::IO => " (the disk failed)",
        _ => "",
    }
}

/// Sleeps until woken, or for so long; not where there is more to write by now than `choose`.
fn sleep(agent: &Agent, active: &Active, choose: Option<Choose>, seen: u32, ns: u64) {
    agent.spill_work.sleep(seen, ns, || wanted(agent, active) == choose);
}

/// Sleeps for so long, whoever wants what.
fn pause(agent: &Agent, privileges: &mut Privileges, ns: u64) {
    let word = core::sync::atomic::AtomicU32::new(0);
    let until = time::monotonic_ns() + ns;
    loop {
        let now = time::monotonic_ns();
        let left = until.saturating_sub(now).min(REST_NS);
        if left == 0 {
            return;
        }
        privileges.follow(agent, now);
        let _ = futex::wait(&word, futex::Flags::PRIVATE, 0, Some(&timespec(left)));
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
