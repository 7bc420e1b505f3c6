//! One page: how it is read and written.

use std::sync::atomic::Ordering;

use ramfold_codec::encodings::RAW;
use ramfold_codec::{Objective, Page, same_filled};
use ramfold_store::{Key, Loaded, Replaced, Spilled, StoreError};

use super::clusters::is_piece;
use super::dedup::{Candidates, Dedup, Named};
use super::page_locks::{PageLock, SecondLock};
use super::workspace::{COMPRESSED_BYTES_MAX, Workspace, add};
use super::{Inner, PAGE};
use crate::DeviceError;

/// Shared objects have keys behind those of all pages.
pub(super) const SHARED: Key = 1 << 56;

/// The mark of a page that consists of a pattern.
const PATTERN: u8 = 0;
/// The mark of a page that refers to a shared object: the pattern is its number.
const REFERENCE: u8 = 1;

/// What a key has in the store.
#[derive(Clone, Copy, Debug)]
enum Found {
    Nothing,
    Word(u64),
    /// Refers to a shared object.
    Reference(u32),
    /// An object, in the workspace.
    Object {
        encoding: u8,
        len: usize,
        mark: u8,
    },
    /// A part of a cluster, which the page is in.
    Piece {
        mark: u8,
    },
    Spilled(Spilled),
}

/// A page that is to be written.
pub(super) struct New<'a> {
    block: u64,
    page: &'a Page,
    hash: u64,
    candidates: Candidates,
}

impl New<'_> {
    /// Whether no page is known that it may be equal to.
    fn is_alone(&self) -> bool {
        self.candidates.is_empty()
    }

    /// Whether two pages may be equal.
    pub(super) fn is_like(&self, other: &New<'_>) -> bool {
        self.hash == other.hash
    }
}

pub(super) fn shared_key(number: u32) -> Key {
    SHARED + Key::from(number)
}

fn key_of(named: Named) -> Key {
    match named {
        Named::Page(block) => block,
        Named::Shared(number) => shared_key(number),
    }
}

pub(super) fn failed(error: impl ToString) -> DeviceError {
    DeviceError::Failed(error.to_string())
}

impl Inner {
    /// Looks a key up. An object is copied, so that it can be decompressed without a lock.
    fn find(&self, key: Key, found: &mut [u8]) -> Result<Found, DeviceError> {
        let look = |loaded: Loaded<'_>, mark: u8| match loaded {
            Loaded::SameFilled(word) if mark == REFERENCE && self.dedup.is_some() => {
                Found::Reference(word as u32)
            }
            Loaded::SameFilled(word) => Found::Word(word),
            Loaded::Object { encoding, .. } if is_piece(encoding) => Found::Piece { mark },
            Loaded::Object { encoding, bytes } => {
                found[..bytes.len()].copy_from_slice(bytes);
                Found::Object { encoding, len: bytes.len(), mark }
            }
            Loaded::Spilled(spilled) => Found::Spilled(spilled),
        };
        match self.store.load_marked(key, look) {
            Ok(found) => Ok(found.unwrap_or(Found::Nothing)),
            Err(damage) => Err(failed(damage)),
        }
    }

    /// Reads a page. A caller that has its lock passes it (`lock`).
    pub(super) fn read_page(
        &self,
        workspace: &mut Workspace,
        block: u64,
        lock: Option<&PageLock<'_>>,
        page: &mut Page,
    ) -> Result<(), DeviceError> {
        match self.find(block, &mut workspace.found[..])? {
            // A shared object stays what it is as long as somebody refers to it, and the lock keeps
            // this page referring to it.
            Found::Reference(_) if lock.is_none() => {
                let lock = self.locks.lock(block);
                self.read_page(workspace, block, Some(&lock), page)
            }
            Found::Reference(number) => {
                let key = shared_key(number);
                let found = self.find(key, &mut workspace.found[..])?;
                self.fill(workspace, key, found, page)
            }
            Found::Piece { .. } if lock.is_some() => self.read_from_cluster(workspace, block, page),
            Found::Piece { .. } => {
                if Inner::read_again(workspace, block, page) {
                    return Ok(());
                }
                let lock = self.locks.lock(block);
                self.read_page(workspace, block, Some(&lock), page)
            }
            found => self.fill(workspace, block, found, page),
        }
    }

    /// Reads a part of a page.
    pub(super) fn read_part(
        &self,
        workspace: &mut Workspace,
        block: u64,
        from: usize,
        part: &mut [u8],
    ) -> Result<(), DeviceError> {
        self.with_page(workspace, |workspace, page| {
            self.read_page(workspace, block, None, page)?;
            part.copy_from_slice(&page[from..from + part.len()]);
            Ok(())
        })
    }

    /// Lends a buffer of the workspace along with the rest of it.
    pub(super) fn with_page(
        &self,
        workspace: &mut Workspace,
        f: impl FnOnce(&mut Workspace, &mut Page) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut lent = std::mem::take(&mut workspace.part);
        let result = match <&mut Page>::try_from(&mut lent[..]) {
            Ok(page) => f(workspace, page),
            Err(_) => Err(failed("the buffer for parts of pages was lost")),
        };
        workspace.part = lent;
        result
    }

    /// Makes a page of what was found under a key.
    fn fill(
        &self,
        workspace: &mut Workspace,
        key: Key,
        mut found: Found,
        page: &mut Page,
    ) -> Result<(), DeviceError> {
        loop {
            match found {
                Found::Nothing if key < SHARED => page.fill(0),
                Found::Word(word) => fill_with(page, word),
                Found::Object { encoding, len, .. } => {
                    let Workspace { coder, found, .. } = workspace;
                    return coder.decompress(encoding, &found[..len], page).map_err(failed);
                }
                Found::Spilled(spilled) => {
                    if self.read_spilled(workspace, key, spilled, page)? {
                        return Ok(());
                    }
                    // It was replaced or moved meanwhile. A reference cannot have come instead
                    // where the page's lock is held; where it is not, the page is looked at again.
                    found = self.find(key, &mut workspace.found[..])?;
                    if let Found::Reference(_) = found {
                        return self.read_page(workspace, key, None, page);
                    }
                    continue;
                }
                Found::Nothing | Found::Reference(_) | Found::Piece { .. } => {
                    return Err(failed(format_args!("no shared object is under key {key:#x}")));
                }
            }
            return Ok(());
        }
    }

    /// Writes a page, whole.
    pub(super) fn write_page(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &Page,
    ) -> Result<(), DeviceError> {
        if let Some(word) = same_filled(page) {
            let lock = self.locks.lock(block);
            self.open_cluster(workspace, block)?;
            return self.write_word(&lock, block, word);
        }
        let new = self.prepare(block, page);
        if !new.is_alone() {
            let lock = self.locks.lock(block);
            if self.is_as_it_was(workspace, &new) {
                return Ok(());
            }
            self.open_cluster(workspace, block)?;
            return self.write_data(workspace, &lock, &new);
        }
        // The usual case: compressed before the lock is taken.
        let object = compress(workspace, page);
        let lock = self.locks.lock(block);
        self.open_cluster(workspace, block)?;
        self.write_object(workspace, &lock, &new, object)
    }

    /// Changes a part of a page.
    pub(super) fn write_part(
        &self,
        workspace: &mut Workspace,
        block: u64,
        from: usize,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        let lock = self.locks.lock(block);
        self.open_cluster(workspace, block)?;
        self.with_page(workspace, |workspace, page| {
            self.read_page(workspace, block, Some(&lock), page)?;
            page[from..from + data.len()].copy_from_slice(data);
            match same_filled(page) {
                Some(word) => self.write_word(&lock, block, word),
                None => self.write_data(workspace, &lock, &self.prepare(block, page)),
            }
        })
    }

    pub(super) fn prepare<'a>(&self, block: u64, page: &'a Page) -> New<'a> {
        let (hash, candidates) = match &self.dedup {
            Some(dedup) => {
                let hash = dedup.hash.of(page);
                (hash, dedup.find(hash))
            }
            None => (0, Candidates::default()),
        };
        New { block, page, hash, candidates }
    }

    /// Whether some page that is known may be equal.
    pub(super) fn may_be_equal(&self, new: &New<'_>) -> bool {
        self.dedup.as_ref().is_some_and(|dedup| {
            let mark = dedup.mark(new.hash);
            let keys = new.candidates.iter().map(|id| key_of(dedup.named(id)));
            keys.into_iter().any(|key| self.store.mark(key) == mark)
        })
    }

    /// Whether a page of a cluster is written as it was. The caller has the unit's lock.
    fn is_as_it_was(&self, workspace: &mut Workspace, new: &New<'_>) -> bool {
        self.dedup.as_ref().is_some_and(|dedup| {
            let names_it = |id| dedup.named(id) == Named::Page(new.block);
            new.candidates.iter().any(names_it)
                && self.has_piece(new.block)
                && self.is_in_cluster(workspace, new.block, new.page)
        })
    }

    /// Forgets a page, which reads as zeros then.
    pub(super) fn remove_page(&self, _lock: &PageLock<'_>, block: u64) {
        let replaced = self.store.remove(block);
        self.forget(replaced);
    }

    fn write_word(&self, lock: &PageLock<'_>, block: u64, word: u64) -> Result<(), DeviceError> {
        let (low, high) = (word as u32, (word >> 32) as u32);
        if word == 0 {
            self.remove_page(lock, block);
            return Ok(());
        }
        self.store_with_room(block, || {
            if low == high {
                self.store.exchange_pattern(block, low, PATTERN)
            } else {
                self.store.exchange_word(block, word, PATTERN)
            }
        })
    }

    /// Writes a page that others may be equal to.
    fn write_data(
        &self,
        workspace: &mut Workspace,
        lock: &PageLock<'_>,
        new: &New<'_>,
    ) -> Result<(), DeviceError> {
        if let Some(dedup) = &self.dedup {
            let mark = dedup.mark(new.hash);
            for named in new.candidates.iter().map(|id| dedup.named(id)) {
                // Most hints that are wrong or out of date cost no more than this.
                if self.store.mark(key_of(named)) != mark {
                    continue;
                }
                let is_done = match named {
                    Named::Shared(number) => self.share(workspace, dedup, new, number)?,
                    Named::Page(other) => self.share_page(workspace, dedup, lock, new, other)?,
                };
                if is_done {
                    let counters = self.workspaces.counters(workspace);
                    add(&counters.shared_writes, 1);
                    return Ok(());
                }
            }
        }
        let object = compress(workspace, new.page);
        self.write_object(workspace, lock, new, object)
    }

    /// Stores a page as an object of its own.
    fn write_object(
        &self,
        workspace: &mut Workspace,
        _lock: &PageLock<'_>,
        new: &New<'_>,
        object: Option<(u8, usize)>,
    ) -> Result<(), DeviceError> {
        let (encoding, bytes) = match object {
            Some((encoding, len)) => (encoding, &workspace.made[..len]),
            None => (RAW, &new.page[..]),
        };
        let mark = self.mark_for(new);
        let store = || self.store.exchange_object(new.block, encoding, bytes, mark);
        self.store_with_room(new.block, store)?;
        self.note_object(new);
        Ok(())
    }

    /// The mark of an object of this page.
    pub(super) fn mark_for(&self, new: &New<'_>) -> u8 {
        self.dedup.as_ref().map_or(0, |dedup| dedup.mark(new.hash))
    }

    /// Notes that a page has an object of its own.
    pub(super) fn note_object(&self, new: &New<'_>) {
        if let Some(dedup) = &self.dedup {
            dedup.note(new.hash, Named::Page(new.block), |named| self.mark_of(named));
        }
    }

    /// The mark of an object, unless it is shared: then its hint is not out of date.
    fn mark_of(&self, named: Named) -> Option<u8> {
        self.store.live_mark(key_of(named))
    }

    /// Stores, and makes room where there is none.
    pub(super) fn store_with_room(
        &self,
        block: u64,
        store: impl Fn() -> Result<Replaced, StoreError>,
    ) -> Result<(), DeviceError> {
        let mut attempt = 0;
        loop {
            let is_new = || !self.store.contains(block);
            if self.room.admits(&self.store, is_new) {
                match store() {
                    Ok(replaced) => {
                        self.forget(replaced);
                        return Ok(());
                    }
                    Err(
                        StoreError::PoolFull { .. }
                        | StoreError::MetadataFull { .. }
                        | StoreError::NoMemory { .. },
                    ) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            if !self.make_room(attempt) {
                return Err(DeviceError::NoRoom);
            }
            attempt += 1;
        }
    }

    /// Notes that a page has no longer what it had.
    fn forget(&self, replaced: Replaced) {
        if let Replaced::Pattern { pattern: number, mark: REFERENCE } = replaced
            && let Some(dedup) = &self.dedup
        {
            self.references.fetch_sub(1, Ordering::Relaxed);
            self.release(dedup, number);
        }
    }

    fn release(&self, dedup: &Dedup, number: u32) {
        if dedup.shares.release(number) {
            self.store.remove(shared_key(number));
            dedup.shares.give_back(number);
        }
    }

    /// Makes a page refer to a shared object, if it is equal to that.
    fn share(
        &self,
        workspace: &mut Workspace,
        dedup: &Dedup,
        new: &New<'_>,
        number: u32,
    ) -> Result<bool, DeviceError> {
        if !dedup.shares.acquire(number) {
            dedup.renote(new.hash, Named::Shared(number), None);
            return Ok(false);
        }
        let key = shared_key(number);
        let found = self.find(key, &mut workspace.found[..]);
        let is_equal = found.is_ok_and(|found| self.is_equal(workspace, dedup, new, found));
        if is_equal {
            let store = || self.store.exchange_pattern(new.block, number, REFERENCE);
            let stored = self.store_with_room(new.block, store);
            if stored.is_ok() {
                self.references.fetch_add(1, Ordering::Relaxed);
            } else {
                self.release(dedup, number);
            }
            return stored.map(|()| true);
        }
        self.release(dedup, number);
        Ok(false)
    }

    /// Moves the object of another page to a key of its own and makes both pages refer to it, if
    /// they are equal.
    fn share_page(
        &self,
        workspace: &mut Workspace,
        dedup: &Dedup,
        lock: &PageLock<'_>,
        new: &New<'_>,
        other: u64,
    ) -> Result<bool, DeviceError> {
        let second: Option<SecondLock<'_>> = self.locks.try_second(lock, other);
        let (Some(_second), true) = (second, other < self.pages) else { return Ok(false) };
        let Ok(mut found) = self.find(other, &mut workspace.found[..]) else { return Ok(false) };
        if let Found::Piece { mark } = found {
            let is_equal =
                mark == dedup.mark(new.hash) && self.is_in_cluster(workspace, other, new.page);
            if !is_equal || self.open_cluster(workspace, other).is_err() {
                return Ok(false);
            }
            let Ok(page) = self.find(other, &mut workspace.found[..]) else { return Ok(false) };
            found = page;
        }
        if !self.is_equal(workspace, dedup, new, found) {
            return Ok(false);
        }
        if other == new.block {
            // It is written as it was.
            return Ok(true);
        }
        let Found::Object { encoding, len, mark } = found else { return Ok(false) };
        let Some(number) = dedup.shares.claim() else { return Ok(false) };
        let (key, object) = (shared_key(number), &workspace.found[..len]);
        let admitted = self.room.admits(&self.store, || true);
        if !admitted || self.store.exchange_object(key, encoding, object, mark).is_err() {
            dedup.shares.give_back(number);
            return Ok(false);
        }
        dedup.shares.publish(number, 2);
        match self.store.exchange_pattern(new.block, number, REFERENCE) {
            Ok(replaced) => self.forget(replaced),
            Err(_) => {
                self.release(dedup, number);
                self.release(dedup, number);
                return Ok(false);
            }
        }
        // The page is there, so that its entry needs no memory.
        match self.store.exchange_pattern(other, number, REFERENCE) {
            Ok(replaced) => {
                self.forget(replaced);
                self.references.fetch_add(2, Ordering::Relaxed);
            }
            Err(_) => {
                self.release(dedup, number);
                self.references.fetch_add(1, Ordering::Relaxed);
            }
        }
        dedup.renote(new.hash, Named::Page(other), Some(Named::Shared(number)));
        Ok(true)
    }

    /// Whether what was found is the page, byte by byte. What is in the spill file is not compared.
    fn is_equal(
        &self,
        workspace: &mut Workspace,
        dedup: &Dedup,
        new: &New<'_>,
        found: Found,
    ) -> bool {
        let Found::Object { encoding, len, mark } = found else { return false };
        if mark != dedup.mark(new.hash) {
            return false;
        }
        let Workspace { coder, page, found, .. } = workspace;
        let is_equal =
            coder.decompress(encoding, &found[..len], page).is_ok() && **page == *new.page;
        if !is_equal {
            add(&self.workspaces.counters(workspace).unequal, 1);
        }
        is_equal
    }
}

#[cfg(test)]
impl Inner {
    /// The shared object that a page refers to.
    pub(super) fn reference_of(&self, block: u64) -> Option<u32> {
        match self.find(block, &mut [0; PAGE]).unwrap() {
            Found::Reference(number) => Some(number),
            _ => None,
        }
    }
}

/// Compresses a page into the workspace; `None` if it is to be stored as it is.
pub(super) fn compress(workspace: &mut Workspace, page: &Page) -> Option<(u8, usize)> {
    let Workspace { coder, made, .. } = workspace;
    coder.compress(page, Objective::Speed, &mut made[..COMPRESSED_BYTES_MAX])
}

pub(super) fn fill_with(page: &mut Page, word: u64) {
    page.as_chunks_mut::<8>().0.fill(word.to_le_bytes());
    const { assert!(PAGE.is_multiple_of(8)) };
}
