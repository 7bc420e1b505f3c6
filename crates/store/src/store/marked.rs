//! Verbs that read and write a page's content and its mark together, under one lock: for owners
//! whose marks say what a content means.

use ramfold_codec::encodings::WORD;

use super::Store;
use crate::index::{Content, LEAF_ENTRIES, Locked, View, last_key};
use crate::seal::pattern_check;
use crate::{Key, LoadError, Loaded, StoreError};

/// What a page had before its content was replaced or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// Nothing that can be loaded.
    Nothing,
    /// It was this 32-bit pattern over and over.
    Pattern {
        /// The pattern.
        pattern: u32,
        /// The mark it had.
        mark: u8,
    },
    /// An object in the pool or in the spill file, or a word whose halves differ.
    Object,
}

impl Replaced {
    fn of(entry: &Locked<'_>) -> Replaced {
        match entry.view() {
            View::Empty | View::Ghost | View::Damaged => Replaced::Nothing,
            View::SameFilled { pattern, .. } => Replaced::Pattern { pattern, mark: entry.mark() },
            View::Object { .. } | View::Spilled { .. } => Replaced::Object,
        }
    }
}

impl Store {
    /// As [`Store::load`], with the page's mark.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load_marked<R>(
        &self,
        key: Key,
        f: impl FnOnce(Loaded<'_>, u8) -> R,
    ) -> Result<Option<R>, LoadError> {
        let entry = self.index.lock(key);
        let mark = entry.mark();
        Ok(self.verify(key, &entry)?.map(|loaded| f(loaded, mark)))
    }

    /// Stores an object with its mark, and says what it replaced.
    ///
    /// # Errors
    /// As [`Store::store_object`].
    pub fn exchange_object(
        &self,
        key: Key,
        encoding: u8,
        object: &[u8],
        mark: u8,
    ) -> Result<Replaced, StoreError> {
        self.check_object(encoding, object)?;
        let object = self.put(key, encoding, object)?;
        self.exchange(key, Content::Object { object, encoding }, mark)
    }

    /// Stores a page that is a 32-bit pattern over and over, with its mark, and says what it
    /// replaced. It takes no memory of the pool.
    ///
    /// # Errors
    /// As [`Store::store_same_filled`].
    pub fn exchange_pattern(
        &self,
        key: Key,
        pattern: u32,
        mark: u8,
    ) -> Result<Replaced, StoreError> {
        let check = pattern_check(key, pattern);
        self.exchange(key, Content::SameFilled { pattern, check }, mark)
    }

    /// Stores a page that is a 64-bit word over and over, as an object of the store's own, with its
    /// mark, and says what it replaced.
    ///
    /// # Errors
    /// As [`Store::store_same_filled`].
    pub fn exchange_word(&self, key: Key, word: u64, mark: u8) -> Result<Replaced, StoreError> {
        let object = self.put(key, WORD, &word.to_le_bytes())?;
        self.exchange(key, Content::Object { object, encoding: WORD }, mark)
    }

    fn exchange(&self, key: Key, content: Content, mark: u8) -> Result<Replaced, StoreError> {
        let mut entry = self.index.lock(key);
        let before = Replaced::of(&entry);
        let result = entry.set(content);
        if result.is_ok() {
            entry.set_mark(mark);
        }
        drop(entry);
        match result {
            Ok(replaced) => {
                self.free(replaced);
                Ok(before)
            }
            Err((content, refusal)) => {
                self.free(content);
                Err(self.reject(self.no_entry(refusal)))
            }
        }
    }

    /// Forgets a page, its ghost and its mark, and says what it was.
    pub fn remove(&self, key: Key) -> Replaced {
        let mut entry = self.index.lock(key);
        let before = Replaced::of(&entry);
        let removed = entry.remove();
        drop(entry);
        self.free(removed);
        before
    }

    /// Calls `f` with the first key, and a map of the keys that can be loaded (bit 0 the first), of
    /// each group of 64 keys that lies, wholly or in part, in a range of keys and has any. No lock
    /// is held meanwhile. The cost follows what is stored, not the range; the order is that of the
    /// keys only in small ranges.
    pub fn for_each_group(&self, first: Key, count: u64, mut f: impl FnMut(Key, u64)) {
        let Some(last) = last_key(first, count) else { return };
        for (group_first, _) in self.index.groups_between(first, last) {
            let live = self.live_of_group(group_first);
            if live != 0 {
                f(group_first, live);
            }
        }
    }

    /// A map of the keys of a key's group that can be loaded: bit 0 is the group's first.
    pub fn live_of_group(&self, key: Key) -> u64 {
        let first = key / LEAF_ENTRIES as u64 * LEAF_ENTRIES as u64;
        let mut locked = self.index.lock(key);
        let mut live = 0;
        for offset in 0..LEAF_ENTRIES as u64 {
            if locked.turn_to(first + offset) && locked.is_live() {
                live |= 1 << offset;
            }
        }
        live
    }
}
