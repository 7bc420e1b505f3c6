//! Recompression: objects of pages that are not loaded for long are replaced by smaller ones, which
//! take longer to make and to load.
//!
//! A leaf is cold when no object was stored in it for a while. Its objects are tried one at a time:
//! an object is copied under its lock, compressed without it, and replaced if nothing was stored in
//! its leaf meanwhile. So no load waits for compression.

use ramfold_codec::encodings::WORD;

use crate::index::{Content, LEAF_ENTRIES, Stamp, View};
use crate::{Key, OBJECT_BYTES_MAX, Store};

/// After so many objects of a leaf that did not become smaller, and none that did, its others are
/// not tried: neighbours are mostly alike.
const MISSES_MAX: u32 = 4;

/// Makes objects smaller.
pub trait Denser {
    /// Whether objects under this encoding are tried.
    fn applies_to(&self, encoding: u8) -> bool;

    /// The encoding and the bytes of a smaller object of the same page; `None` where it is not
    /// worth replacing the old one.
    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])>;

    /// The objects of a cold group, whose first key this is, have been tried as far as it seemed
    /// worth it. Pages of it may be put together now ([`StoredWhen::AsBefore`]).
    fn put_together(&mut self, group: Key) -> Together {
        let _ = group;
        Together::Nothing
    }
}

/// What became of [`Denser::put_together`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// There was nothing to try.
    Nothing,
    /// Some pages were tried.
    Tried,
    /// There was no room: the group is to be tried again in the next round.
    NoRoom,
}

/// How one step of [`Recompression`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompressed {
    /// An object was tried, and stayed as it is; or pages of a group were put together.
    Stayed,
    /// An object was replaced.
    Replaced {
        /// Its length before.
        bytes_before: usize,
        /// Its length now.
        bytes_after: usize,
    },
    /// The round is over: all cold objects were tried, or the pool has no room.
    Round,
}

/// A walk over the objects of a store.
#[derive(Debug)]
pub struct Recompression {
    /// What was stored before this age began is cold.
    age: u32,
    /// The age that this round began with.
    began: u32,
    /// Leaf and entry to go on with.
    leaf: u32,
    entry: usize,
    /// The stamp of the leaf when the walk came to it, and how many of its objects did not become
    /// smaller and did.
    stamp: Stamp,
    misses: u32,
    hits: u32,
    /// Pages could not be put together in this round, for want of room.
    is_full: bool,
}

impl Recompression {
    /// A walk that has not begun.
    pub const START: Recompression = Recompression {
        age: 0,
        began: 0,
        leaf: u32::MAX,
        entry: 0,
        stamp: Stamp::NOTHING,
        misses: 0,
        hits: 0,
        is_full: false,
    };

    /// Begins a round. Leaves in which no object was stored since the last round began are cold; in
    /// the first round none is.
    pub fn begin_round(&mut self, store: &Store) {
        self.age = core::mem::replace(&mut self.began, store.index.begin_age());
        // There is no age before the first.
        self.leaf = if self.age == 0 { u32::MAX } else { 0 };
        (self.entry, self.is_full) = (0, false);
    }

    /// Goes on to the next leaf that may have objects to try; `false` if the round has no more.
    pub fn has_more(&mut self, store: &Store) -> bool {
        while self.leaf < store.index.leaf_numbers().end {
            if self.entry != 0 || self.enter(store) {
                return true;
            }
            self.leaf += 1;
        }
        false
    }

    /// Tries the next cold object.
    pub fn step(&mut self, store: &Store, with: &mut impl Denser) -> Recompressed {
        let mut copy = [0; OBJECT_BYTES_MAX];
        while self.has_more(store) {
            let Some(candidate) = self.next_in_leaf(store, with, &mut copy) else {
                match self.leave(store, with) {
                    Together::Nothing => continue,
                    Together::Tried | Together::NoRoom => return Recompressed::Stayed,
                }
            };
            let Some((encoding, object)) = with.denser(candidate.encoding, &copy[..candidate.len])
            else {
                self.misses += 1;
                return Recompressed::Stayed;
            };
            let bytes_after = object.len();
            return match self.replace(store, &candidate, encoding, object) {
                Some(true) => {
                    self.hits += 1;
                    Recompressed::Replaced { bytes_before: candidate.len, bytes_after }
                }
                Some(false) => Recompressed::Stayed,
                None => Recompressed::Round,
            };
        }
        Recompressed::Round
    }

    /// Comes to a leaf. Returns whether its objects are to be tried: it is cold, and they have not
    /// been.
    fn enter(&mut self, store: &Store) -> bool {
        self.stamp = store.index.stamp_of(self.leaf);
        (self.misses, self.hits) = (0, 0);
        self.stamp != Stamp::NOTHING
            && !self.stamp.is_dense()
            && self.stamp.is_before(self.age, store.index.age())
    }

    fn leave(&mut self, store: &Store, with: &mut impl Denser) -> Together {
        let group = store.index.group_from(self.leaf).filter(|&(_, next)| next == self.leaf + 1);
        let together = match group {
            // Objects of their own may still find room, and make some.
            Some(_) if self.is_full => Together::NoRoom,
            Some((group, _)) if store.index.stamp_of(self.leaf) == self.stamp => {
                with.put_together(group)
            }
            _ => Together::Nothing,
        };
        if together != Together::NoRoom {
            store.index.change_stamp(self.leaf, self.stamp, self.stamp.as_dense());
        }
        self.is_full |= together == Together::NoRoom;
        (self.leaf, self.entry) = (self.leaf + 1, 0);
        together
    }

    /// Copies the next object of the leaf.
    fn next_in_leaf(
        &mut self,
        store: &Store,
        with: &impl Denser,
        copy: &mut [u8; OBJECT_BYTES_MAX],
    ) -> Option<Candidate> {
        let hopeless = self.hits == 0 && self.misses >= MISSES_MAX;
        // An object that was stored meanwhile makes the leaf warm.
        if hopeless || store.index.stamp_of(self.leaf) != self.stamp {
            return None;
        }
        let mut candidate = None;
        store.index.visit_leaf(self.leaf, self.entry..LEAF_ENTRIES, |key, bits, view| {
            self.entry = key as usize % LEAF_ENTRIES + 1;
            if let View::Object { object, encoding } = view
                && encoding != WORD
                && with.applies_to(encoding)
                // A damaged object stays, so that the next load reports it.
                && let Some(bytes) = store.checked(key, encoding, object)
            {
                copy[..bytes.len()].copy_from_slice(bytes);
                candidate = Some(Candidate { key, bits, encoding, len: bytes.len() });
            }
            candidate.is_none()
        });
        candidate
    }

    /// Replaces an object; `Some(false)` if it is not there any more, `None` if the pool has no
    /// room.
    fn replace(
        &self,
        store: &Store,
        candidate: &Candidate,
        encoding: u8,
        object: &[u8],
    ) -> Option<bool> {
        let &Candidate { key, bits, .. } = candidate;
        let object = store.put_sealed(key, encoding, object).ok()?;
        Some(store.replace(key, bits, Some(self.age), Content::Object { object, encoding }))
    }
}

/// An object to be tried, which was copied.
struct Candidate {
    key: Key,
    /// The entry that named it.
    bits: u64,
    encoding: u8,
    len: usize,
}
