//! Reads that go on by themselves: they end in any order, after any time, and some fail.

use std::fs::File;

use ramfold_sys::Errno;
use ramfold_sys::uring::Completion;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Model, running};

pub(crate) struct Ring {
    model: Model,
    operations: usize,
    reads: Vec<Read>,
    /// What a ring can be waited for by.
    descriptor: File,
}

struct Read {
    file: OwnedFd,
    offset: u64,
    bytes: *mut u8,
    len: usize,
    token: u64,
}

impl Ring {
    pub(crate) fn new(operations: u32) -> Result<Ring, Errno> {
        let model = running().ok_or(Errno::NOSYS)?;
        if model.state().random.once_in(8) {
            return Err(Errno::PERM);
        }
        let descriptor = File::open("/dev/null").map_err(|_| Errno::NFILE)?;
        Ok(Ring { model, operations: operations as usize, reads: Vec::new(), descriptor })
    }

    pub(crate) fn under_way(&self) -> u32 {
        self.reads.len() as u32
    }

    /// # Safety
    /// `bytes` to `bytes + len` is the read's until [`Ring::complete`] has returned it.
    pub(crate) unsafe fn read(
        &mut self,
        file: impl AsFd,
        offset: u64,
        bytes: *mut u8,
        len: usize,
        token: u64,
    ) -> Result<(), Errno> {
        if self.reads.len() == self.operations {
            return Err(Errno::BUSY);
        }
        let file = file.as_fd().try_clone_to_owned().map_err(|_| Errno::NFILE)?;
        let read = Read { file, offset, bytes, len, token };
        // The disk has it at once, or when the read ends.
        if self.model.state().random.once_in(2) {
            read.transfer()?;
        }
        self.reads.push(read);
        Ok(())
    }

    pub(crate) fn complete(&mut self) -> Option<Completion> {
        let mut state = self.model.state();
        if self.reads.is_empty() || !state.random.once_in(8) {
            return None;
        }
        let read = self.reads.swap_remove(state.random.below(self.reads.len()));
        let result = match state.random.below(24) {
            0 => Err(Errno::IO),
            1 => Ok(read.len / 2),
            _ => read.transfer(),
        };
        Some(Completion { token: read.token, result })
    }
}

impl Read {
    fn transfer(&self) -> Result<usize, Errno> {
        // SAFETY: the memory is this read's, by the word of whoever began it.
        let bytes = unsafe { core::slice::from_raw_parts_mut(self.bytes, self.len) };
        rustix::io::pread(&self.file, bytes, self.offset)
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
