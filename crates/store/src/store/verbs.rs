//! The verbs for one page: store, load, take, invalidate; and its mark.

use ramfold_codec::encodings::WORD;

use super::Store;
use crate::index::{Content, View};
use crate::seal::pattern_check;
use crate::spill::Spilled;
use crate::{Key, LoadError, StoreError};

/// A page's content, lent by [`Store::load`] and [`Store::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// The page is this word 512 times.
    SameFilled(u64),
    /// The page is an object.
    Object {
        /// The encoding that it was stored under, 1 to 15.
        encoding: u8,
        /// The bytes that were stored, 1 to 4096.
        bytes: &'a [u8],
    },
    /// The object is in the spill file; see [`SpillCipher::open`](crate::SpillCipher::open).
    Spilled(Spilled),
}

impl Store {
    /// Stores a page as an object of 1 to 4096 bytes under an encoding of 1 to 15. It replaces what
    /// was there, unless that is the very same: so memory that is shared with a forked relative
    /// stays shared. The key's mark stays.
    ///
    /// # Errors
    /// [`StoreError::ObjectLength`], [`StoreError::Encoding`]; [`StoreError::PoolFull`],
    /// [`StoreError::MetadataFull`] or [`StoreError::NoMemory`]. The key then still has what it
    /// had.
    pub fn store_object(&self, key: Key, encoding: u8, object: &[u8]) -> Result<(), StoreError> {
        self.check_object(encoding, object)?;
        if self.has(key, Loaded::Object { encoding, bytes: object }) {
            return Ok(());
        }
        let object = self.put(key, encoding, object)?;
        self.set(key, Content::Object { object, encoding })
    }

    /// Whether this is what the key has.
    fn has(&self, key: Key, content: Loaded<'_>) -> bool {
        let entry = self.index.lock(key);
        matches!(self.verify(key, &entry), Ok(Some(found)) if found == content)
    }

    /// Stores a page that is one word 512 times over. A word whose halves are equal lies in the
    /// entry and cannot fail for want of pool memory; any other is an object of 8 bytes.
    ///
    /// # Errors
    /// As [`Self::store_object`].
    pub fn store_same_filled(&self, key: Key, word: u64) -> Result<(), StoreError> {
        if word as u32 == (word >> 32) as u32 {
            let pattern = word as u32;
            let check = pattern_check(key, pattern);
            return self.set(key, Content::SameFilled { pattern, check });
        }
        let bytes = word.to_le_bytes();
        let object = self.put(key, WORD, &bytes)?;
        self.set(key, Content::Object { object, encoding: WORD })
    }

    /// Lends a page's content to `f`, verified, and returns what `f` does; `None` if the page is
    /// not here (a ghost is not). The entry stays.
    ///
    /// A lock is held while `f` runs, so `f` must be short and must not call the store. If it
    /// unwinds nothing has changed.
    ///
    /// # Errors
    /// [`LoadError`] if the content is not what was stored; `f` is not called.
    pub fn load<R>(
        &self,
        key: Key,
        f: impl FnOnce(Loaded<'_>) -> R,
    ) -> Result<Option<R>, LoadError> {
        let entry = self.index.lock(key);
        Ok(self.verify(key, &entry)?.map(f))
    }

    /// Where in the spill file a page's object is, if it is there. What is damaged is told by
    /// [`Self::load`].
    pub fn spilled(&self, key: Key) -> Option<Spilled> {
        let entry = self.index.lock(key);
        match entry.view() {
            View::Spilled { .. } => match self.verify(key, &entry) {
                Ok(Some(Loaded::Spilled(spilled))) => Some(spilled),
                _ => None,
            },
            _ => None,
        }
    }

    /// Like [`Self::load`], but the page is a ghost afterwards, with the mark it had, and its
    /// object is freed.
    ///
    /// # Errors
    /// As [`Self::load`]; the entry stays.
    pub fn take<R>(
        &self,
        key: Key,
        f: impl FnOnce(Loaded<'_>) -> R,
    ) -> Result<Option<R>, LoadError> {
        let mut entry = self.index.lock(key);
        let Some(loaded) = self.verify(key, &entry)? else { return Ok(None) };
        let result = f(loaded);
        let taken = entry.take();
        drop(entry);
        self.free(taken);
        Ok(Some(result))
    }

    /// Whether the page can be loaded.
    pub fn contains(&self, key: Key) -> bool {
        self.index.lock(key).is_live()
    }

    /// Forgets a page, its ghost and its mark; whether it could have been loaded.
    pub fn invalidate(&self, key: Key) -> bool {
        let mut entry = self.index.lock(key);
        let live = entry.is_live();
        let removed = entry.remove();
        drop(entry);
        self.free(removed);
        live
    }

    /// The page's mark: a byte the owner may use, which follows the page through store and take
    /// until it is invalidated. 0 if nothing is known of the page.
    pub fn mark(&self, key: Key) -> u8 {
        self.index.lock(key).mark()
    }

    /// The page's mark if it can be loaded.
    pub fn live_mark(&self, key: Key) -> Option<u8> {
        let entry = self.index.lock(key);
        entry.is_live().then(|| entry.mark())
    }

    /// Sets the page's mark, and returns the one before. A page that nothing is known of becomes a
    /// ghost by that, unless the mark is 0 or there is no memory for its entry.
    pub fn set_mark(&self, key: Key, mark: u8) -> u8 {
        self.index.lock(key).set_mark(mark)
    }

    /// Frees a page's object unread: the page is a ghost with this mark afterwards. `false` if it
    /// was not here; then nothing changes.
    pub fn discard(&self, key: Key, mark: u8) -> bool {
        let mut entry = self.index.lock(key);
        let live = entry.is_live();
        if live {
            entry.set_mark(mark);
        }
        let taken = entry.take();
        drop(entry);
        self.free(taken);
        live
    }
}
