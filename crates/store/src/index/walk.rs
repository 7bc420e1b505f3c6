//! Walks over groups and leaves.

use core::ops::Range;

use ramfold_codec::encodings::WORD;

use super::entry::{Content, Entry, View};
use super::leaves::LeafId;
use super::removed::Removed;
use super::{GROUP_SHIFT, Group, Index, LEAF_ENTRIES, Shard};
use crate::pool::{Object, ObjectRef};
use crate::{EntryKind, Key};

impl Index {
    /// The groups of the keys from `first` to `last`, both included, that may have a leaf. For a
    /// small range all its groups are visited; for a large one all leaves of the index, so that the
    /// cost follows what is stored.
    pub(crate) fn groups_between(&self, first: Key, last: Key) -> Groups<'_> {
        let (first, last) = (first >> GROUP_SHIFT, last >> GROUP_SHIFT);
        let leaves_end = self.leaves.end();
        // A look at a leaf's number costs a sixteenth of a lock and a search.
        let by_leaf = last - first > u64::from(leaves_end / 16) + 16;
        let (next, end) = if by_leaf { (0, u64::from(leaves_end)) } else { (first, last + 1) };
        Groups { index: self, by_leaf, first, last, next, end }
    }

    /// The numbers of leaves, for [`Self::read_leaf`], [`Self::visit_leaf`], [`Self::stamp_of`] and
    /// [`Self::replace_in_leaf`].
    pub(crate) fn leaf_numbers(&self) -> Range<u32> {
        0..self.leaves.end()
    }

    /// The first key of the group that has the next leaf, from the leaf of a number on, and the
    /// number to go on with.
    pub(crate) fn group_from(&self, number: u32) -> Option<(Key, u32)> {
        (number..self.leaves.end())
            .find_map(|number| Some((self.leaves.group(number)? << GROUP_SHIFT, number + 1)))
    }

    /// What a leaf says: the keys that are not empty.
    pub(crate) fn read_leaf(&self, number: u32, mut each: impl FnMut(Key, EntryKind)) {
        let Some((group, leaf)) = self.leaf_by_number(number, |_, _, leaf| {
            // SAFETY: the shard is locked; the entries are copied.
            *unsafe { self.leaves.get(leaf) }
        }) else {
            return;
        };
        for (offset, entry) in (0..).zip(leaf) {
            let key = (group << GROUP_SHIFT) + offset;
            // SAFETY: objects are not looked into.
            match unsafe { entry.view() } {
                View::Empty => {}
                View::Ghost => each(key, EntryKind::Ghost),
                View::SameFilled { .. } | View::Object { encoding: WORD, .. } => {
                    each(key, EntryKind::SameFilled);
                }
                View::Object { object, encoding } => {
                    each(key, EntryKind::Object { encoding, len: object.len() });
                }
                View::Spilled { encoding, .. } => each(key, EntryKind::Spilled { encoding }),
                View::Damaged => each(key, EntryKind::Damaged),
            }
        }
    }

    /// Calls `each` with key, bits and view of the entries at some offsets of a leaf, under its
    /// shard's lock, until `each` returns `false`. [`Locked::replace`](super::Locked::replace)
    /// takes the bits.
    pub(crate) fn visit_leaf(
        &self,
        number: u32,
        offsets: Range<usize>,
        mut each: impl FnMut(Key, u64, View<'_>) -> bool,
    ) {
        self.leaf_by_number(number, |_, group, leaf| {
            // SAFETY: the shard is locked.
            let entries = unsafe { self.leaves.get(leaf) };
            for offset in offsets {
                let Some(entry) = entries.get(offset) else { break };
                let key = (group.number << GROUP_SHIFT) + offset as u64;
                // SAFETY: nothing changes the entry while its shard is locked.
                if !each(key, entry.bits(), unsafe { entry.view() }) {
                    break;
                }
            }
        });
    }

    /// Offers the objects at some offsets of a leaf to `better`, which may return a copy to replace
    /// the object. The replaced ones go into `removed`. Returns how many there were.
    pub(crate) fn replace_in_leaf(
        &self,
        number: u32,
        offsets: Range<usize>,
        removed: &mut Removed,
        mut better: impl FnMut(ObjectRef<'_>) -> Option<Object>,
    ) -> u64 {
        let replaced = self.leaf_by_number(number, |_, _, leaf| {
            let mut replaced = 0;
            // SAFETY: the shard is locked, and this is the only reference.
            for place in &mut unsafe { self.leaves.get_mut(leaf) }[offsets] {
                // SAFETY: the entry is changed only below, when the look is over.
                let new = match unsafe { place.view() } {
                    View::Object { object, encoding } => {
                        better(object).map(|object| Content::Object { object, encoding })
                    }
                    _ => None,
                };
                if let Some(content) = new {
                    let old = core::mem::replace(place, Entry::new(content, place.mark()));
                    // SAFETY: it was overwritten.
                    removed.push(unsafe { old.into_content() }.into_holding());
                    replaced += 1;
                }
            }
            replaced
        });
        replaced.map_or(0, |(_, replaced)| replaced)
    }

    /// Calls `f` with the leaf of this number, if there is one, under its shard's lock, and returns
    /// its group and the result.
    fn leaf_by_number<R>(
        &self,
        number: u32,
        f: impl FnOnce(&mut Shard, Group, LeafId) -> R,
    ) -> Option<(u64, R)> {
        let group = Group::new(self.leaves.group(number)?);
        let mut shard = self.shards[group.shard()].0.lock();
        let (_, leaf) = self.find_leaf(&shard, group)?;
        // The leaf may have become another group's in the meantime.
        (leaf.number() == number).then(|| (group.number, f(&mut shard, group, leaf)))
    }
}

/// See [`Index::groups_between`].
pub(crate) struct Groups<'a> {
    index: &'a Index,
    by_leaf: bool,
    first: u64,
    last: u64,
    next: u64,
    end: u64,
}

impl Iterator for Groups<'_> {
    /// First and last key of the group.
    type Item = (Key, Key);

    fn next(&mut self) -> Option<(Key, Key)> {
        while self.next < self.end {
            let number = self.next;
            self.next += 1;
            let group = if self.by_leaf {
                match self.index.leaves.group(number as u32) {
                    Some(group) if (self.first..=self.last).contains(&group) => group,
                    _ => continue,
                }
            } else {
                number
            };
            let first = group << GROUP_SHIFT;
            return Some((first, first + (LEAF_ENTRIES as u64 - 1)));
        }
        None
    }
}
