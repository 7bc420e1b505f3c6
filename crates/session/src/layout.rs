//! The structures in the shared memory.
//!
//! All fields are atomics: every process of the session may write at any time. Zeroed memory is a
//! valid start of each structure.
//!
//! The fields that are counted in statistics come from [`crate::schema`], which expands the macros
//! here to the structures. They are macros so that these fields lie where the others of their kind
//! lie: what is read with every fault is apart from what is written all the time.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

use rustix::fs::SealFlags;

use crate::lent_file::LentFile;
use crate::segments::SegmentSet;

pub(crate) use crate::schema::{Counters, Process, Session};

/// Environment variable that leads an agent to its session: `PID:FD:KEY`. The launcher may have
/// ended long ago, and its number may be another process's: the key, 16 hexadecimal digits, tells.
pub const SESSION_VARIABLE: &str = "RAMFOLD_SESSION";

/// Changes with every change of the structures here: an agent refuses a session it does not know.
pub const SESSION_MAGIC: u64 = u64::from_le_bytes(*b"ramfold\x0d");

/// The file behind a session neither shrinks nor grows.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Processes that can be looked after at a time; more run without ramfold.
pub(crate) const PROCESSES_MAX: usize = 512;

/// The name of an agent's process.
pub const AGENT_NAME: &CStr = c"ramfold-agent";

/// Where the spill file is, and how it is divided: written by the launcher before the program
/// starts.
#[repr(C)]
pub struct SpillArea {
    /// Number of segments; 0: there is no file.
    pub segment_count: AtomicU64,
    /// Bytes of a segment.
    pub segment_bytes: AtomicU64,
    /// Bytes that all pools may take together before their oldest objects go to the file.
    pub pool_bytes: AtomicU64,
    /// The file.
    pub file: LentFile,
    /// What the file is encrypted with. Drawn at random; no other memory has it.
    pub key: [AtomicU64; 4],
    /// Counts writes of segments, by all processes.
    pub sequence: AtomicU64,
    /// Segments that a process may have for which there was no place: they are never used again.
    pub(crate) pinned: SegmentSet,
}

/// [`Counters`], of the names and descriptions of all counters.
macro_rules! counters {
    ($($counter:ident $help:literal)*) => {
        /// Totals that only grow.
        #[repr(C)]
        pub struct Counters { $(#[doc = $help] pub $counter: AtomicU64,)* }

        impl Counters {
            /// Moves everything counted here to `other`.
            pub(crate) fn drain_into(&self, other: &Counters) {
                $(
                    let count = self.$counter.swap(0, Ordering::Relaxed);
                    other.$counter.fetch_add(count, Ordering::Relaxed);
                )*
            }
        }
    };
}

/// [`Process`], of the names and descriptions of all gauges.
macro_rules! process {
    ($($gauge:ident $help:literal)*) => {
        /// The account of one process: a place in the session.
        #[repr(C)]
        pub struct Process {
            /// The process's number. Zero: the place is free. The process may have ended; its
            /// numbers stay until the place is taken again.
            pub pid: AtomicU32,
            /// In which pid_namespaces(7) the numbers here count.
            pub(crate) pid_namespace: AtomicU64,
            /// When the place was taken (CLOCK_MONOTONIC).
            pub(crate) taken_ns: AtomicU64,
            /// How often the place was taken. An agent of an earlier turn, whose program has
            /// executed another before the agent began, must not use it.
            pub(crate) turn: AtomicU32,
            /// The agent's process.
            pub agent_pid: AtomicU32,
            /// Whether the agent lives: as long as it does this account counts.
            pub agent_lives: OwnedWord,
            /// 1 from when the agent looks after memory (its ranges are registered).
            pub active: AtomicU32,
            /// Reclaim found nothing more to take here: nobody need wait for it.
            pub stuck: AtomicBool,
            /// Futex: raised to make the agent look at its account at once.
            pub wake: AtomicU32,
            /// When what the process shares was last measured; 0 where it shares nothing.
            pub measured_ns: AtomicU64,
            /// When the process was first seen to have ended; 0 before.
            pub(crate) gone_ns: AtomicU64,
            /// 1 from a fork until it is measured what is shared: until then `cost_bytes` counts
            /// what is shared in full.
            pub sharing_unknown: AtomicU32,
            /// What `cost_bytes` can come to before the process asks for more.
            pub claim_bytes: AtomicU64,
            $(#[doc = $help] pub $gauge: AtomicU64,)*
            /// Segments of the spill file that this process has, alone or with relatives.
            pub(crate) segments: SegmentSet,
            /// The number of this process among those that watch pages; 0: it does not.
            pub watch_number: AtomicU32,
            /// What happened in this process.
            pub counters: Counters,
            /// Nanoseconds from reading a fault's message to having answered it.
            pub fault_ns: Histogram,
        }

        impl Process {
            /// All amounts of memory.
            pub(crate) fn gauges(&self) -> impl Iterator<Item = &AtomicU64> {
                [$(&self.$gauge),*].into_iter()
            }
        }
    };
}

/// [`Session`], of the names and descriptions of the metrics that it has itself: limits, which the
/// launcher sets, and totals and maxima over all processes, which agents keep.
macro_rules! session {
    (
        limits { $($limit:ident $limit_help:literal)* }
        totals { $($total:ident $total_help:literal)* }
    ) => {
        /// The shared memory.
        #[repr(C)]
        pub struct Session {
            /// [`SESSION_MAGIC`](crate::SESSION_MAGIC).
            pub magic: AtomicU64,
            /// Drawn at random for each session.
            pub key: AtomicU64,
            $(#[doc = $limit_help] pub $limit: AtomicU64,)*
            /// All pages are brought back and none is taken, whatever the cap: somebody wants to
            /// look at them.
            pub brings_back: AtomicBool,
            /// Bytes of the cap that resident pages do not get, whether or not the pools need
            /// them: a fixed split, for experiments. Zero: pools take what they need.
            pub pool_kept_bytes: AtomicU64,
            /// Bytes that each pool keeps ready, so that compressing a page needs no memory from
            /// the system.
            pub reserve_bytes: AtomicU64,
            /// As [`Choice::number`] makes it.
            pub(crate) codec: AtomicU32,
            /// Pages that were not touched for so long are compressed even where there is room
            /// for them; zero: never.
            pub cold_after_ns: AtomicU64,
            /// How much of the time faults may take then, in millionths.
            pub slowdown_ppm: AtomicU64,
            /// Objects whose pages have been out for so long are compressed once more, for
            /// density.
            pub recompress_after_ns: AtomicU64,
            /// Bits of [`Once`](crate::Once).
            pub(crate) said: AtomicU32,
            /// Futex: counts messages.
            pub(crate) message_count: AtomicU32,
            /// An agent has turned off huge pages for its process, which what that process
            /// executes inherits.
            pub huge_pages_off: AtomicU32,
            /// Until when (CLOCK_MONOTONIC, nanoseconds) processors are to be kept awake.
            pub(crate) awake_until_ns: AtomicU64,
            /// Futex: 1 while the thread sleeps that keeps processors awake.
            pub(crate) keeper_sleeps: AtomicU32,
            /// Futex: raised when an agent becomes active, or has something to do after a quiet
            /// time.
            pub(crate) activity: AtomicU32,
            /// When a process was last seen to have ended that others may have shared memory
            /// with.
            pub last_gone_ns: AtomicU64,
            /// Pages that forks shared and that may be one process's own now, as far as that is
            /// seen: some were copied, and some processes have ended.
            pub parted_pages: AtomicU64,
            /// When places of processes that have ended were last looked for.
            pub(crate) buried_ns: AtomicU64,
            /// When all agents were last woken to make room.
            pub(crate) all_woken_ns: AtomicU64,
            $(#[doc = $total_help] pub $total: AtomicU64,)*
            /// The spill file.
            pub spill: SpillArea,
            pub(crate) messages: [Message; MESSAGES_MAX],
            /// What processes counted whose places were taken again.
            pub retired: Counters,
            /// What they recorded in [`Process::fault_ns`].
            pub(crate) retired_fault_ns: Histogram,
            pub(crate) processes: [Process; PROCESSES_MAX],
            /// For the trace of one process's objects. Without a trace it is address space only.
            pub object_ring: ObjectRing,
            /// For what is seen of watched pages. Where none is, it is address space only.
            pub watch: WatchArea,
        }
    };
}

pub(crate) use {counters, process, session};
