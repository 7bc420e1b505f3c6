//! What the process costs, as the kernel counts it and as it is published.

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_policy::memory::measurement::Measurement;
use ramfold_policy::memory::quiet::Amounts;
use ramfold_sys::PAGE_SIZE;
use ramfold_sys::pagemap::{PageRegion, Pages};

use super::Monitor;
use crate::cost;
use crate::fork::copies;
use crate::kernel::proc::{Memory, Proportional};
use crate::kernel::{Kernel, proc, time};
use crate::session::Once;
use crate::spill::{self};

/// What cannot be compressed by its nature, shared memory and page tables, counts by the cap / this
/// at most.
const FIXED_COST_SHARE: u64 = 2;

/// And is spoken of when it is more than the cap / this.
const SHARED_SAID_SHARE: u64 = 8;

/// How often the account is published in full.
const PUBLISH_NS: u64 = 10_000_000;

/// What the store cost around the last look, to tell its growth from the program's.
#[derive(Default)]
pub(super) struct StoreSeen {
    /// The less of before and after the last look.
    bytes_before: u64,
    /// Before the kernel was asked last, and [`Agent::progress`](crate::agent::Agent::progress)
    /// then.
    bytes: u64,
    progress: u32,
}

impl Monitor {
    /// Asks the kernel what the process costs, and publishes it.
    pub(crate) fn look(&mut self) {
        self.ask();
        self.notice_unannounced();
        self.measure_sharing();
        self.measure_shared_memory();
        self.measure_page_tables();
        self.correct_estimate();
        self.publish();
        if let Some(active) = self.agent.active() {
            spill::wake_if_wanted(self.agent, active);
        }
    }

    pub(super) fn ask(&mut self) {
        if let Some(active) = self.agent.active() {
            copies::count_copied(self.agent, active);
        }
        self.store_seen.bytes = self.store_cost();
        self.store_seen.progress = self.agent.progress.seen();
        // A process that cannot read its own account any more keeps its last word.
        if let Ok(memory) = self.statm.read() {
            self.memory = memory;
        }
    }

    /// Corrects the estimate by the kernel's count. What is more than was brought in for the
    /// process and than the store grew is growth.
    pub(super) fn correct_estimate(&mut self) {
        let cost = self.cost_bytes();
        let before = self.agent.process().cost_bytes.swap(cost, Ordering::AcqRel);
        // The fault handler stores and frees meanwhile: what of that one count has and the other
        // has not is no growth of the program's.
        let store = self.store_cost();
        let (least, most) = (store.min(self.store_seen.bytes), store.max(self.store_seen.bytes));
        let store_before = core::mem::replace(&mut self.store_seen.bytes_before, least);
        if self.agent.progress.seen() == self.store_seen.progress {
            let grown = (cost + store_before) as i64 - (before + most) as i64;
            self.growth.note(time::monotonic_ns(), grown);
        }
    }

    pub(super) fn store_cost(&self) -> u64 {
        self.agent.active().map_or(0, |active| active.store.cost_bytes() as u64)
    }

    /// What the process costs: its resident anonymous pages, less what its relatives pay of them.
    pub(super) fn cost_bytes(&self) -> u64 {
        let own = self.memory.anonymous_bytes.saturating_sub(self.agent.copies.saved_bytes());
        own + self.agent.copies.owed_bytes() + self.fixed_cost_bytes()
    }

    /// What cannot be compressed whatever the agent does. The rest is not squeezed to nothing for
    /// it.
    fn fixed_cost_bytes(&self) -> u64 {
        let process = self.agent.process();
        let fixed = process.shared_bytes.load(Ordering::Relaxed)
            + process.page_table_bytes.load(Ordering::Relaxed);
        fixed.min(cost::watermarks(self.agent.session()).cap / FIXED_COST_SHARE)
    }

    /// Shared memory that the process has now: looked at when its pages of files and of shared
    /// memory have become more or fewer.
    fn measure_shared_memory(&mut self) {
        let (agent, session) = (self.agent, self.agent.session());
        // Pages of files are far more usual, and to ask for the other kind walks no page tables.
        let measure = || match proc::resident_shared_bytes() {
            Ok(0) | Err(_) => 0,
            Ok(all) => Proportional::of_this_process().map_or(all, |part| part.shared),
        };
        let seen_bytes = self.memory.shared_bytes;
        let measured = measure_if_due(&mut self.shared_memory, seen_bytes, measure);
        let Some(shared) = measured else { return };
        agent.process().shared_bytes.store(shared, Ordering::Relaxed);
        let cap = cost::watermarks(session).cap;
        if shared > cap / SHARED_SAID_SHARE {
            session.say(
                Once::SharedMemory,
                format_args!(
                    "pid {} has {} MiB of shared memory, which is not compressed: it counts against the cap of {} MiB, by half of that at most",
                    agent.pid(),
                    shared >> 20,
                    cap >> 20
                ),
            );
        }
    }

    /// A limit of the kernel's (a control group's) counts page tables too. They stay when the pages
    /// in them are evicted.
    fn measure_page_tables(&mut self) {
        let process = self.agent.process();
        let evicted = process.pages_stored.load(Ordering::Relaxed) * PAGE_SIZE as u64;
        let touched = self.memory.anonymous_bytes + evicted;
        let measured = measure_if_due(&mut self.page_tables, touched, proc::page_table_bytes);
        if let Some(Ok(bytes)) = measured {
            process.page_table_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    fn publish(&mut self) {
        let (agent, session, process) = (self.agent, self.agent.session(), self.agent.process());
        let cost = self.cost_bytes();
        let mut total = session.cost_bytes();
        if total > session.cost_bytes_max.load(Ordering::Relaxed) && total > cost {
            session.bury_the_dead(process.pid.load(Ordering::Relaxed));
            total = session.cost_bytes();
        }
        if !session.sharing_is_unknown() {
            session.cost_bytes_max.fetch_max(total, Ordering::Relaxed);
            let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
            session.over_cap_bytes_max.fetch_max(total.saturating_sub(cap), Ordering::Relaxed);
        }
        let now = time::monotonic_ns();
        if let Some(active) = agent.active()
            && now - self.published_ns >= PUBLISH_NS
        {
            self.published_ns = now;
            let store = active.store.statistics();
            self.compaction.fragmentation_bytes = store.pool_fragmentation_bytes;
            let waiting = agent.lock_core().staging.live_pages();
            let counters = &process.counters;
            for (place, amount) in [
                (&process.pool_used_bytes, store.pool_used_bytes),
                (&process.pool_reserve_bytes, store.pool_reserve_bytes),
                (&process.pool_fragmentation_bytes, store.pool_fragmentation_bytes),
                (&process.pool_total_bytes, store.pool_total_bytes),
                (&process.pool_spans, store.spans),
                (&process.compressed_bytes, store.object_bytes),
                (&process.pages_stored, store.objects + store.same_filled),
                (&process.pages_in_spill, store.spilled),
                (&process.spill_bytes, store.spilled_bytes),
                (&process.spill_queue_bytes, spill::leaving_bytes(agent)),
                (&process.pages_staging, waiting),
                (&counters.pool_reserve_misses, store.reserve_misses),
                (&counters.rejected_pool_full, store.rejects.pool_full),
                (&counters.rejected_metadata_full, store.rejects.metadata_full),
                (&counters.rejected_no_memory, store.rejects.no_memory),
            ] {
                place.store(amount, Ordering::Relaxed);
            }
            session.pool_bytes_max.fetch_max(session.pool_bytes(), Ordering::Relaxed);
            let buffers: u64 = active.spill.as_ref().map_or(0, |spill| {
                spill.memory_ranges().map(|range| self.resident_bytes(range)).iter().sum()
            });
            process.metadata_bytes.store(
                store.metadata_bytes + self.resident_bytes(agent.home_range()) + buffers,
                Ordering::Relaxed,
            );
            process.staging_bytes.store(
                self.resident_bytes(active.chunk_range(0).start..active.staging_end()),
                Ordering::Relaxed,
            );
        }
    }

    /// Memory behind a range of the agent's own.
    pub(super) fn resident_bytes(&self, range: Range<usize>) -> u64 {
        let Some(active) = self.agent.active() else { return 0 };
        let mut runs = [PageRegion::default(); 32];
        let (mut at, mut bytes) = (range.start, 0);
        while at < range.end {
            let range = at..range.end;
            let Ok(found) = active.kernel.present(range, usize::MAX, &mut runs, Pages::All) else {
                break;
            };
            bytes += runs[..found.runs].iter().map(|run| run.end - run.start).sum::<u64>();
            if found.end <= at {
                break;
            }
            at = found.end;
        }
        bytes
    }

    /// Memory of the agent's own that counts as writable.
    pub(super) fn own_bytes(&self) -> u64 {
        let agent = self.agent;
        let active = agent.active().map_or(0, |active| {
            let spill = active.spill.as_ref().map_or(0, |spill| {
                spill.memory_ranges().iter().map(|range| range.len() as u64).sum()
            });
            active.staging_memory.len() as u64 + active.store.writable_bytes() as u64 + spill
        });
        agent.home_range().len() as u64 + active
    }

    /// All of the process's own memory that is in RAM, whoever else has it.
    pub(crate) fn anonymous_bytes(&self) -> u64 {
        self.memory.anonymous_bytes
    }
}

/// What changes where something happens in a process.
pub(super) fn amounts(memory: Memory) -> Amounts {
    [memory.anonymous_bytes, memory.shared_bytes, memory.mapped_bytes, memory.writable_bytes]
}

/// Measures, where it is time to: `seen_bytes` is another amount than at the last measurement.
fn measure_if_due<T>(
    measurement: &mut Measurement,
    seen_bytes: u64,
    measure: impl FnOnce() -> T,
) -> Option<T> {
    let began_ns = time::monotonic_ns();
    measurement.is_due(seen_bytes, began_ns).then(|| {
        let measured = measure();
        measurement.note(seen_bytes, began_ns, time::monotonic_ns());
        measured
    })
}
