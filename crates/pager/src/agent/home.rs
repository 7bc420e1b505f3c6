//! The memory that is the agent's own: stacks, the agent itself, working memory of the codecs.

use core::ops::Range;
use core::ptr::{self};

use ramfold_sys::PAGE_SIZE;
use rustix::mm::{Advice, madvise};

use super::Agent;
use crate::session::Session;

pub(super) const STACK_BYTES: usize = 256 << 10;

/// More than a call into the kernel needs below the frame of its caller.
const STACK_KEPT_BYTES: usize = 1 << 10;

/// Stacks, in the order of [`Stack`]. A page that cannot be touched lies above each.
pub(super) const STACKS: usize = 5;

pub(super) const STACK_STRIDE: usize = STACK_BYTES + PAGE_SIZE;

pub(super) const AGENT_OFFSET: usize = STACKS * STACK_STRIDE;

/// One of the agent's stacks.
#[derive(Clone, Copy)]
pub(crate) enum Stack {
    Monitor = 0,
    Handler = 1,
    Fork = 2,
    Spill = 3,
    Watch = 4,
}

impl Agent {
    /// The stack for a purpose.
    pub(crate) fn stack(&self, stack: Stack) -> Range<*mut u8> {
        let home = ptr::from_ref(self).cast::<u8>().cast_mut().wrapping_sub(AGENT_OFFSET);
        let start = home.wrapping_add(stack as usize * STACK_STRIDE);
        start..start.wrapping_add(STACK_BYTES)
    }

    /// Working memory for the codecs. Memory that is never touched costs nothing.
    ///
    /// # Safety
    /// Each part is for one user at a time.
    pub(crate) unsafe fn codec_scratch(&self) -> CodecScratch {
        let mut start = ptr::from_ref(self)
            .cast::<u8>()
            .cast_mut()
            .wrapping_add(size_of::<Agent>().next_multiple_of(PAGE_SIZE));
        let mut part = |bytes: usize| {
            let part = start;
            start = start.wrapping_add(bytes);
            // SAFETY: `start` reserved all parts behind the agent; the caller keeps users apart.
            unsafe { core::slice::from_raw_parts_mut(part, bytes) }
        };
        CodecScratch {
            monitor: CompressScratch {
                compress: part(compress_scratch_bytes(self.session())),
                decompress: part(DECOMPRESS_SCRATCH_BYTES),
            },
            direct: CompressScratch {
                compress: part(compress_scratch_bytes(self.session())),
                decompress: &mut [],
            },
            decompress: part(DECOMPRESS_SCRATCH_BYTES),
        }
    }

    /// Gives the pages of a range back to the system: from then on they are zeros. The range lies
    /// in the agent's own memory, and nobody relies on what it holds.
    pub(crate) fn give_back(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE_SIZE);
        let end = range.end & !(PAGE_SIZE - 1);
        if start < end {
            let home = self.home_range();
            assert!(home.start <= start && end <= home.end, "the agent's own memory");
            // What the program has locked (mlockall) stays, and costs what it costs.
            // SAFETY: by the caller's word.
            let _ = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
        }
    }

    /// The same for what the calling thread's stack has held below its present end. Not inlined:
    /// the frame that is looked at must be the lowest.
    #[inline(never)]
    pub(crate) fn give_back_stack(&self, stack: Stack) {
        let here = 0u8;
        let end = (&raw const here as usize).saturating_sub(STACK_KEPT_BYTES);
        let stack = self.stack(stack);
        if (stack.start as usize..stack.end as usize).contains(&end) {
            self.give_back(stack.start as usize..end);
        }
    }

    /// Is this mapping the agent's own? Such memory is never registered.
    pub(crate) fn owns(&self, range: &Range<usize>) -> bool {
        let overlaps = |own: &Range<usize>| range.start < own.end && own.start < range.end;
        overlaps(&(self.home_start..self.home_end))
            || overlaps(&crate::entry::library_range())
            || self.active().is_some_and(|active| {
                let store = active.store.memory_ranges();
                overlaps(&active.staging_memory.guarded_range())
                    || overlaps(&store.pool)
                    || store.metadata.iter().any(overlaps)
                    || active.spill.as_ref().is_some_and(|spill| spill.owns(overlaps))
            })
    }

    /// Address ranges of the agent outside pool and staging: what counts as metadata.
    pub(crate) fn home_range(&self) -> Range<usize> {
        self.home_start + PAGE_SIZE..self.home_end - PAGE_SIZE
    }
}

/// Working memory for what the monitor reclaims with, for what the handler does in direct reclaim,
/// and for what it decompresses with.
pub(crate) struct CodecScratch {
    pub monitor: CompressScratch,
    pub direct: CompressScratch,
    pub decompress: &'static mut [u8],
}

/// Working memory for compression, and for decompressing what is only compared.
pub(crate) struct CompressScratch {
    pub compress: &'static mut [u8],
    pub decompress: &'static mut [u8],
}

pub(super) const DECOMPRESS_SCRATCH_BYTES: usize =
    ramfold_codec::MAX_DECOMPRESS_SCRATCH_BYTES.next_multiple_of(PAGE_SIZE);

pub(super) fn compress_scratch_bytes(session: &Session) -> usize {
    session.codec().scratch_bytes().next_multiple_of(PAGE_SIZE)
}
