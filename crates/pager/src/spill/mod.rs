//! The spill file: where the oldest objects go when the pool has grown too large, and pages that do
//! not compress.
//!
//! The launcher makes the file and lends it to all processes of the session (crates/session); which
//! of its segments are whose is in the session too. In each process a thread writes (`writer.rs`),
//! and the fault handler reads (`reads.rs`), which goes on with other faults meanwhile.

mod claims;
mod reads;
mod writer;

use core::sync::atomic::Ordering;

use ramfold_store::{KEY_BYTES, SpillCipher, SpillMemory, SpillShape};
use ramfold_sys::file::DirectFile;
use ramfold_sys::mem::Reservation;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::fd::{AsFd, AsRawFd};

use crate::agent::{Active, Agent};
use crate::cost;
use crate::session::{Once, Session};

pub(crate) use reads::Reads;
#[cfg(test)]
pub(crate) use writer::{make, write};
pub(crate) use writer::{thread_main, wake_if_wanted};

/// The encoding of a page that is stored as it is.
pub(crate) const RAW: u8 = ramfold_codec::encodings::RAW;

/// Pages that do not compress may wait in this part of the cap, 1 / this, where all others do; and
/// in this part where no others do.
const RAW_SHARE_MOST: u64 = 16;
const RAW_SHARE_LEAST: u64 = 64;

/// What a process needs to use the spill file.
pub(crate) struct SpillAccess {
    pub file: DirectFile,
    cipher: SpillCipher,
    /// For the thread that writes.
    memory: SpillMemory,
    /// For the handler, and for a child that is filled.
    buffers: Reservation,
}

impl SpillAccess {
    /// Opens the session's spill file; `None` where there is none, or (which is said) where it
    /// cannot be had.
    pub(crate) fn open(agent: &Agent) -> Option<SpillAccess> {
        let session = agent.session();
        let segment_bytes = shape(session)?.segment_bytes;
        // Others would not know what it has there.
        if !session.lists(agent.process()) {
            return None;
        }
        let opened = open_file(agent, None).and_then(|file| {
            let memory = SpillMemory::new(segment_bytes)?;
            let buffers = Reservation::new(reads::BUFFERS_BYTES)?;
            buffers.commit(0, buffers.len())?;
            Ok(SpillAccess { file, cipher: SpillCipher::new(&key(session)), memory, buffers })
        });
        match opened {
            Ok(access) => Some(access),
            Err(errno) => {
                session.say(
                    Once::SpillFailed,
                    format_args!("goes on without --spill: the file cannot be opened: {errno}"),
                );
                None
            }
        }
    }

    /// Is this memory of its own?
    pub(crate) fn owns(&self, overlaps: impl Fn(&core::ops::Range<usize>) -> bool) -> bool {
        overlaps(&self.memory.range()) || overlaps(&self.buffers.guarded_range())
    }

    /// Addresses of what it has of its own, without the guard pages.
    pub(crate) fn memory_ranges(&self) -> [core::ops::Range<usize>; 2] {
        [self.memory.range(), self.buffers.guarded_range()]
            .map(|range| range.start + PAGE_SIZE..range.end - PAGE_SIZE)
    }
}

/// Why a page could not be read from the spill file.
#[derive(Debug)]
pub(crate) enum ReadError {
    NotOpen,
    System(Errno),
    Spill(ramfold_store::SpillError),
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReadError::NotOpen => f.write_str("it is in the spill file, which is not open"),
            ReadError::System(errno) => write!(f, "cannot read it from the spill file: {errno}"),
            ReadError::Spill(error) => error.fmt(f),
        }
    }
}

/// How the session's spill file is divided; `None` if it has none.
pub(crate) fn shape(session: &Session) -> Option<SpillShape> {
    let count = session.spill.segment_count.load(Ordering::Relaxed) as usize;
    let segment_bytes = session.spill.segment_bytes.load(Ordering::Relaxed) as usize;
    (count > 0).then_some(SpillShape { segment_bytes, segment_count_max: count })
}

/// Opens the file: as the launcher has it or, where that is gone, a forked child's parent.
///
/// # Errors
/// What open(2) says, or `ESTALE` if it is another file.
pub(crate) fn open_file(agent: &Agent, parent: Option<(u32, i32)>) -> Result<DirectFile, Errno> {
    agent.session().spill.file.open(parent)
}

/// By which number a thread of ours has the file open.
pub(crate) fn fd_of(active: &Active) -> Option<i32> {
    active.spill.as_ref().map(|access| access.file.as_fd().as_raw_fd())
}

/// Bytes of the pool that are about to leave for the spill file, so that nothing need be taken out
/// for them.
pub(crate) fn leaving_bytes(agent: &Agent) -> u64 {
    match agent.active() {
        Some(active) if agent.spill_work.works() => {
            (active.store.raw_bytes() as u64).saturating_sub(kept_raw_bytes(agent))
        }
        _ => 0,
    }
}

/// How much of the pool is for pages that do not compress. They save nothing there; but one that is
/// asked for again soon comes back without the disk, and those that are not are told from it by
/// that. The fewer they are among what is taken, the longer they stay.
fn kept_raw_bytes(agent: &Agent) -> u64 {
    if agent.hints.outruns() {
        return 0;
    }
    let counters = &agent.process().counters;
    let load = |count: &core::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (raw, all) = (load(&counters.pages_raw), load(&counters.pages_swapped_out).max(1));
    let cap = cost::watermarks(agent.session()).cap;
    let most = cap / RAW_SHARE_MOST;
    most - (most - cap / RAW_SHARE_LEAST) * raw.min(all) / all
}

fn key(session: &Session) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    for (bytes, word) in key.as_chunks_mut::<8>().0.iter_mut().zip(&session.spill.key) {
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    key
}
