//! Compresses a page for an objective, and now and then for both, to compare.

use ramfold_codec::{DoesNotFit, Encoding, Objective, Page, same_filled};
use ramfold_policy::memory::objective::Outcome;
use ramfold_store::Denser;
use ramfold_sys::PAGE_SIZE;

use super::Reclaimer;
use crate::agent::Active;
use crate::kernel::time;
use crate::staging::{CHUNK_PAGES, Slot};

/// An object larger than this saves too little to be worth its trouble: the page stays.
pub(super) const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;

/// Place of the object that is only compared, behind a chunk's.
pub(super) const OTHER_START: usize = CHUNK_PAGES * OBJECT_BYTES_MAX;

/// Bytes that an object must spare when it is compressed once more: it takes longer to load.
const RECOMPRESSED_BYTES_MIN: usize = 128;

/// What a page has become.
#[derive(Clone, Copy)]
pub(super) enum Compressed {
    SameFilled(u64),
    /// Where it starts in the objects of [`ReclaimBuffers`](super::ReclaimBuffers), and its length.
    Object(Encoding, usize, usize),
    DoesNotFit,
}

impl Compressed {
    /// Bytes that the page takes so; one that does not fit takes all of its own.
    pub(super) fn length(self) -> usize {
        match self {
            Compressed::SameFilled(_) => 0,
            Compressed::Object(_, _, length) => length,
            Compressed::DoesNotFit => PAGE_SIZE,
        }
    }
}

impl Reclaimer {
    /// Compresses the page in a slot, which is this thread's, to an object that starts there.
    pub(super) fn compress(
        &mut self,
        active: &'static Active,
        slot: Slot,
        objective: Objective,
        start: usize,
    ) -> Compressed {
        // SAFETY: the slot was live; the frame stays until this thread frees the chunk, even if
        // the program asks for the page meanwhile.
        let page: &Page = unsafe { active.slot_page(slot) };
        if let Some(word) = same_filled(page) {
            return Compressed::SameFilled(word);
        }
        self.compress_page(page, objective, start)
    }

    fn compress_page(&mut self, page: &Page, objective: Objective, start: usize) -> Compressed {
        let object = &mut self.buffers.objects[start..start + OBJECT_BYTES_MAX];
        match self.codec.compress(page, objective, object) {
            Ok((encoding, length)) => Compressed::Object(encoding, start, length),
            Err(DoesNotFit) => Compressed::DoesNotFit,
        }
    }

    /// Compresses the page in a slot for an objective, then for the other, and decompresses both.
    /// Returns what it became, and what came of it for speed and for density.
    pub(super) fn compare(
        &mut self,
        active: &'static Active,
        slot: Slot,
        objective: Objective,
        start: usize,
    ) -> (Compressed, [Outcome; 2]) {
        let started = time::monotonic_ns();
        let one = self.compress(active, slot, objective, start);
        let one_ns = time::monotonic_ns() - started;
        if let Compressed::SameFilled(_) = one {
            return (one, [Outcome::default(); 2]);
        }
        // SAFETY: as in `compress`.
        let page: &Page = unsafe { active.slot_page(slot) };
        let other_objective = match objective {
            Objective::Speed => Objective::Density,
            Objective::Density => Objective::Speed,
        };
        let started = time::monotonic_ns();
        let other = self.compress_page(page, other_objective, OTHER_START);
        let other_ns = time::monotonic_ns() - started;
        let [one_outcome, other_outcome] =
            [(one, one_ns), (other, other_ns)].map(|(compressed, compress_ns)| Outcome {
                bytes: compressed.length(),
                compress_ns,
                decompress_ns: self.decompress(page, compressed),
            });
        match objective {
            Objective::Speed => (one, [one_outcome, other_outcome]),
            Objective::Density => (one, [other_outcome, one_outcome]),
        }
    }

    /// How long it takes to make the page again.
    pub(super) fn decompress(&mut self, page: &Page, compressed: Compressed) -> u64 {
        let (Compressed::Object(encoding, start, length), Some(decompressor)) =
            (compressed, self.decompressor.as_mut())
        else {
            return 0;
        };
        let object = &self.buffers.objects[start..start + length];
        let started = time::monotonic_ns();
        let result = decompressor.decompress(encoding, object, &mut self.buffers.back);
        let took = time::monotonic_ns() - started;
        if result.is_err() || self.buffers.back != *page {
            self.agent.fail(format_args!("a page compressed by {encoding:?} cannot be made again"));
        }
        took
    }
}

/// The monitor's, which alone can compare: others have no decompressor, and leave all as it is.
impl Denser for Reclaimer {
    fn applies_to(&self, encoding: u8) -> bool {
        let speed = |encoding| Objective::of(encoding) == Some(Objective::Speed);
        Encoding::try_from(encoding).is_ok_and(speed)
    }

    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
        let (Ok(encoding), Some(decompressor)) =
            (Encoding::try_from(encoding), self.decompressor.as_mut())
        else {
            return None;
        };
        // What cannot be made again is told to whoever loads it.
        decompressor.decompress(encoding, object, &mut self.buffers.back).ok()?;
        let other = &mut self.buffers.objects[OTHER_START..];
        let (encoding, length) =
            self.codec.compress(&self.buffers.back, Objective::Density, other).ok()?;
        let worth = length + RECOMPRESSED_BYTES_MIN <= object.len();
        worth.then(|| (encoding as u8, &self.buffers.objects[OTHER_START..OTHER_START + length]))
    }
}
