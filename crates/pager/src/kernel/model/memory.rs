//! The address space of the model: what is mapped, what a page holds, and what the agent's calls do
//! to it.

use core::ops::Range;

use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};

use super::program::{Fault, Random, State, Tag, pages_in, range_of};

/// The content that a tag stands for: same-filled, incompressible, or between.
pub(super) fn content(tag: Tag) -> Box<[u8; PAGE_SIZE]> {
    const WORDS: usize = PAGE_SIZE / size_of::<u64>();
    let mut words = [tag; WORDS];
    match tag % 8 {
        0 => {}
        1 => {
            let mut random = Random::new(tag);
            let mut nth = 0;
            while nth < WORDS {
                words[nth] = random.next();
                nth += 1;
            }
        }
        _ => {
            let mut nth = 0;
            while nth < WORDS {
                words[nth] = tag.wrapping_add(nth as u64);
                nth += 16;
            }
        }
    }
    // SAFETY: bytes of numbers; any are valid.
    Box::new(unsafe { core::mem::transmute::<[u64; WORDS], [u8; PAGE_SIZE]>(words) })
}

/// What the program may do with a page: mprotect(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Access {
    None,
    Read,
    #[default]
    Write,
}

/// A page of address space that is mapped.
#[derive(Clone, Default)]
pub(super) struct Mapped {
    pub(super) is_registered: bool,
    pub(super) is_protected: bool,
    /// The kernel's page of zeros is mapped.
    pub(super) is_zero_page: bool,
    /// A fork has made it shared, and nobody has written to it here since.
    pub(super) was_shared: bool,
    pub(super) access: Access,
    /// The program has given it up (MADV_FREE) and has not written to it since: it may become
    /// zeros.
    pub(super) is_free: bool,
    pub(super) content: Option<Box<[u8; PAGE_SIZE]>>,
}

impl Mapped {
    pub(super) fn drop_content(&mut self) {
        *self =
            Mapped { is_registered: self.is_registered, access: self.access, ..Mapped::default() };
    }

    /// What tells one mapping from another that lies beside it.
    pub(super) fn kind(&self) -> (Access, bool) {
        (self.access, self.is_registered)
    }

    pub(super) fn allows(&self, write: bool) -> bool {
        self.access == Access::Write || !write && self.access == Access::Read
    }
}

impl State {
    pub(super) fn make_anonymous(&mut self, area: usize) {
        for page in pages_in(&range_of(area)) {
            self.pages.insert(page, Mapped::default());
            self.truth.insert(page, 0);
        }
    }

    pub(super) fn unregister(&mut self, range: &Range<usize>) {
        for page in pages_in(range) {
            if let Some(mapped) = self.pages.get_mut(&page) {
                mapped.is_registered = false;
                mapped.is_protected = false;
            }
        }
        self.wake(range);
    }

    /// # Safety
    /// `src` can be read.
    pub(super) unsafe fn copy(
        &mut self,
        dst: usize,
        src: *const u8,
        len: usize,
    ) -> Result<(), Partial> {
        self.fill(dst, len, |mapped, at| {
            // SAFETY: by the caller's word.
            let page = unsafe { src.add(at).cast::<[u8; PAGE_SIZE]>().read() };
            mapped.content = Some(Box::new(page));
        })
    }

    /// A thread of the agent's touches a page; `None` when it waits for its fault.
    pub(super) fn populate(&mut self, page: usize, write: bool) -> Option<Result<(), Errno>> {
        let thread = self.threads.len() - 1;
        let Some(mapped) = self.pages.get_mut(&page) else { return Some(Err(Errno::NOMEM)) };
        if !mapped.allows(write) {
            return Some(Err(Errno::FAULT));
        }
        let is_missing = mapped.content.is_none() && !mapped.is_zero_page;
        let write_protected = write && mapped.is_protected && !is_missing;
        if is_missing && mapped.is_registered || write_protected {
            self.faults.push_back(Fault { thread, page, write, write_protected, is_read: false });
            self.threads[thread].waits_for_fault = true;
            return None;
        }
        if is_missing || write && mapped.is_zero_page {
            mapped.content = Some(content(0));
            mapped.is_zero_page = false;
        }
        mapped.was_shared &= !write;
        mapped.is_free &= !write;
        Some(Ok(()))
    }

    pub(super) fn agent_waits(&self) -> bool {
        self.threads.last().is_some_and(|thread| thread.waits_for_fault)
    }

    pub(super) fn drop_pages(&mut self, range: Range<usize>, lazily: bool) {
        for page in pages_in(&range) {
            let mapped = self.pages.get_mut(&page).unwrap();
            if lazily && mapped.content.is_some() {
                mapped.is_free = true;
                continue;
            }
            mapped.drop_content();
            self.truth.insert(page, 0);
        }
    }

    /// The kernel needs memory, and takes what was given up.
    pub(super) fn take_free(&mut self) {
        for (page, mapped) in &mut self.pages {
            // What a relative has too stays.
            if mapped.is_free && !mapped.was_shared && mapped.content.is_some() {
                mapped.drop_content();
                self.truth.insert(*page, 0);
            }
        }
    }

    /// mprotect(2): nobody is told.
    pub(super) fn protect(&mut self, range: Range<usize>, access: Access) {
        for page in pages_in(&range) {
            self.pages.get_mut(&page).unwrap().access = access;
        }
    }

    /// Is it all one mapping?
    pub(super) fn is_alike(&self, range: &Range<usize>) -> bool {
        let kind = |page| self.pages.get(&page).map(Mapped::kind);
        let first = kind(range.start);
        first.is_some() && pages_in(range).all(|page| kind(page) == first)
    }

    pub(super) fn is_registered_alike(&self, range: &Range<usize>) -> bool {
        self.is_alike(range) && self.pages[&range.start].is_registered
    }

    /// MOVE wants one mapping on each side, with the same access: staging's.
    pub(super) fn can_move(&self, dst: &Range<usize>, src: &Range<usize>) -> bool {
        let of_program = if self.is_staging(dst.start) { src } else { dst };
        // What is gone is for the move itself to find.
        let Some(first) = self.pages.get(&of_program.start) else { return true };
        first.access == Access::Write && self.is_alike(of_program)
    }

    /// Reads each page of the program's, or says which are missing.
    pub(crate) fn check_all(&self) -> usize {
        let mut missing = 0;
        for (page, mapped) in &self.pages {
            if mapped.content.is_some() || mapped.is_zero_page {
                check(mapped, self.truth[page], *page);
            } else if mapped.is_registered {
                missing += 1;
            } else {
                assert_eq!(self.truth[page], 0, "{page:#x} is missing, and nobody is asked for it");
            }
        }
        missing
    }

    /// Anonymous memory in RAM: the program's, and staging.
    pub(super) fn resident_bytes(&self) -> u64 {
        let pages = self.pages.values().filter(|mapped| mapped.content.is_some()).count();
        ((pages + self.staged.iter().filter(|&&has| has).count()) * PAGE_SIZE) as u64
    }

    pub(super) fn mapped_bytes(&self) -> u64 {
        (self.pages.len() * PAGE_SIZE) as u64
    }

    /// The mappings as /proc/self/maps has them.
    pub(super) fn mappings(&self) -> Vec<(Range<usize>, Access)> {
        let mut mappings: Vec<(Range<usize>, (Access, bool))> = Vec::new();
        for (&page, mapped) in &self.pages {
            match mappings.last_mut() {
                Some((range, kind)) if range.end == page && *kind == mapped.kind() => {
                    range.end += PAGE_SIZE;
                }
                _ => mappings.push((page..page + PAGE_SIZE, mapped.kind())),
            }
        }
        mappings.into_iter().map(|(range, (access, _))| (range, access)).collect()
    }

    /// What other processes have too since a fork.
    pub(super) fn shared_bytes(&self) -> u64 {
        let shared = self.pages.values().filter(|mapped| mapped.was_shared).count();
        (shared * PAGE_SIZE) as u64
    }

    pub(super) fn wake(&mut self, range: &Range<usize>) {
        for fault in self.faults.iter().filter(|fault| range.contains(&fault.page)) {
            self.threads[fault.thread].waits_for_fault = false;
        }
        self.faults.retain(|fault| !range.contains(&fault.page));
    }

    pub(super) fn is_staging(&self, address: usize) -> bool {
        self.staging.contains(&address)
    }

    pub(super) fn slot(&mut self, address: usize) -> &mut bool {
        &mut self.staged[(address - self.staging.start) / PAGE_SIZE]
    }

    /// Another process reads a page of staging (process_vm_readv(2), a debugger): where there is
    /// none the kernel maps its page of zeros.
    pub(crate) fn read_from_outside(&mut self, address: usize) {
        let slot = self.slot(address);
        if !core::mem::replace(slot, true) {
            // SAFETY: staging can be written, and nobody knows of a page there.
            unsafe { (address as *mut [u8; PAGE_SIZE]).write([0; PAGE_SIZE]) };
        }
    }

    pub(super) fn fill(
        &mut self,
        dst: usize,
        len: usize,
        mut with: impl FnMut(&mut Mapped, usize),
    ) -> Result<(), Partial> {
        let fail = |done, errno| Err(Partial { done, errno });
        if self.changing > 0 {
            return fail(0, Errno::AGAIN);
        }
        for done in (0..len).step_by(PAGE_SIZE) {
            match self.pages.get_mut(&(dst + done)) {
                Some(mapped) if !mapped.is_registered => return fail(done, Errno::NOENT),
                None => return fail(done, Errno::NOENT),
                Some(mapped) if mapped.content.is_some() || mapped.is_zero_page => {
                    return fail(done, Errno::EXIST);
                }
                Some(mapped) => with(mapped, done),
            }
        }
        Ok(())
    }

    pub(super) fn has_page(&mut self, address: usize) -> bool {
        if self.is_staging(address) {
            return *self.slot(address);
        }
        self.pages
            .get(&address)
            .is_some_and(|mapped| mapped.content.is_some() || mapped.is_zero_page)
    }

    /// Moves one page.
    ///
    /// # Safety
    /// One side is staging, which can be read and written.
    pub(super) unsafe fn move_page(&mut self, dst: usize, src: usize) -> Result<(), Errno> {
        if self.has_page(dst) {
            return Err(Errno::EXIST);
        }
        if !self.has_page(src) {
            return Err(Errno::NOENT);
        }
        if self.is_staging(dst) {
            let mapped = self.pages.get_mut(&src).ok_or(Errno::NOENT)?;
            if mapped.was_shared {
                return Err(Errno::BUSY);
            }
            // The page of zeros is not moved.
            let Some(page) = mapped.content.take() else { return Err(Errno::NOENT) };
            mapped.is_protected = false;
            mapped.is_free = false;
            // SAFETY: by the caller's word.
            unsafe { (dst as *mut [u8; PAGE_SIZE]).write(*page) };
            *self.slot(dst) = true;
        } else {
            let mapped = self.pages.get_mut(&dst).ok_or(Errno::NOENT)?;
            if !mapped.is_registered {
                return Err(Errno::NOENT);
            }
            // SAFETY: by the caller's word.
            mapped.content = Some(Box::new(unsafe { (src as *const [u8; PAGE_SIZE]).read() }));
            *self.slot(src) = false;
            self.wake(&(dst..dst + PAGE_SIZE));
        }
        Ok(())
    }
}

pub(super) fn check(mapped: &Mapped, tag: Tag, page: usize) {
    let found = mapped.content.as_deref().unwrap_or(&[0; PAGE_SIZE]);
    assert!(*found == *content(tag), "wrong bytes at {page:#x}, which must hold {tag:#x}");
}
