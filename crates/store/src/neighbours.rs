//! Neighbours: pages of one group of 64, read and changed under one lock.
//!
//! A front end that keeps several pages as one object cuts it into pieces of at most a page, each
//! under the key of one of those pages. A reader must find all pieces of one object, or none.

use ramfold_codec::encodings::WORD;

use crate::index::{Content, LEAF_ENTRIES, Locked, Stamp, View};
use crate::store::{Loaded, Store};
use crate::{ENCODING_MAX, Key, LoadError, OBJECT_BYTES_MAX, StoreError};

/// When an object that is exchanged was stored, for all that goes by how cold pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredWhen {
    /// Now.
    Now,
    /// When the one before was: it is of the same pages, and shorter than a page. Only for
    /// [`Denser::put_together`](crate::Denser::put_together), in the thread of the walk.
    AsBefore,
}

/// The pages of a group, under its lock.
pub struct Neighbours<'a> {
    store: &'a Store,
    locked: Locked<'a>,
}

impl Neighbours<'_> {
    /// A page's content, verified; `None` if it is not here, or is of another group.
    ///
    /// # Errors
    /// As [`Store::load`].
    pub fn load(&mut self, key: Key) -> Result<Option<Loaded<'_>>, LoadError> {
        if !self.locked.turn_to(key) {
            return Ok(None);
        }
        self.store.verify(key, &self.locked)
    }

    /// The encoding of a page's object, which is not verified; `None` without an object in the
    /// pool.
    pub fn encoding(&mut self, key: Key) -> Option<u8> {
        if !self.locked.turn_to(key) {
            return None;
        }
        match self.locked.view() {
            View::Object { encoding, .. } if encoding != WORD => Some(encoding),
            _ => None,
        }
    }

    /// Whether a page can be loaded.
    pub fn contains(&mut self, key: Key) -> bool {
        self.locked.turn_to(key) && self.locked.is_live()
    }

    /// A page's mark; 0 if nothing is known of it.
    pub fn mark(&mut self, key: Key) -> u8 {
        if self.locked.turn_to(key) { self.locked.mark() } else { 0 }
    }

    /// Forgets a page that is a ghost, and its mark; any other page stays.
    pub fn forget_ghost(&mut self, key: Key) {
        if self.locked.turn_to(key) && matches!(self.locked.view(), View::Ghost) {
            // A ghost has nothing to be freed.
            let _ = self.locked.remove();
        }
    }

    /// Sets a page's mark, as [`Store::set_mark`] does.
    pub fn set_mark(&mut self, key: Key, mark: u8) {
        if self.locked.turn_to(key) {
            self.locked.set_mark(mark);
        }
    }
}

impl Store {
    /// Lends the 64 pages of a key's group to `f`. A lock is held while `f` runs, so `f` must be
    /// short and must not call the store.
    pub fn neighbours<R>(&self, key: Key, f: impl FnOnce(&mut Neighbours<'_>) -> R) -> R {
        f(&mut Neighbours { store: self, locked: self.index.lock(key) })
    }

    /// Has the walk of [`Recompression`](crate::Recompression) try a key's group once more when it
    /// comes there, though nothing has been stored in it.
    pub fn try_again(&self, key: Key) {
        let mut locked = self.index.lock(key);
        if let Some(stamp) = locked.stamp().filter(|stamp| stamp.is_dense()) {
            locked.set_stamp(stamp.not_dense());
        }
    }

    /// The first key of the next group that has entries, and the place to go on with; `None` at the
    /// end. The walk begins at place 0. A group keeps its place as long as it has entries.
    pub fn group_from(&self, place: u32) -> Option<(Key, u32)> {
        self.index.group_from(place)
    }

    /// Forgets the pages of `count` keys from `first`, marks too, and stores objects (encoding and
    /// bytes) under the first of those keys. The first page has this mark afterwards: without an
    /// object it becomes a ghost, unless the mark is 0 or there is no memory for its entry. The
    /// change is atomic: others see the pages as they were or as they are afterwards.
    ///
    /// # Errors
    /// [`StoreError::NotNeighbours`] for more objects than keys, or keys of two groups; otherwise
    /// as [`Self::store_object`]. Then nothing has changed.
    pub fn replace_neighbours(
        &self,
        first: Key,
        count: usize,
        objects: &[(u8, &[u8])],
        mark: u8,
    ) -> Result<(), StoreError> {
        self.put_objects(first, count, objects, Some(mark), StoredWhen::Now)
    }

    /// Stores objects (encoding and bytes) under neighbouring keys, from `first` on, in place of
    /// what those had. Their marks stay. The change is atomic, as that of
    /// [`Self::replace_neighbours`].
    ///
    /// # Errors
    /// As [`Self::replace_neighbours`].
    pub fn exchange_neighbours(
        &self,
        first: Key,
        objects: &[(u8, &[u8])],
        stored: StoredWhen,
    ) -> Result<(), StoreError> {
        self.put_objects(first, objects.len(), objects, None, stored)
    }

    /// Copies objects into the pool, and exchanges what the keys have for them.
    fn put_objects(
        &self,
        first: Key,
        count: usize,
        objects: &[(u8, &[u8])],
        mark: Option<u8>,
        stored: StoredWhen,
    ) -> Result<(), StoreError> {
        let room = LEAF_ENTRIES - first as usize % LEAF_ENTRIES;
        if count > room || objects.len() > count {
            let objects = objects.len();
            return Err(self.reject(StoreError::NotNeighbours { first, count, objects }));
        }
        if count == 0 {
            return Ok(());
        }
        let mut contents = [const { Content::Empty }; LEAF_ENTRIES];
        let put = objects.iter().zip(keys(first, count)).zip(&mut contents).try_for_each(
            |((&(encoding, bytes), key), content)| {
                *content = self.object(key, encoding, bytes)?;
                Ok(())
            },
        );
        let put = put.and_then(|()| {
            let mut locked = self.index.lock(first);
            let is_kept =
                |stamp: &Stamp| stored == StoredWhen::AsBefore && *stamp != Stamp::NOTHING;
            let stamp = locked.stamp().filter(is_kept);
            let of_objects = &mut contents[..count];
            let put = self.put_neighbours(&mut locked, first, objects.len(), of_objects, mark);
            if let Some(stamp) = stamp {
                locked.set_stamp(stamp);
            }
            put
        });
        // These are what was replaced, or what could not be stored.
        contents.into_iter().for_each(|content| self.free(content));
        put
    }

    /// Exchanges what the keys have for these contents, the first `stored` of which are objects.
    /// The first key has `mark` then, and no other has one; without it all keep theirs.
    fn put_neighbours(
        &self,
        locked: &mut Locked<'_>,
        first: Key,
        stored: usize,
        contents: &mut [Content],
        mark: Option<u8>,
    ) -> Result<(), StoreError> {
        let count = contents.len();
        for (key, content) in keys(first, count).zip(contents.iter_mut()).take(stored) {
            locked.turn_to(key);
            match locked.set(core::mem::replace(content, Content::Empty)) {
                Ok(replaced) => *content = replaced,
                Err((refused, refusal)) => {
                    // Only the first needs a leaf, so nothing has changed.
                    *content = refused;
                    return Err(self.reject(self.no_entry(refusal)));
                }
            }
            if mark.is_some() {
                locked.set_mark(0);
            }
        }
        for (key, content) in keys(first, count).zip(contents.iter_mut()).skip(stored) {
            locked.turn_to(key);
            *content = locked.remove();
        }
        if let Some(mark) = mark {
            locked.turn_to(first);
            locked.set_mark(mark);
        }
        Ok(())
    }

    /// Copies an object into the pool for this key.
    fn object(&self, key: Key, encoding: u8, bytes: &[u8]) -> Result<Content, StoreError> {
        self.check_object(encoding, bytes)?;
        Ok(Content::Object { object: self.put(key, encoding, bytes)?, encoding })
    }

    /// Refuses an object or an encoding out of range.
    pub(crate) fn check_object(&self, encoding: u8, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.is_empty() || bytes.len() > OBJECT_BYTES_MAX {
            let error = StoreError::ObjectLength { len: bytes.len(), len_max: OBJECT_BYTES_MAX };
            return Err(self.reject(error));
        }
        if !(1..=ENCODING_MAX).contains(&encoding) {
            let error = StoreError::Encoding { encoding, encoding_max: ENCODING_MAX };
            return Err(self.reject(error));
        }
        Ok(())
    }
}

/// `count` keys from `first`; `count` is at least 1.
fn keys(first: Key, count: usize) -> core::ops::RangeInclusive<Key> {
    first..=first + (count as Key - 1)
}
