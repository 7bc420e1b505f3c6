//! How pages of the cache are read and changed.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use ramfold_codec::encodings::RAW;
use ramfold_codec::{Page, same_filled};
use ramfold_store::Loaded;

use super::marks::{DIRTY, Marks, READ};
use super::place::CHUNK_PAGES;
use super::{PAGE, Shared, Workspace};
use crate::DeviceError;
use crate::disk::page_locks::PageLock;
use crate::disk::pages::{compress, failed, fill_with};

/// Where a page comes from that is put into the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Write,
    Read(Begun),
}

/// When a read began: what has changed since is not put into the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Begun {
    age: u64,
    /// Trims before it.
    trims: u64,
}

/// What a read has put into the cache.
pub(super) struct Brought {
    pub(super) pages: u64,
    /// The cache had room for all of them.
    pub(super) has_room: bool,
}

impl Shared {
    /// Looks a page up; its mark if it is there.
    fn look(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &mut Page,
    ) -> Result<Option<u8>, DeviceError> {
        let Workspace { coder, found, .. } = workspace;
        let loaded = self.inner.store.load_marked(block, |loaded, mark| match loaded {
            Loaded::SameFilled(word) => {
                fill_with(page, word);
                Ok((mark, None))
            }
            Loaded::Object { encoding, bytes } => {
                found[..bytes.len()].copy_from_slice(bytes);
                Ok((mark, Some((encoding, bytes.len()))))
            }
            Loaded::Spilled(_) => {
                Err(failed(format_args!("page {block} is in a spill file, and there is none")))
            }
        });
        match loaded.map_err(failed)?.transpose()? {
            None => Ok(None),
            Some((mark, None)) => Ok(Some(mark)),
            Some((mark, Some((encoding, len)))) => {
                coder.decompress(encoding, &found[..len], page).map_err(failed)?;
                Ok(Some(mark))
            }
        }
    }

    /// A page of the cache, if it is there. A caller has its lock where it must not change.
    pub(super) fn cached(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &mut Page,
    ) -> Result<bool, DeviceError> {
        self.look(workspace, block, page).map(|mark| mark.is_some())
    }

    /// The mark of a page, if it is there.
    pub(super) fn mark_of(&self, _lock: &PageLock<'_>, block: u64) -> Option<u8> {
        let store = &self.inner.store;
        store.contains(block).then(|| store.mark(block))
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        let mut workspace = self.inner.workspaces.take();
        let workspace = &mut *workspace;
        let end = offset + buffer.len() as u64;
        let mut at = offset;
        while at < end {
            let block = at / PAGE as u64;
            let begun = self.begin_reading();
            let there = place_of(offset, end, block);
            let mut mark = None;
            self.lend_page(workspace, &mut buffer[there.1.clone()], there.0.start, |ws, page| {
                mark = self.look(ws, block, page)?;
                Ok(mark.is_some())
            })?;
            match mark {
                Some(mark) => {
                    let hits = [&self.counters.hits_of_writes, &self.counters.hits_of_reads];
                    hits[usize::from(mark & READ != 0)].add(1);
                    at = (block + 1) * PAGE as u64;
                }
                None => {
                    let blocks = self.missing_from(block, end.div_ceil(PAGE as u64));
                    at = blocks.end * PAGE as u64;
                    self.counters.misses.add(blocks.end - blocks.start);
                    let fills = self.reads_fill;
                    self.read_missing(workspace, blocks, begun, fills, |block, page| {
                        let (part, there) = place_of(offset, end, block);
                        buffer[there].copy_from_slice(&page[part]);
                    })?;
                }
            }
        }
        self.counters.reads.add(1);
        self.counters.bytes_read.add(buffer.len() as u64);
        Ok(())
    }

    /// To be asked before the cache is looked at.
    pub(super) fn begin_reading(&self) -> Begun {
        Begun { age: self.marks.age(), trims: self.counters.trims.get() }
    }

    /// Lends the page that a part of a request lies in: the part itself if it is whole.
    fn lend_page(
        &self,
        workspace: &mut Workspace,
        part: &mut [u8],
        from: usize,
        f: impl FnOnce(&mut Workspace, &mut Page) -> Result<bool, DeviceError>,
    ) -> Result<(), DeviceError> {
        if let Ok(page) = <&mut Page>::try_from(&mut *part) {
            return f(workspace, page).map(drop);
        }
        self.inner.with_page(workspace, |workspace, page| {
            if f(workspace, page)? {
                part.copy_from_slice(&page[from..from + part.len()]);
            }
            Ok(())
        })
    }

    /// Pages that are not in the cache, from one on, as many as are read at once.
    pub(super) fn missing_from(&self, first: u64, end: u64) -> Range<u64> {
        let end = end.min(first + CHUNK_PAGES);
        let is_there = |&block: &u64| self.inner.store.contains(block);
        first..(first + 1..end).find(is_there).unwrap_or(end)
    }

    /// Reads pages of the backing, hands them to `each`, and puts them into the cache if `fills`.
    pub(super) fn read_missing(
        &self,
        workspace: &mut Workspace,
        blocks: Range<u64>,
        begun: Begun,
        fills: bool,
        mut each: impl FnMut(u64, &Page),
    ) -> Result<Brought, DeviceError> {
        let mut chunk =
            self.buffers[workspace.number].lock().unwrap_or_else(PoisonError::into_inner);
        let (pages, _) = chunk.0.as_chunks_mut::<PAGE>();
        let pages = &mut pages[..(blocks.end - blocks.start) as usize];
        self.read_place(blocks.start, pages.as_flattened_mut())?;
        let mut brought = Brought { pages: 0, has_room: true };
        for (block, page) in blocks.zip(pages) {
            // It may have been written meanwhile, and a write of the backing been under way.
            if !self.cached(workspace, block, page)? && !self.marks.none_left_since(begun.age) {
                let _lock = self.inner.locks.lock(block);
                if !self.cached(workspace, block, page)? {
                    self.read_place(block, page)?;
                }
            }
            each(block, page);
            if !fills {
                continue;
            }
            match self.put_page(workspace, block, page, From::Read(begun)) {
                Ok(is_put) => brought.pages += u64::from(is_put),
                Err(_) => {
                    // At present; the read is done.
                    self.inner.keeping.call();
                    brought.has_room = false;
                }
            }
        }
        Ok(brought)
    }

    fn read_place(&self, block: u64, pages: &mut [u8]) -> Result<(), DeviceError> {
        self.counters.backing_reads.add(1);
        self.place.read(block * PAGE as u64, pages).map_err(|errno| {
            self.counters.read_errors.add(1);
            DeviceError::Failed(format!("cannot read {}, page {block}: {errno}", self.name))
        })
    }

    /// Changes a page or a part of it.
    pub(super) fn put_part(
        &self,
        workspace: &mut Workspace,
        block: u64,
        from: usize,
        data: &[u8],
    ) -> Result<(), DeviceError> {
        if let Ok(page) = <&Page>::try_from(data) {
            return self.put_page(workspace, block, page, From::Write).map(drop);
        }
        let lock = self.inner.locks.lock(block);
        self.inner.with_page(workspace, |workspace, page| {
            if !self.cached(workspace, block, page)? {
                let number = workspace.number;
                let mut chunk = self.buffers[number].lock().unwrap_or_else(PoisonError::into_inner);
                self.read_place(block, &mut chunk.0[..PAGE])?;
                page.copy_from_slice(&chunk.0[..PAGE]);
            }
            page[from..from + data.len()].copy_from_slice(data);
            let object = match same_filled(page) {
                Some(_) => None,
                None => compress(workspace, page),
            };
            self.put_locked(workspace, &lock, block, page, object, From::Write).map(drop)
        })
    }

    /// Puts a page into the cache. Whether it is there now due to that: what was read is left out
    /// where something has changed since.
    fn put_page(
        &self,
        workspace: &mut Workspace,
        block: u64,
        page: &Page,
        from: From,
    ) -> Result<bool, DeviceError> {
        // Before the lock is taken.
        let object = match same_filled(page) {
            Some(_) => None,
            None => compress(workspace, page),
        };
        let lock = self.inner.locks.lock(block);
        self.put_locked(workspace, &lock, block, page, object, from)
    }

    fn put_locked(
        &self,
        workspace: &mut Workspace,
        lock: &PageLock<'_>,
        block: u64,
        page: &Page,
        object: Option<(u8, usize)>,
        from: From,
    ) -> Result<bool, DeviceError> {
        let before = self.mark_of(lock, block);
        let age = self.marks.age();
        let mark = match (from, before) {
            (From::Read(Begun { age, trims }), before) => {
                let is_old = !self.marks.none_left_since(age) || self.counters.trims.get() != trims;
                if before.is_some() || is_old {
                    return Ok(false);
                }
                Marks::mark(READ, self.marks.age())
            }
            // It leaves when it would have left.
            (From::Write, Some(before)) if before & DIRTY != 0 => {
                before & !(super::marks::WRITING | READ)
            }
            (From::Write, _) => Marks::mark(DIRTY, age),
        };
        let store = &self.inner.store;
        self.inner.store_with_room(block, || match same_filled(page) {
            Some(word) if word as u32 == (word >> 32) as u32 => {
                store.exchange_pattern(block, word as u32, mark)
            }
            Some(word) => store.exchange_word(block, word, mark),
            None => {
                let (encoding, bytes) = match object {
                    Some((encoding, len)) => (encoding, &workspace.made[..len]),
                    None => (RAW, &page[..]),
                };
                store.exchange_object(block, encoding, bytes, mark)
            }
        })?;
        if before.is_none() {
            self.marks.pages.fetch_add(1, Ordering::Relaxed);
        }
        if from == From::Write {
            if before.is_none_or(|before| before & DIRTY == 0) {
                // A reader that did not find the page has an age that is not above this one.
                store.set_mark(block, Marks::mark(DIRTY, self.marks.age()));
                self.marks.dirty.fetch_add(1, Ordering::Relaxed);
            }
            // Also of a page that was dirty: a flush may be writing what it was.
            self.marks.note_dirty(block);
        }
        Ok(true)
    }
}

/// Which bytes of a page a request has, and where they are in its buffer.
fn place_of(offset: u64, end: u64, block: u64) -> (Range<usize>, Range<usize>) {
    let start = block * PAGE as u64;
    let (from, to) = (start.max(offset), (start + PAGE as u64).min(end));
    (
        (from - start) as usize..(to - start) as usize,
        (from - offset) as usize..(to - offset) as usize,
    )
}
