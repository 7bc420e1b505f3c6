//! A key's entry under its shard's lock.

use ramfold_sys::sync::MutexGuard;

use super::entry::{Content, Entry, View};
use super::leaves::{Leaf, LeafId, Leaves};
use super::stamp::Stamp;
use super::{GROUP_SHIFT, Group, Index, LEAF_ENTRIES, NoEntry, Shard, offset};
use crate::Key;

/// A leaf that left its table, freed when the shard is unlocked.
struct EmptiedLeaf<'a> {
    leaves: &'a Leaves,
    leaf: Option<LeafId>,
}

impl Drop for EmptiedLeaf<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(leaf) = self.leaf.take() {
            self.leaves.free(leaf);
        }
    }
}

/// A key's entry, its shard locked.
pub(crate) struct Locked<'a> {
    index: &'a Index,
    group: Group,
    offset: usize,
    /// The group's place in the table and its leaf, if it has one.
    found: Option<(usize, LeafId)>,
    // Dropped, and so unlocked, before `emptied` is.
    shard: MutexGuard<'a, Shard>,
    emptied: EmptiedLeaf<'a>,
}

impl Index {
    /// Locks a key's entry.
    #[inline]
    pub(crate) fn lock(&self, key: Key) -> Locked<'_> {
        let group = Group::of(key);
        let shard = self.shards[group.shard()].0.lock();
        let found = self.find_leaf(&shard, group);
        Locked {
            index: self,
            group,
            offset: offset(key),
            found,
            shard,
            emptied: EmptiedLeaf { leaves: &self.leaves, leaf: None },
        }
    }
}

impl Locked<'_> {
    #[inline]
    pub(super) fn find(&self) -> Option<(usize, LeafId, Entry)> {
        let (at, leaf) = self.found?;
        // SAFETY: the leaf's shard is locked.
        let entries: &Leaf = unsafe { self.index.leaves.get(leaf) };
        Some((at, leaf, entries[self.offset % LEAF_ENTRIES]))
    }

    #[inline]
    fn entry(&self) -> Entry {
        self.find().map_or(Entry::EMPTY, |(_, _, entry)| entry)
    }

    /// Overwrites the entry that `find` returned.
    #[inline]
    fn put(&mut self, at: usize, leaf: LeafId, old: Entry, new: Entry) -> Content {
        self.index.put(&mut self.shard, at, leaf, self.offset, new);
        if new.is_empty() && self.index.remove_if_empty(&mut self.shard, at) {
            self.emptied.leaf = Some(leaf);
            self.found = None;
        }
        // SAFETY: it was overwritten.
        unsafe { old.into_content() }
    }

    /// Goes on to another entry of the group, under the same lock; `false` for a key of another
    /// group.
    pub(crate) fn turn_to(&mut self, key: Key) -> bool {
        let is_here = key >> GROUP_SHIFT == self.group.number;
        if is_here {
            self.offset = offset(key);
        }
        is_here
    }

    /// What the entry says.
    #[inline]
    pub(crate) fn view(&self) -> View<'_> {
        // SAFETY: entries change only through a mutable borrow of the lock.
        unsafe { self.entry().view() }
    }

    /// The entry's bits, for a report.
    pub(crate) fn bits(&self) -> u64 {
        self.entry().bits()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.entry().is_live()
    }

    /// Writes the entry, keeping the mark, and returns what was there.
    ///
    /// # Errors
    /// With the content that found no place, if the group needs a leaf and there is none.
    #[inline]
    pub(crate) fn set(&mut self, content: Content) -> Result<Content, (Content, NoEntry)> {
        let (at, leaf) = match self.found {
            Some(found) => found,
            None => match self.index.add_leaf(&mut self.shard, self.group) {
                Ok(added) => *self.found.insert(added),
                Err(refusal) => return Err((content, refusal)),
            },
        };
        self.index.stamp(leaf, &content);
        // SAFETY: the leaf's shard is locked.
        let old = unsafe { self.index.leaves.get(leaf) }[self.offset % LEAF_ENTRIES];
        Ok(self.put(at, leaf, old, Entry::new(content, old.mark())))
    }

    /// Replaces an entry that is as [`Index::visit_leaf`] showed it (`bits`). For an object in the
    /// pool equal bits are not enough, since another object can have taken the same slot: with
    /// `since`, nothing may have been stored in the entry's leaf since that age began. Returns what
    /// was there.
    ///
    /// # Errors
    /// With `content`, if the entry is another by now.
    pub(crate) fn replace(
        &mut self,
        bits: u64,
        since: Option<u32>,
        content: Content,
    ) -> Result<Content, Content> {
        let now = self.index.age();
        let is_left_alone = |stamp: Stamp| since.is_none_or(|since| stamp.is_before(since, now));
        match self.find() {
            Some((at, leaf, old))
                if old.says(bits) && is_left_alone(self.index.stamp_of(leaf.number())) =>
            {
                Ok(self.put(at, leaf, old, Entry::new(content, old.mark())))
            }
            _ => Err(content),
        }
    }

    /// When an object was last stored in the group; `None` if it has no entries.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.found.map(|(_, leaf)| self.index.stamp_of(leaf.number()))
    }

    /// Changes what [`Self::stamp`] says, under this lock.
    pub(crate) fn set_stamp(&mut self, stamp: Stamp) {
        if let Some((_, leaf)) = self.found {
            self.index.change_stamp(leaf.number(), self.index.stamp_of(leaf.number()), stamp);
        }
    }

    /// Turns a live entry into a ghost, keeping the mark, and returns what was there.
    #[inline]
    pub(crate) fn take(&mut self) -> Content {
        match self.find() {
            Some((at, leaf, old)) if old.is_live() => {
                self.put(at, leaf, old, Entry::new(Content::Ghost, old.mark()))
            }
            _ => Content::Empty,
        }
    }

    /// Empties the entry, mark and all, and returns what was there.
    #[inline]
    pub(crate) fn remove(&mut self) -> Content {
        match self.find() {
            Some((at, leaf, old)) if !old.is_empty() => self.put(at, leaf, old, Entry::EMPTY),
            _ => Content::Empty,
        }
    }

    /// The entry's mark, 0 if it is empty.
    pub(crate) fn mark(&self) -> u8 {
        self.entry().mark()
    }

    /// Sets the mark, and returns the one before. An empty entry becomes a ghost, unless the mark
    /// is 0 or there is no room for the entry.
    pub(crate) fn set_mark(&mut self, mark: u8) -> u8 {
        let old = self.entry();
        if old.is_empty() && (mark == 0 || self.set(Content::Ghost).is_err()) {
            return 0;
        }
        if let Some((at, leaf, entry)) = self.find() {
            self.index.put(&mut self.shard, at, leaf, self.offset, entry.with_mark(mark));
        }
        old.mark()
    }
}
