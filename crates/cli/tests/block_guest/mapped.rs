//! A file's bytes as memory.

use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file, mapped whole and shared. Nobody may make it shorter meanwhile.
pub(super) struct Mapped {
    start: NonNull<u8>,
    len: usize,
}

impl Mapped {
    pub(super) fn new(file: &File, len: usize) -> Mapped {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where, so that no other memory is replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }.unwrap();
        Mapped { start: NonNull::new(start.cast()).unwrap(), len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until the drop, and the file is as long: its test alone has it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and there is no other mapping of the file.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nothing that was borrowed from it is left.
        unsafe { munmap(self.start.as_ptr().cast(), self.len) }.unwrap();
    }
}
