//! What one `ramfold run` and the agents in its processes share: a piece of memory.
//!
//! The launcher makes it (a memfd) and reads it; every agent maps it, takes a place in it for
//! its process and keeps its counters there. So the cap can hold for all processes together, and
//! what happened is known also when a process is killed. Nobody trusts the memory further than
//! for accounts and messages: no content of a page ever passes through it.

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;

use core::ptr::{self, NonNull};

use ramfold_codec::Choice;
use ramfold_store::ObjectRing;
use ramfold_sys::robust::{OwnedWord, Owner};
use ramfold_sys::{proc, time};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::{Timespec, futex};

use crate::histogram::Histogram;
use crate::spill::LentFile;

/// Environment variable that leads an agent to its session: `PID:FD:KEY`. The launcher may be long
/// gone and its number somebody else's: the key, 16 hexadecimal digits, tells.
pub const SESSION_VARIABLE: &str = "RAMFOLD_SESSION";

/// Changes with every change of the structures here: an agent refuses a session it does not know.
pub const SESSION_MAGIC: u64 = u64::from_le_bytes(*b"ramfold\x0a");

/// The file behind a session neither shrinks nor grows.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Processes that can be looked after at a time; more run without.
pub const PROCESSES_MAX: usize = 512;

/// The cap / this is the reserve of a pool, between a least and a most.
const RESERVE_SHARE: u64 = 128;
const RESERVE_MIN: u64 = 256 << 10;
const RESERVE_MAX: u64 = 4 << 20;
/// What is out for so long is compressed once more, if nothing else is asked for.
const RECOMPRESS_AFTER_NS: u64 = 2_000_000_000;

/// Segments that a spill file can have.
pub const SEGMENTS_MAX: usize = 1 << 14;
pub use ramfold_store::SEGMENT_BYTES_MAX;

/// In the place of a process that is about to be made: with its parent's number.
const UNBORN: u32 = 1 << 31;
/// In a place that somebody has just taken, until it is his.
const TAKEN: u32 = u32::MAX - 1;
/// A place for which no agent has spoken after this time is that of a process that is not there any
/// more, or never was.
const SILENT_NS: u64 = 60_000_000_000;
/// Of what a process shared that has ended all may be a relative's own.
const PARTED_BY_END: u64 = 1 << 20;

const MESSAGES_MAX: usize = 16;
const MESSAGE_BYTES: usize = 400;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals that only grow. Zeroed memory is a valid start.
        #[repr(C)]
        pub struct Counters { $($(#[$doc])* pub $name: AtomicU64,)* }

        impl Counters {
            /// Moves everything counted here to `other`.
            fn drain_into(&self, other: &Counters) {
                $(other.$name.fetch_add(self.$name.swap(0, Ordering::Relaxed), Ordering::Relaxed);)*
            }

            /// Name and value of each counter, in order.
            pub fn for_each(&self, mut f: impl FnMut(&'static str, u64)) {
                $(f(stringify!($name), self.$name.load(Ordering::Relaxed));)*
            }
        }
    };
}

counters! {
    /// Pages compressed (or found same-filled) and taken out of RAM.
    pages_swapped_out,
    /// Pages brought back from the pool.
    pages_swapped_in,
    /// Pages brought back from staging, before they were compressed.
    pages_second_chance,
    /// Pages brought in ahead of a stream of faults, before they were asked for.
    pages_prefetched,
    /// Of these: what a stream that did not go on had brought in last.
    pages_prefetch_wasted,
    /// Of the pages swapped out: one repeated word, which costs no object.
    pages_same_filled,
    /// Pages put back because compression would not have saved anything.
    pages_incompressible,
    /// Pages that compression would not have saved anything of, stored as they are: for the spill file.
    pages_raw,
    /// Pages whose objects went to the spill file.
    pages_spilled,
    /// Pages brought back from there.
    spill_hits,
    /// Reads of it. One can bring several pages of a stream.
    spill_reads,
    /// What these reads took, in nanoseconds, from the fault's message to the answer.
    spill_read_ns_total,
    /// Batches written, and their bytes.
    spill_writes,
    spill_write_bytes,
    /// Pages moved within the file, to make room.
    pages_spill_moved,
    /// Times that the file could not be read or written, or was full.
    spill_errors,
    /// Pages taken from the program into staging.
    pages_staged,
    /// Times the monitor left taking pages to the fault handler.
    reclaim_left,
    /// Pages taken because nobody had touched them for a while, their blocks' probes not counted.
    pages_cold,
    /// Pages taken to see whether they come back.
    cold_probes,
    /// Faults on registered ranges, of every kind.
    faults,
    /// What they have cost the program, in nanoseconds, the kernel's part as far as it is known.
    fault_ns_total,
    /// Of the faults: a page that was never touched before, filled with zeros.
    faults_zero_filled,
    /// Zero pages supplied ahead of a growing run of first touches.
    pages_zero_filled_ahead,
    /// Bytes of pages given to the codec.
    compress_in_bytes,
    /// Bytes of objects it made of them.
    compress_out_bytes,
    /// Pages MOVE refused for good: pinned by I/O.
    refused_busy,
    /// Pages left alone because a forked relative still has them too.
    refused_shared,
    /// Pages MOVE refused because the mapping is locked or its access differs.
    refused_mapping,
    /// Pages that fork had shared, made the process's own again to be taken.
    pages_unshared,
    pages_written_shared,
    /// Faults that waited because the cap was reached.
    faults_stalled,
    /// Times the first thread was stopped because it outran reclaim, and times it could not be.
    threads_stopped,
    threads_not_stopped,
    /// Chunks of 64 pages compressed by the fault handler while faults waited for room.
    reclaim_direct,
    /// Chunks compressed by the monitor.
    reclaim_background,
    /// Changes of the address space told by the kernel.
    events_remove,
    events_unmap,
    events_remap,
    /// Of these, what was told before what it was built on.
    events_early,
    /// Forks, by kind: the child took over its memory; the child was given everything
    /// uncompressed because it bypassed libc.
    forks_taken_over,
    forks_filled,
    /// Pages that were brought back for such a child.
    pages_filled_for_child,
    /// Objects kept though their pages came back, because a forked process shares them; and those
    /// of them that were freed when none did any more, before their pages were stored again.
    objects_kept,
    objects_kept_freed,
    /// Times the pool was compacted.
    compactions,
    /// Objects that were compressed once more, for density; of these, what took the place of what was
    /// there; and bytes of those before and after.
    recompress_tried,
    pages_recompressed,
    recompress_in_bytes,
    recompress_out_bytes,
    /// Looks at all mappings of the process.
    mapping_scans,
    /// Times the reserve of the pool was empty.
    pool_reserve_misses,
    /// Times the reserve of the pool could not be filled up.
    pool_refills_failed,
    /// Pages that the store refused, by reason: the pool is full; its tables are; the system gave no
    /// memory.
    rejected_pool_full,
    rejected_metadata_full,
    rejected_no_memory,
}

/// The account of one process. Zeroed memory is a free place.
#[repr(C)]
pub struct Process {
    /// Zero: free. The process may be dead; its numbers stay until the place is taken again.
    pub pid: AtomicU32,
    /// In which pid_namespaces(7) the numbers here count.
    pid_namespace: AtomicU64,
    /// When the place was taken.
    taken_ns: AtomicU64,
    /// How often the place was taken. An agent of an earlier turn, whose program has executed another
    /// before it had begun, has no business here.
    turn: AtomicU32,
    /// The agent's process, and whether it lives: as long as it does this account counts.
    pub agent_pid: AtomicU32,
    pub agent_lives: OwnedWord,
    /// 1 from when the agent looks after memory (its ranges are registered).
    pub active: AtomicU32,
    /// Reclaim found nothing more to take here: nobody need wait for it.
    pub stuck: AtomicBool,
    /// Futex: raised to make the agent look at its account at once.
    pub wake: AtomicU32,
    /// When what it shares was last measured; 0 where that is nothing.
    pub measured_ns: AtomicU64,
    /// It has ended, and was first seen to have at this time.
    gone_ns: AtomicU64,
    /// 1 from a fork until it was measured what is shared now: `cost_bytes` counts that in full.
    pub sharing_unknown: AtomicU32,
    /// All anonymous memory of the process in RAM, what ramfold itself takes included, of what it shares
    /// its part, and its page tables: the kernel's count when it was last asked, corrected by what was brought in and freed
    /// since.
    pub cost_bytes: AtomicU64,
    /// Shared memory, this process's part of it: counted in `cost_bytes`, by half of the cap at most.
    pub shared_bytes: AtomicU64,
    /// Page tables, counted in `cost_bytes` in the same way.
    pub page_table_bytes: AtomicU64,
    /// What that can come to before anybody is asked.
    pub claim_bytes: AtomicU64,
    /// The most of `cost_bytes` that was seen.
    pub cost_bytes_max: AtomicU64,
    pub pool_used_bytes: AtomicU64,
    /// Free spans kept ready, and what else of the pool's memory is in no slot in use.
    pub pool_reserve_bytes: AtomicU64,
    pub pool_fragmentation_bytes: AtomicU64,
    pub pool_total_bytes: AtomicU64,
    /// Spans that slots are in.
    pub pool_spans: AtomicU64,
    pub metadata_bytes: AtomicU64,
    pub staging_bytes: AtomicU64,
    /// Pages that wait there to be compressed.
    pub pages_staging: AtomicU64,
    /// Compressed bytes of the objects in the pool.
    pub compressed_bytes: AtomicU64,
    /// Pages in the pool, those that are same-filled included.
    pub pages_stored: AtomicU64,
    /// Pages in the spill file, and bytes that they take there.
    pub pages_in_spill: AtomicU64,
    pub spill_bytes: AtomicU64,
    /// Bytes of the pool that are to go to the spill file next, what is being written included.
    pub spill_queue_bytes: AtomicU64,
    /// Reads of the spill file under way.
    pub spill_reads_under_way: AtomicU64,
    /// A bit for each segment of the spill file that this process has, alone or with relatives.
    pub segments: SegmentSet,
    pub counters: Counters,
    /// From reading a fault's message to having answered it.
    pub fault_ns: Histogram,
}

/// Segments of the spill file.
#[repr(C)]
pub struct SegmentSet([AtomicU64; SEGMENTS_MAX / 64]);

impl SegmentSet {
    /// The segments of 64, from 64 times `index`.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    /// Forgets all.
    fn clear(&self) {
        // Only what is set: the rest of the memory is not there.
        self.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0).for_each(|word| {
            word.store(0, Ordering::Release);
        });
    }

    /// Adds what another set has.
    fn add_all(&self, other: &SegmentSet) {
        for (word, more) in self.0.iter().zip(&other.0) {
            let more = more.load(Ordering::Relaxed);
            if more != 0 {
                word.fetch_or(more, Ordering::SeqCst);
            }
        }
    }
}

/// Where the spill file is, and how it is divided: written by the launcher before the program starts.
#[repr(C)]
pub struct SpillArea {
    /// Number of segments; 0: there is no file.
    pub segment_count: AtomicU64,
    pub segment_bytes: AtomicU64,
    /// The pools may take so many bytes together before their oldest objects go to the file.
    pub pool_bytes: AtomicU64,
    pub file: LentFile,
    /// Drawn at random; no other memory has it.
    pub key: [AtomicU64; 4],
    /// Counts writes of segments, by all processes.
    pub sequence: AtomicU64,
    /// Segments that somebody may have of whom the session does not know: they are never used again.
    pub pinned: SegmentSet,
}

/// One line for the person who started the run.
#[repr(C)]
struct Message {
    /// 0 free, 1 being written, 2 complete, 3 shown.
    state: AtomicU32,
    length: AtomicU32,
    text: [AtomicU64; MESSAGE_BYTES / 8],
}

/// What is said at most once in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Once {
    CapNotHeld = 1 << 0,
    SharedMemory = 1 << 11,
    NoUserfaultfd = 1 << 1,
    TooManyProcesses = 1 << 2,
    TooManyMappings = 1 << 3,
    NoAddressSpace = 1 << 4,
    CapTooSmall = 1 << 5,
    Privileges = 1 << 6,
    SpillFull = 1 << 7,
    SpillFailed = 1 << 8,
    NotAlong = 1 << 9,
    Other = 1 << 10,
}

/// The shared memory. All fields are atomics: every process may write at any time.
#[repr(C)]
pub struct Session {
    pub magic: AtomicU64,
    /// Drawn at random for each session.
    pub key: AtomicU64,
    /// What all processes of the session may cost together.
    pub memory_cap_bytes: AtomicU64,
    /// What they should cost at most for now: the cap, or less where files need the room.
    pub target_bytes: AtomicU64,
    /// All pages are brought back and none is taken, whatever the cap: somebody wants to look at them.
    pub brings_back: AtomicBool,
    /// Of that, what no resident pages get, whether or not the pools need it: a fixed split, for
    /// experiments. Zero: pools take what they need.
    pub pool_kept_bytes: AtomicU64,
    /// What each pool keeps ready, so that compressing a page needs no memory of the system's.
    pub reserve_bytes: AtomicU64,
    /// As [`Choice::number`] makes it.
    codec: AtomicU32,
    /// Pages that nobody has touched for so long are compressed even where there is room for them;
    /// zero: never.
    pub cold_after_ns: AtomicU64,
    /// How much of the time faults may take then, in millionths.
    pub slowdown_ppm: AtomicU64,
    /// Objects whose pages have been out for so long are compressed once more, for density.
    pub recompress_after_ns: AtomicU64,
    /// Bits of [`Once`].
    said: AtomicU32,
    /// Futex: counts messages.
    pub message_count: AtomicU32,
    /// Processes whose agent has started, ever.
    pub processes_started: AtomicU32,
    /// Processes whose agent became active, ever.
    pub processes_activated: AtomicU32,
    /// An agent has turned off huge pages for its process, which what that executes inherits.
    pub huge_pages_off: AtomicU32,
    /// Until when (CLOCK_MONOTONIC, nanoseconds) no processor is to fall asleep.
    awake_until_ns: AtomicU64,
    /// Futex: 1 while the thread sleeps that keeps processors awake.
    keeper_sleeps: AtomicU32,
    /// Futex: raised when an agent becomes active, or has something to do after a quiet time.
    activity: AtomicU32,
    /// When a process was last seen to have ended that others may have shared memory with.
    pub last_gone_ns: AtomicU64,
    /// Pages that were shared by forks and may be one process's own by now, as far as that is seen: some
    /// were copied, and some processes have ended.
    pub parted_pages: AtomicU64,
    /// When the dead were last looked for.
    buried_ns: AtomicU64,
    /// When all agents were last woken to make room.
    all_woken_ns: AtomicU64,
    /// The most that all processes cost together.
    pub cost_bytes_max: AtomicU64,
    /// The most that all pools took together.
    pub pool_bytes_max: AtomicU64,
    /// The most by which the cost went over the cap.
    pub over_cap_bytes_max: AtomicU64,
    pub spill: SpillArea,
    messages: [Message; MESSAGES_MAX],
    /// What processes counted whose place was taken again.
    pub retired: Counters,
    pub retired_fault_ns: Histogram,
    pub processes: [Process; PROCESSES_MAX],
    /// For the trace of one process' objects. Without one it is address space.
    pub object_ring: ObjectRing,
}

impl Session {
    /// Maps a session's file.
    ///
    /// # Errors
    /// What mmap(2) says.
    ///
    /// # Safety
    /// The file must be as long as a session, and stay so.
    pub unsafe fn map(file: impl AsFd) -> Result<NonNull<Session>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice, which is never null.
        unsafe {
            let bytes = size_of::<Session>();
            let address = mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)?;
            Ok(NonNull::new_unchecked(address.cast()))
        }
    }

    /// Memory that the pools of all processes have from the system.
    pub fn pool_bytes(&self) -> u64 {
        self.used_processes().map(|process| process.pool_total_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Memory that is kept for pools, and that they do not need.
    pub fn unused_pool_bytes(&self) -> u64 {
        match self.pool_kept_bytes.load(Ordering::Relaxed) {
            0 => 0,
            kept => kept.saturating_sub(self.pool_bytes()),
        }
    }

    /// How pages are compressed.
    pub fn codec(&self) -> Choice {
        Choice::from_number(self.codec.load(Ordering::Relaxed) as u16).unwrap_or_default()
    }

    /// Takes a place for this process: one it had before `exec`, a free one, or that of a
    /// process that is dead.
    pub fn claim(&self, pid: u32) -> Option<&Process> {
        // Several children of a process may be unborn at a time: each has a place of its own.
        let namespace = proc::pid_namespace();
        let own = |place: &&Process| pid & UNBORN == 0 && place.is_of(pid, namespace);
        let place = self
            .used_processes()
            .find(own)
            .or_else(|| self.processes.iter().find(|place| place.becomes(TAKEN, 0)))
            .or_else(|| {
                let takes = |place: &&Process| {
                    place.dead_pid().is_some_and(|dead| place.becomes(TAKEN, dead))
                };
                self.used_processes().find(takes)
            })?;
        self.retire(place);
        place.segments.clear();
        place.begin(namespace);
        place.pid.store(pid, Ordering::Release);
        self.processes_started.fetch_add(1, Ordering::Relaxed);
        Some(place)
    }

    /// Takes a place for a child that a process is about to make, which will have all that its parent
    /// has in the spill file. Where there is none, what the parent has is never given back.
    pub fn prepare_child(&self, parent: &Process) -> Option<&Process> {
        let pid = parent.pid.load(Ordering::Relaxed);
        let unborn = self.claim(pid | UNBORN);
        match unborn {
            Some(place) => {
                place.segments.add_all(&parent.segments);
            }
            None => self.spill.pinned.add_all(&parent.segments),
        }
        unborn
    }

    /// The child that a place was taken for is there.
    pub fn adopt(&self, place: &Process, pid: u32) {
        place.begin(proc::pid_namespace());
        place.pid.store(pid, Ordering::Release);
    }

    /// The child that a place was taken for was not made.
    pub fn abandon(&self, place: &Process) {
        place.segments.clear();
        self.processes_started.fetch_sub(1, Ordering::Relaxed);
        place.pid.store(u32::MAX, Ordering::Release);
    }

    /// Has this process a place here, so that others know what it has?
    pub fn lists(&self, process: &Process) -> bool {
        self.processes.as_ptr_range().contains(&ptr::from_ref(process))
    }

    /// Takes a segment of the spill file for a process; `None` where all are taken.
    pub fn claim_segment(&self, process: &Process) -> Option<u32> {
        let count = self.spill.segment_count.load(Ordering::Relaxed) as usize;
        let pid = process.pid.load(Ordering::Relaxed);
        for attempt in 0..2 {
            for index in 0..count.div_ceil(64) {
                let valid = u64::MAX >> (64 - (count - index * 64).min(64));
                let mut free = valid & !self.taken_segments(index);
                while free != 0 {
                    // Processes that look at the same time try different ones first.
                    let nth = if attempt == 0 { 0 } else { pid % free.count_ones() };
                    let bit = (0..nth).fold(free, |rest, _| rest & (rest - 1));
                    let bit = bit & bit.wrapping_neg();
                    process.segments.word(index).fetch_or(bit, Ordering::SeqCst);
                    let others =
                        self.used_processes().filter(|other| !ptr::eq(*other, process)).fold(
                            self.spill.pinned.word(index).load(Ordering::SeqCst),
                            |all, other| all | other.segments.word(index).load(Ordering::SeqCst),
                        );
                    if others & bit == 0 {
                        return Some((index * 64) as u32 + bit.trailing_zeros());
                    }
                    // Somebody else has taken it at the same time, and one of us lets go at least.
                    process.segments.word(index).fetch_and(!bit, Ordering::SeqCst);
                    free &= !bit;
                }
            }
            if attempt == 0 {
                self.clear_segments_of_the_dead();
            }
        }
        None
    }

    /// The segments that a process has.
    pub fn segments_of(&self, process: &Process) -> impl Iterator<Item = u32> {
        (0..SEGMENTS_MAX as u32).filter(|segment| {
            let word = process.segments.word(*segment as usize / 64).load(Ordering::SeqCst);
            word & 1 << (segment % 64) != 0
        })
    }

    /// Gives a segment back.
    pub fn release_segment(&self, process: &Process, segment: u32) {
        let (index, bit) = (segment as usize / 64, 1 << (segment % 64));
        process.segments.word(index).fetch_and(!bit, Ordering::SeqCst);
    }

    /// Which of 64 segments somebody has.
    fn taken_segments(&self, index: usize) -> u64 {
        self.used_processes()
            .fold(self.spill.pinned.word(index).load(Ordering::SeqCst), |all, p| {
                all | p.segments.word(index).load(Ordering::SeqCst)
            })
    }

    fn clear_segments_of_the_dead(&self) {
        for place in self.used_processes() {
            if place.dead_pid().is_some() {
                place.segments.clear();
            }
        }
    }

    /// The agent's process of a program, or of the one that it was before it executed this one. It holds
    /// the memory of that as long as it lives.
    pub fn agent_of(&self, pid: u32) -> Option<u32> {
        let namespace = proc::pid_namespace();
        let place = self.used_processes().find(|place| place.is_of(pid, namespace))?;
        Some(place.agent_pid.load(Ordering::Relaxed)).filter(|&agent| agent != 0)
    }

    /// Agents' processes that are about to end, because their programs have.
    pub fn agents_without_program(&self) -> impl Iterator<Item = u32> {
        let namespace = proc::pid_namespace();
        self.used_processes().filter_map(move |place| {
            let agent = place.agent_pid.load(Ordering::Relaxed);
            let is_left = place.pid_namespace.load(Ordering::Relaxed) == namespace
                && agent != 0
                && !is_alive(place.pid.load(Ordering::Acquire))
                && proc::has_ended(agent) == Ok(false);
            is_left.then_some(agent)
        })
    }

    /// The program's process whose agent was this process, which is dead, and has ended without a word. Its
    /// memory may be missing in parts, and nobody brings them back.
    pub fn deserted_by(&self, agent_pid: u32) -> Option<u32> {
        let namespace = proc::pid_namespace();
        let place = self.used_processes().find(|place| {
            place.agent_pid.load(Ordering::Relaxed) == agent_pid
                && place.pid_namespace.load(Ordering::Relaxed) == namespace
                && matches!(place.agent_lives.owner(), Owner::Alive | Owner::Died)
        })?;
        place.agent_lives.note_ended();
        Some(place.pid.load(Ordering::Relaxed)).filter(|pid| pid & UNBORN == 0)
    }

    /// [`Session::claim`]; when there is no place it says so.
    pub fn claim_or_say(&self, pid: u32) -> Option<&Process> {
        let place = self.claim(pid);
        if place.is_none() {
            self.say(
                Once::TooManyProcesses,
                format_args!(
                    "more than {PROCESSES_MAX} processes at a time: what is beyond is not counted, and not compressed if it is new"
                ),
            );
        }
        place
    }

    /// The places that were ever taken: places are taken in order, and the memory behind the rest
    /// is not there until it is touched.
    pub fn used_processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().take_while(|place| place.pid.load(Ordering::Relaxed) != 0)
    }

    /// Adds up what a process counted and clears its account.
    fn retire(&self, place: &Process) {
        place.counters.drain_into(&self.retired);
        place.fault_ns.drain_into(&self.retired_fault_ns);
        place.active.store(0, Ordering::Relaxed);
        place.cost_bytes_max.store(0, Ordering::Relaxed);
        place.clear_amounts();
    }

    /// What the living processes cost together, by their last word.
    pub fn cost_bytes(&self) -> u64 {
        self.used_processes().map(|place| place.cost_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Does `cost_bytes` of a living process count in full what it shares with another?
    pub fn sharing_is_unknown(&self) -> bool {
        self.used_processes().any(|place| {
            place.cost_bytes.load(Ordering::Relaxed) != 0
                && place.sharing_unknown.load(Ordering::Relaxed) != 0
        })
    }

    /// What a process that has ended shared is paid by its relatives from then on. Its account stands for
    /// that until all of them have measured what they share.
    fn is_inherited(&self, dead: &Process) -> bool {
        let now = time::monotonic_ns();
        let heirs = |gone_ns| {
            self.used_processes().filter(move |heir| {
                let measured_ns = heir.measured_ns.load(Ordering::Relaxed);
                measured_ns != 0 && measured_ns < gone_ns && !ptr::eq(*heir, dead)
            })
        };
        let set = dead.gone_ns.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let Err(gone_ns) = set else {
            self.last_gone_ns.fetch_max(now, Ordering::Relaxed);
            self.parted_pages.fetch_add(PARTED_BY_END, Ordering::Relaxed);
            heirs(now).for_each(Process::wake_agent);
            return heirs(now).next().is_some();
        };
        // Nobody measures while a process is on its way out.
        let most = if self.used_processes().any(Process::ends) {
            ENDING_NS_MAX
        } else {
            INHERITANCE_NS_MAX
        };
        now < gone_ns + most && heirs(gone_ns).next().is_some()
    }

    /// Clears what processes that have ended held, but for this one. Asks the kernel about each:
    /// not for hot paths.
    pub fn bury_the_dead(&self, but_for: u32) {
        if !is_due(&self.buried_ns, BURY_NS) {
            return;
        }
        for place in self.used_processes() {
            let amounts = [&place.cost_bytes, &place.claim_bytes];
            if place.pid.load(Ordering::Relaxed) != but_for
                && amounts.iter().any(|amount| amount.load(Ordering::Relaxed) != 0)
                && place.dead_pid().is_some()
                && !place.agent_ends()
                && !self.is_inherited(place)
            {
                place.clear_amounts();
            }
        }
    }

    /// Brings all pages back and takes none from now on, or ends that. Returns which.
    pub fn toggle_bringing_back(&self) -> bool {
        let brings_back = !self.brings_back.fetch_not(Ordering::Relaxed);
        self.used_processes().for_each(Process::wake_agent);
        brings_back
    }

    /// For who wants to wake the agents of all processes: not again before this time is over.
    pub fn may_wake_all(&self, rest_ns: u64) -> bool {
        is_due(&self.all_woken_ns, rest_ns)
    }

    /// Asks for processors that do not fall asleep before this time.
    pub fn keep_awake(&self, until_ns: u64) {
        self.awake_until_ns.store(until_ns, Ordering::SeqCst);
        if self.keeper_sleeps.swap(0, Ordering::SeqCst) == 1 {
            let _ = futex::wake(&self.keeper_sleeps, futex::Flags::empty(), u32::MAX);
        }
    }

    /// Until when processors are to be kept awake.
    pub fn awake_until_ns(&self) -> u64 {
        self.awake_until_ns.load(Ordering::SeqCst)
    }

    /// Sleeps until somebody asks for processors that are awake (or for no reason).
    pub fn wait_to_keep_awake(&self, now_ns: u64) {
        self.keeper_sleeps.store(1, Ordering::SeqCst);
        if self.awake_until_ns() <= now_ns {
            // Woken or interrupted: the caller looks again.
            let _ = futex::wait(&self.keeper_sleeps, futex::Flags::empty(), 1, None);
        }
        self.keeper_sleeps.store(0, Ordering::SeqCst);
    }

    /// An agent has become active, or has something to do after a quiet time.
    pub fn note_activity(&self) {
        self.activity.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.activity, futex::Flags::empty(), u32::MAX);
    }

    /// How often that was noted.
    pub fn activity(&self) -> u32 {
        self.activity.load(Ordering::Acquire)
    }

    /// Sleeps until it was noted more often than `seen`, for so long at most where that is said.
    pub fn wait_for_activity(&self, seen: u32, patience: Option<Duration>) {
        let patience = patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        // Woken or interrupted: the caller looks again.
        let _ = futex::wait(&self.activity, futex::Flags::empty(), seen, patience.as_ref());
    }

    /// Leaves a line for the launcher to show. More than it has room for is dropped.
    pub fn say(&self, once: Once, text: fmt::Arguments<'_>) {
        if self.said.fetch_or(once as u32, Ordering::Relaxed) & once as u32 != 0 {
            return;
        }
        let Some(message) = self.messages.iter().find(|message| {
            message.state.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }) else {
            return;
        };
        let mut line = Line { bytes: [0; MESSAGE_BYTES], length: 0 };
        // A line that is too long is cut; there is nobody to tell.
        let _ = line.write_fmt(text);
        let (words, _) = line.bytes.as_chunks::<8>();
        for (to, word) in message.text.iter().zip(words) {
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        message.length.store(line.length as u32, Ordering::Relaxed);
        message.state.store(2, Ordering::Release);
        self.message_count.fetch_add(1, Ordering::Release);
        self.wake_messenger();
    }

    /// Was something of this kind said?
    pub fn has_said(&self, once: Once) -> bool {
        self.said.load(Ordering::Relaxed) & once as u32 != 0
    }

    /// Somebody else has said it.
    pub fn note_said(&self, once: Once) {
        self.said.fetch_or(once as u32, Ordering::Relaxed);
    }

    /// Sleeps until there are more messages than `seen` counted.
    pub fn wait_for_message(&self, seen: u32) {
        // Woken or interrupted: the caller looks again.
        let _ = futex::wait(&self.message_count, futex::Flags::empty(), seen, None);
    }

    /// Wakes who waits for messages.
    pub fn wake_messenger(&self) {
        let _ = futex::wake(&self.message_count, futex::Flags::empty(), u32::MAX);
    }

    /// Hands every message that was not yet shown to `show`.
    pub fn take_messages(&self, mut show: impl FnMut(&[u8])) {
        for message in &self.messages {
            let taken = message.state.compare_exchange(2, 3, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_err() {
                continue;
            }
            let mut bytes = [0; MESSAGE_BYTES];
            let (words, _) = bytes.as_chunks_mut::<8>();
            for (to, word) in words.iter_mut().zip(&message.text) {
                *to = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            let length = message.length.load(Ordering::Relaxed) as usize;
            show(&bytes[..length.min(MESSAGE_BYTES)]);
        }
    }
}

/// Between two looks for processes that have ended: each opens files, whose memory the kernel frees later.
const BURY_NS: u64 = 1_000_000;
/// How long what a process has shared is thought to be its own after its end at most.
const INHERITANCE_NS_MAX: u64 = 20_000_000;
/// The same while other processes end.
const ENDING_NS_MAX: u64 = 1_000_000_000;

/// The name of an agent's process.
pub const AGENT_NAME: &CStr = c"ramfold-agent";

/// A session made by the launcher, which keeps the file that agents find it by.
pub struct OwnedSession {
    file: OwnedFd,
    memory: NonNull<Session>,
}

// SAFETY: the session is atomics only.
unsafe impl Send for OwnedSession {}
// SAFETY: as above.
unsafe impl Sync for OwnedSession {}

impl OwnedSession {
    /// Makes a session with this cap. Only processes of this user can reach it, through this
    /// process.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn create(memory_cap_bytes: u64, codec: Choice) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"ramfold-session", flags)?;
        ftruncate(&file, size_of::<Session>() as u64)?;
        // Whoever maps it can rely on its length.
        fcntl_add_seals(&file, SEALS)?;
        let mut key = [0; 8];
        getrandom(&mut key, GetRandomFlags::empty())?;
        // SAFETY: the file is as long as the session, and zeroed.
        let memory = unsafe { Session::map(&file) }?;
        let session = OwnedSession { file, memory };
        session.memory_cap_bytes.store(memory_cap_bytes, Ordering::Relaxed);
        session.target_bytes.store(memory_cap_bytes, Ordering::Relaxed);
        let reserve_bytes = (memory_cap_bytes / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX);
        session.reserve_bytes.store(reserve_bytes, Ordering::Relaxed);
        session.codec.store(u32::from(codec.number()), Ordering::Relaxed);
        session.recompress_after_ns.store(RECOMPRESS_AFTER_NS, Ordering::Relaxed);
        session.key.store(u64::from_ne_bytes(key), Ordering::Relaxed);
        session.magic.store(SESSION_MAGIC, Ordering::Release);
        Ok(session)
    }

    /// Draws the key that the spill file is encrypted with. It stays in RAM, where that is permitted.
    ///
    /// # Errors
    /// What getrandom(2) says.
    pub fn draw_spill_key(&self) -> Result<(), Errno> {
        let words = &self.spill.key;
        // Otherwise it may go to the machine's swap, as the program's own memory may.
        // SAFETY: locks memory that is mapped, and changes nothing.
        let _ = unsafe { mlock(words.as_ptr().cast_mut().cast(), size_of_val(words)) };
        for word in words {
            let mut bytes = [0; 8];
            getrandom(&mut bytes, GetRandomFlags::empty())?;
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The number of the file descriptor and the key, for [`SESSION_VARIABLE`].
    pub fn fd_and_key(&self) -> (i32, u64) {
        (self.file.as_raw_fd(), self.key.load(Ordering::Relaxed))
    }
}

impl core::ops::Deref for OwnedSession {
    type Target = Session;
    fn deref(&self) -> &Session {
        // SAFETY: mapped for as long as this lives, and every value is valid.
        unsafe { self.memory.as_ref() }
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and is not used again.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<Session>()) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Process {
    /// The number of a process that is dead, or of one that was to be the parent of a child and died before
    /// that was made. A child that was made speaks for itself, but may have to wait for a processor first.
    fn dead_pid(&self) -> Option<u32> {
        let pid = self.pid.load(Ordering::Acquire);
        let lives = match self.agent_lives.owner() {
            _ if pid == TAKEN => true,
            Owner::Alive => true,
            Owner::Left | Owner::Died => false,
            Owner::Nobody => {
                let taken_ns = self.taken_ns.load(Ordering::Acquire);
                let is_new = || time::monotonic_ns().saturating_sub(taken_ns) < SILENT_NS;
                // Of a child that is not there yet its parent's number is known; in another namespace
                // the number says nothing.
                let is_known = pid & UNBORN == 0
                    && self.pid_namespace.load(Ordering::Relaxed) == proc::pid_namespace();
                is_alive(pid) || pid != u32::MAX && !is_known && is_new()
            }
        };
        (!lives).then_some(pid)
    }

    /// Its agent has left, and its memory is not known to be free.
    pub fn ends(&self) -> bool {
        matches!(self.agent_lives.owner(), Owner::Left | Owner::Died)
            && self.cost_bytes.load(Ordering::Relaxed) > 0
            && self.gone_ns.load(Ordering::Relaxed) == 0
    }

    /// The agent's process has left and is still there: the memory of the program that it shares is being
    /// freed.
    fn agent_ends(&self) -> bool {
        let agent = self.agent_pid.load(Ordering::Relaxed);
        agent != 0
            && self.pid_namespace.load(Ordering::Relaxed) == proc::pid_namespace()
            && proc::has_ended(agent) == Ok(false)
            // Its number may be somebody else's by now.
            && proc::is_named(agent, AGENT_NAME.to_bytes()) == Ok(true)
    }

    fn is_of(&self, pid: u32, namespace: u64) -> bool {
        self.pid.load(Ordering::Acquire) == pid
            && self.pid_namespace.load(Ordering::Relaxed) == namespace
    }

    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire)
    }

    /// The place is somebody's from now on, who has not started an agent yet.
    fn begin(&self, namespace: u64) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        self.pid_namespace.store(namespace, Ordering::Relaxed);
        self.taken_ns.store(time::monotonic_ns(), Ordering::Release);
        self.agent_pid.store(0, Ordering::Relaxed);
        self.measured_ns.store(0, Ordering::Relaxed);
        self.gone_ns.store(0, Ordering::Relaxed);
        self.agent_lives.reset();
    }

    /// Takes the place for a process, if it is still that of the one `before`.
    fn becomes(&self, pid: u32, before: u32) -> bool {
        self.pid.compare_exchange(before, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// It holds nothing (any more).
    fn clear_amounts(&self) {
        for amount in [
            &self.cost_bytes,
            &self.shared_bytes,
            &self.page_table_bytes,
            &self.claim_bytes,
            &self.pool_used_bytes,
            &self.pool_reserve_bytes,
            &self.pool_fragmentation_bytes,
            &self.pool_total_bytes,
            &self.pool_spans,
            &self.metadata_bytes,
            &self.staging_bytes,
            &self.pages_staging,
            &self.compressed_bytes,
            &self.pages_stored,
            &self.pages_in_spill,
            &self.spill_bytes,
            &self.spill_queue_bytes,
            &self.spill_reads_under_way,
        ] {
            amount.store(0, Ordering::Relaxed);
        }
        self.sharing_unknown.store(0, Ordering::Relaxed);
        self.measured_ns.store(0, Ordering::Relaxed);
        self.gone_ns.store(0, Ordering::Relaxed);
        self.stuck.store(false, Ordering::Relaxed);
    }

    /// Can its agent make room?
    pub fn can_reclaim(&self) -> bool {
        self.active.load(Ordering::Relaxed) == 1 && !self.stuck.load(Ordering::Relaxed)
    }

    /// Makes the agent of this process look at its account.
    pub fn wake_agent(&self) {
        self.wake.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.wake, futex::Flags::empty(), 1);
    }
}

/// Was what this speaks of done so long ago that it may be done again, by the caller?
fn is_due(done_ns: &AtomicU64, rest_ns: u64) -> bool {
    let (now, last) = (time::monotonic_ns(), done_ns.load(Ordering::Relaxed));
    now >= last + rest_ns
        && done_ns.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

fn is_alive(pid: u32) -> bool {
    // What is not born yet lives as long as its parent; a place that was given up is nobody's.
    let pid = if pid == u32::MAX { return false } else { pid & !UNBORN };
    ramfold_sys::proc::has_ended(pid).map_or_else(
        |_| {
            // Without /proc a process that was not waited for seems to live on.
            rustix::process::Pid::from_raw(pid as i32)
                .is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH))
        },
        |ended| !ended,
    )
}

/// Text in a fixed place.
struct Line {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Box<Session> {
        // SAFETY: atomics may be zero.
        unsafe { Box::<Session>::new_zeroed().assume_init() }
    }

    #[test]
    fn a_process_keeps_its_place_through_exec_and_the_dead_make_room() {
        let session = session();
        let me = std::process::id();
        let first = session.claim(me).unwrap();
        first.counters.faults.fetch_add(5, Ordering::Relaxed);
        first.cost_bytes.store(77, Ordering::Relaxed);
        assert_eq!(session.cost_bytes(), 77);
        let again = session.claim(me).unwrap();
        assert!(core::ptr::eq(first, again));
        assert_eq!(session.retired.faults.load(Ordering::Relaxed), 5);
        assert_eq!(again.counters.faults.load(Ordering::Relaxed), 0);
        assert_eq!(session.cost_bytes(), 0);
        // Fill all places with this living process's group, one of them with a dead one.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        let dead_pid = dead.id();
        dead.wait().unwrap();
        for (index, place) in session.processes.iter().enumerate().skip(1) {
            place.pid.store(if index == 7 { dead_pid } else { 1 }, Ordering::Relaxed);
        }
        let place = session.claim(4_000_000).unwrap();
        assert!(core::ptr::eq(place, &session.processes[7]));
        assert!(session.claim(4_000_001).is_none_or(|p| core::ptr::eq(p, &session.processes[7])));
    }

    #[test]
    fn a_segment_is_one_familys_until_all_of_it_have_given_it_back() {
        let session = session();
        session.spill.segment_count.store(70, Ordering::Relaxed);
        let (me, other) = (session.claim(std::process::id()).unwrap(), session.claim(1).unwrap());
        assert_eq!(session.claim_segment(me), Some(0));
        assert_eq!(session.claim_segment(other), Some(1));
        let child = session.prepare_child(me).unwrap();
        session.release_segment(me, 0);
        assert_eq!(session.claim_segment(other), Some(2), "the child has it still");
        session.adopt(child, 1);
        session.release_segment(child, 0);
        assert_eq!(session.claim_segment(me), Some(0));
        let all: Vec<u32> = std::iter::from_fn(|| session.claim_segment(me)).collect();
        assert_eq!(all, (3..70).collect::<Vec<u32>>());
        // What a dead process had is free again.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        other.pid.store(dead.id(), Ordering::Relaxed);
        let mut freed = [session.claim_segment(me), session.claim_segment(me)];
        freed.sort_unstable();
        assert_eq!(freed, [Some(1), Some(2)]);
        assert_eq!(session.claim_segment(me), None);
        assert_eq!(session.segments_of(child).count(), 0);
        assert!(session.segments_of(me).eq([0, 1, 2].into_iter().chain(3..70)));
        // One that was never made has nothing.
        let unborn = session.prepare_child(me).unwrap();
        session.release_segment(me, 5);
        assert_eq!(session.claim_segment(me), None);
        session.abandon(unborn);
        assert_eq!(session.claim_segment(me), Some(5));
    }

    #[test]
    fn children_that_are_made_at_the_same_time_have_places_of_their_own() {
        let session = session();
        session.spill.segment_count.store(64, Ordering::Relaxed);
        let mut parent = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let me = session.claim(parent.id()).unwrap();
        assert_eq!(session.claim_segment(me), Some(0));
        // The second is made before the first has come to say that it is there.
        let first = session.prepare_child(me).unwrap();
        assert_eq!(session.claim_segment(me), Some(1));
        session.release_segment(me, 0);
        let second = session.prepare_child(me).unwrap();
        assert!(!ptr::eq(first, second));
        assert!(session.segments_of(first).eq([0]) && session.segments_of(second).eq([1]));
        // Their parent dies meanwhile: what they have stays theirs.
        parent.kill().unwrap();
        parent.wait().unwrap();
        session.clear_segments_of_the_dead();
        assert_eq!(session.segments_of(me).count(), 0);
        assert!(session.segments_of(first).eq([0]) && session.segments_of(second).eq([1]));
        let other = session.claim(1).unwrap();
        assert!(!ptr::eq(other, first) && !ptr::eq(other, second));
        // But not for ever, if they were never made.
        first.taken_ns.store(0, Ordering::Relaxed);
        session.clear_segments_of_the_dead();
        assert_eq!(session.segments_of(first).count(), 0);
    }

    #[test]
    fn no_two_processes_have_a_segment() {
        let session = session();
        session.spill.segment_count.store(5000, Ordering::Relaxed);
        let claimed: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let session = &session;
                    scope.spawn(move || {
                        let place = session.processes.iter().find(|p| p.becomes(1, 0)).unwrap();
                        (0..1000).map(|_| session.claim_segment(place).unwrap()).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all: Vec<u32> = claimed.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4000);
    }

    #[test]
    fn a_message_of_a_kind_is_shown_once() {
        let session = session();
        session.say(Once::CapNotHeld, format_args!("over by {} MiB", 3));
        session.say(Once::CapNotHeld, format_args!("again"));
        session.say(Once::Other, format_args!("{}", "x".repeat(2 * MESSAGE_BYTES)));
        let mut seen = Vec::new();
        session.take_messages(|m| seen.push(String::from_utf8_lossy(m).into_owned()));
        assert_eq!(seen[0], "over by 3 MiB");
        assert_eq!(seen[1].len(), MESSAGE_BYTES);
        assert_eq!(seen.len(), 2);
        session.take_messages(|_| panic!("nothing is left"));
    }
}
