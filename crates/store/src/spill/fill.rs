//! Filling a batch with objects of the pool.

use ramfold_codec::encodings::WORD;

use super::{Choose, Claims, Disk, Spill, SpillError};
use crate::index::{LEAF_ENTRIES, Stamp, View};
use crate::{OBJECT_BYTES_MAX, Store};

/// Entries visited under one hold of a lock: at most that many objects are copied under it.
const ENTRIES_AT_ONCE: usize = 8;

/// The oldest one in so many of the leaves that hold objects are written next.
const OLDEST_SHARE: u32 = 8;

impl<D: Disk, C: Claims> Spill<'_, D, C> {
    /// Copies objects from the pool into the batch until it is full, or all leaves have been
    /// visited but those that the batch before was filled from.
    ///
    /// # Errors
    /// Why the batch before was not written.
    pub(super) fn fill(&mut self, store: &Store, choose: Choose) -> Result<(), SpillError> {
        let leaves = store.index.leaf_numbers();
        let under_way = |spill: &Self| spill.under_way.as_ref().map_or(0, |batch| batch.leaves);
        if under_way(self) >= leaves.len() {
            self.finish(store)?;
        }
        // Of the leaf that the batch before ended in a part may be left.
        let mut left = leaves.len() - under_way(self) + usize::from(self.hand.1 > 0);
        self.looked_at = 0;
        while left > 0 {
            self.looked_at += 1;
            if self.hand.0 >= leaves.end {
                self.hand = (0, 0);
            }
            if self.hand == (0, 0) || self.looked_at == 1 {
                self.least_age = least_age(store);
            }
            if !self.copy_leaf(store, choose) {
                break;
            }
            self.hand = (self.hand.0 + 1, 0);
            left -= 1;
        }
        Ok(())
    }

    /// Copies the objects of the leaf at the hand, from the hand's entry on, into the batch.
    /// `false` when the batch is full: then the hand is at the first object that found no room.
    fn copy_leaf(&mut self, store: &Store, choose: Choose) -> bool {
        let (number, begin) = self.hand;
        let stamp = store.index.stamp_of(number);
        let batch = &mut self.batches[self.next];
        let age = stamp.age(batch.age());
        let all = choose == Choose::Oldest && age >= self.least_age;
        // An object that was stored since the batch was begun could not be settled.
        if stamp == Stamp::NOTHING || age == 0 || !(all || stamp.has_raw()) {
            return true;
        }
        let (mut found, mut room) = (begin > 0, true);
        for first in (begin..LEAF_ENTRIES).step_by(ENTRIES_AT_ONCE) {
            let offsets = first..(first + ENTRIES_AT_ONCE).min(LEAF_ENTRIES);
            store.index.visit_leaf(number, offsets, |key, bits, view| {
                let View::Object { object, encoding } = view else { return true };
                if encoding == WORD || !(all || object.len() == OBJECT_BYTES_MAX) {
                    return true;
                }
                found = true;
                // A damaged object stays, so that the next load reports it.
                if let Some(bytes) = store.checked(key, encoding, object) {
                    room = batch.push(key, bits, encoding, bytes);
                }
                if !room {
                    self.hand.1 = key as usize % LEAF_ENTRIES;
                }
                room
            });
            if !room {
                return false;
            }
        }
        // Objects in the batch are still in the pool: the next round finds that they have left.
        if !found {
            let to = if all { Stamp::NOTHING } else { stamp.without_raw() };
            store.index.change_stamp(number, stamp, to);
        }
        true
    }
}

/// The age that one in [`OLDEST_SHARE`] of the leaves that hold objects has reached.
fn least_age(store: &Store) -> u32 {
    /// Four steps for each doubling of the age.
    const STEPS: usize = 32 * 4;
    let step_of = |age: u32| {
        let log = age.max(1).ilog2();
        let rest = if log < 2 { 0 } else { age >> (log - 2) & 3 };
        (log * 4 + rest) as usize
    };
    let first_of = |step: usize| {
        let (log, rest) = ((step / 4) as u32, (step % 4) as u32);
        if log < 2 { 1 << log } else { 1 << log | rest << (log - 2) }
    };
    let now = store.index.age();
    let mut counts = [0u32; STEPS];
    let mut total = 0;
    for number in store.index.leaf_numbers() {
        let stamp = store.index.stamp_of(number);
        if stamp != Stamp::NOTHING {
            counts[step_of(stamp.age(now))] += 1;
            total += 1;
        }
    }
    let mut older = 0;
    for step in (0..STEPS).rev() {
        older += counts[step];
        if older > total / OLDEST_SHARE {
            return first_of(step);
        }
    }
    1
}
