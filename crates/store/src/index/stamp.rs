//! Stamps: when an object was last stored in a leaf.

use core::sync::atomic::Ordering;

use ramfold_codec::encodings::WORD;

use super::Index;
use super::entry::Content;
use super::leaves::LeafId;

/// What is known of the objects of a leaf: the age in which one was last stored; whether one that
/// fills a page has been stored since the leaf was found to have none; and whether all have been
/// recompressed and none has been stored since. 0: the leaf has no object in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp(u32);

impl Stamp {
    /// Of a leaf without an object in the pool.
    pub(crate) const NOTHING: Stamp = Stamp(0);
    const RAW: u32 = 1;
    const DENSE: u32 = 2;
    const CLOCK_SHIFT: u32 = 2;
    /// The clock goes on at 1 after this.
    const CLOCK_MAX: u32 = u32::MAX >> Stamp::CLOCK_SHIFT;

    fn new(clock: u32, has_raw: bool) -> Stamp {
        Stamp(clock << Stamp::CLOCK_SHIFT | if has_raw { Stamp::RAW } else { 0 })
    }

    /// Whether an object of the leaf may fill a page.
    pub(crate) fn has_raw(self) -> bool {
        self.0 & Stamp::RAW != 0
    }

    pub(crate) fn without_raw(self) -> Stamp {
        Stamp(self.0 & !Stamp::RAW)
    }

    /// Whether all objects of the leaf have been recompressed.
    pub(crate) fn is_dense(self) -> bool {
        self.0 & Stamp::DENSE != 0
    }

    pub(crate) fn not_dense(self) -> Stamp {
        Stamp(self.0 & !Stamp::DENSE)
    }

    pub(crate) fn as_dense(self) -> Stamp {
        Stamp(self.0 | Stamp::DENSE)
    }

    /// Ages since the last object was stored.
    pub(crate) fn age(self, now: u32) -> u32 {
        now.wrapping_sub(self.0 >> Stamp::CLOCK_SHIFT) & Stamp::CLOCK_MAX
    }

    /// Whether the last object was stored before an age began.
    pub(crate) fn is_before(self, age: u32, now: u32) -> bool {
        self.age(now) > Stamp::new(age, false).age(now)
    }
}

impl Index {
    /// Begins a new age, and returns its number: what is stored from now on is stamped with it, or
    /// with a later one.
    pub(crate) fn begin_age(&self) -> u32 {
        let next = |clock: u32| Some(if clock >= Stamp::CLOCK_MAX { 1 } else { clock + 1 });
        match self.clock.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(before) | Err(before) => next(before).unwrap_or(1),
        }
    }

    /// The number of this age.
    pub(crate) fn age(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// The stamp of the leaf of this number; [`Stamp::NOTHING`] where there is none.
    pub(crate) fn stamp_of(&self, number: u32) -> Stamp {
        Stamp(self.leaves.stamp(number).map_or(0, |stamp| stamp.load(Ordering::Relaxed)))
    }

    /// Changes the stamp of a leaf after a look at its objects (none is in the pool, or none fills
    /// a page, or none can be made smaller), if the stamp is the same as before that look.
    pub(crate) fn change_stamp(&self, number: u32, seen: Stamp, to: Stamp) {
        if let Some(stamp) = self.leaves.stamp(number) {
            // If it fails an object was stored meanwhile, and the leaf is to be looked at again.
            let _ = stamp.compare_exchange(seen.0, to.0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Stamps a leaf, whose shard is locked, in which `content` is about to be stored. Only objects
    /// other than words count.
    #[inline]
    pub(super) fn stamp(&self, leaf: LeafId, content: &Content) {
        if let Content::Object { object, encoding } = content
            && *encoding != WORD
            && let Some(stamp) = self.leaves.stamp(leaf.number())
        {
            let before = Stamp(stamp.load(Ordering::Relaxed));
            let is_raw = object.as_ref().len() == crate::OBJECT_BYTES_MAX;
            let now = Stamp::new(self.age(), is_raw || before.has_raw());
            if now != before {
                stamp.store(now.0, Ordering::Relaxed);
            }
        }
    }
}
