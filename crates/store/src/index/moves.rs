//! Entries of one group removed together, or moved to other keys.

use ramfold_sys::sync::MutexGuard;

use super::entry::{Content, Entry};
use super::removed::Removed;
use super::{Group, Index, LEAF_ENTRIES, NoEntry, Shard, offset};
use crate::Key;

impl Index {
    /// Removes the entries of `count` keys from `first`, which are all of one group, into
    /// `removed`, and returns how many were live.
    pub(crate) fn remove_in_group(&self, first: Key, count: usize, removed: &mut Removed) -> u64 {
        let group = Group::of(first);
        let mut shard = self.shards[group.shard()].0.lock();
        let Some((at, leaf)) = self.find_leaf(&shard, group) else { return 0 };
        let mut live = 0;
        for offset in offset(first)..(offset(first) + count).min(LEAF_ENTRIES) {
            let old = self.put(&mut shard, at, leaf, offset, Entry::EMPTY);
            live += u64::from(old.is_live());
            // SAFETY: it was overwritten.
            removed.push(unsafe { old.into_content() }.into_holding());
        }
        if self.remove_if_empty(&mut shard, at) {
            drop(shard);
            self.leaves.free(leaf);
        }
        live
    }

    /// Moves the entries of `count` keys from `from`, which are all of one group, to the keys from
    /// `to`, again of one group; calls `reseal` with each content, its old and its new key. What
    /// was under the new keys goes into `removed`. Returns how many live entries moved.
    ///
    /// # Errors
    /// If there is no leaf for the new keys; then nothing has changed.
    pub(crate) fn move_in_group(
        &self,
        from: Key,
        to: Key,
        count: usize,
        removed: &mut Removed,
        mut reseal: impl FnMut(&mut Content, Key, Key),
    ) -> Result<u64, NoEntry> {
        let (source, target) = (Group::of(from), Group::of(to));
        let mut pair = self.lock_pair(source.shard(), target.shard());
        let Some((_, source_leaf)) = self.find_leaf(pair.source(), source) else { return Ok(0) };
        // SAFETY: the leaf's shard is locked, and nothing changes it while this is read.
        let entries = unsafe { self.leaves.get(source_leaf) };
        let offsets = offset(from)..(offset(from) + count).min(LEAF_ENTRIES);
        if !entries[offsets].iter().any(|entry| !entry.is_empty()) {
            return Ok(0);
        }
        let (target_at, target_leaf) = self.find_or_add_leaf(pair.target(), target)?;
        // If both are in one table, the new leaf may have moved the other's place in it.
        let Some((source_at, _)) = self.find_leaf(pair.source(), source) else { return Ok(0) };
        let mut live = 0;
        for i in 0..count as u64 {
            let (from, to) = (from + i, to + i);
            // SAFETY: as above.
            let entry = unsafe { self.leaves.get(source_leaf) }[offset(from)];
            if entry.is_empty() {
                continue;
            }
            live += u64::from(entry.is_live());
            let mark = entry.mark();
            // SAFETY: under both locks the entry is overwritten below, so the content is ours.
            let mut content = unsafe { entry.into_content() };
            reseal(&mut content, from, to);
            self.stamp(target_leaf, &content);
            let moved = Entry::new(content, mark);
            let replaced = self.put(pair.target(), target_at, target_leaf, offset(to), moved);
            // SAFETY: it was overwritten.
            removed.push(unsafe { replaced.into_content() }.into_holding());
            self.put(pair.source(), source_at, source_leaf, offset(from), Entry::EMPTY);
        }
        if self.remove_if_empty(pair.source(), source_at) {
            drop(pair);
            self.leaves.free(source_leaf);
        }
        Ok(live)
    }

    /// Locks two shards, the lower number first; they may be the same.
    fn lock_pair(&self, source: usize, target: usize) -> ShardPair<'_> {
        let lock = |number: usize| self.shards[number].0.lock();
        if source == target {
            return ShardPair { source: lock(source), target: None };
        }
        if source < target {
            let source = lock(source);
            ShardPair { source, target: Some(lock(target)) }
        } else {
            let target = lock(target);
            ShardPair { source: lock(source), target: Some(target) }
        }
    }
}

struct ShardPair<'a> {
    source: MutexGuard<'a, Shard>,
    /// `None` if it is the source.
    target: Option<MutexGuard<'a, Shard>>,
}

impl ShardPair<'_> {
    fn source(&mut self) -> &mut Shard {
        &mut self.source
    }

    fn target(&mut self) -> &mut Shard {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
}
