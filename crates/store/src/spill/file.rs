//! A [`Disk`] that is a file: by io_uring where it is allowed, else by pread(2) and pwrite(2).

use ramfold_sys::Errno;
use ramfold_sys::file::DirectFile;
use ramfold_sys::uring::Ring;

use super::Disk;

/// A [`Disk`] over an open file. A write goes on while the caller does other things where io_uring
/// is allowed.
pub struct SpillWriter<'f> {
    file: &'f DirectFile,
    ring: Option<Ring>,
    under_way: UnderWay,
}

enum UnderWay {
    /// How the last write ended, if it was made at once.
    Done(Result<(), Errno>),
    Write {
        offset: u64,
        bytes: *const u8,
        len: usize,
    },
}

// SAFETY: the pointer is to what the caller of `begin_write` keeps until it is done.
unsafe impl Send for SpillWriter<'_> {}

impl<'f> SpillWriter<'f> {
    /// Writes to `file`; with io_uring if `with_ring` and if it is allowed.
    pub fn new(file: &'f DirectFile, with_ring: bool) -> SpillWriter<'f> {
        let ring = if with_ring { Ring::new(1).ok() } else { None };
        SpillWriter { file, ring, under_way: UnderWay::Done(Ok(())) }
    }

    /// Waits for the write that the ring has begun. The part that it left unwritten is written
    /// here.
    fn wait(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let Some(ring) = &mut self.ring else { return Err(Errno::INVAL) };
        let completion = loop {
            if let Some(completion) = ring.complete() {
                break completion;
            }
            ring.wait()?;
        };
        match completion.result {
            Ok(written) => match bytes.get(written..) {
                Some([]) => Ok(()),
                Some(rest) => self.file.write_at(offset + written as u64, rest),
                None => Err(Errno::IO),
            },
            Err(Errno::INTR | Errno::AGAIN) => self.file.write_at(offset, bytes),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for SpillWriter<'_> {
    fn drop(&mut self) {
        // The kernel may still be reading what is to be written.
        let _ = self.finish_write();
    }
}

impl Disk for SpillWriter<'_> {
    unsafe fn begin_write(&mut self, offset: u64, bytes: &[u8]) {
        if let Some(ring) = &mut self.ring {
            // SAFETY: the bytes stay until `finish_write` has seen the completion (the caller).
            let begun = unsafe { ring.write(self.file, offset, bytes.as_ptr(), bytes.len(), 0) };
            if begun.is_ok() {
                let (bytes, len) = (bytes.as_ptr(), bytes.len());
                self.under_way = UnderWay::Write { offset, bytes, len };
                return;
            }
            // A filter of system calls may have been set meanwhile.
            self.ring = None;
        }
        self.under_way = UnderWay::Done(self.file.write_at(offset, bytes));
    }

    fn finish_write(&mut self) -> Result<(), Errno> {
        match core::mem::replace(&mut self.under_way, UnderWay::Done(Ok(()))) {
            UnderWay::Done(result) => result,
            UnderWay::Write { offset, bytes, len } => {
                // SAFETY: they are still there (the caller of `begin_write`).
                let bytes = unsafe { core::slice::from_raw_parts(bytes, len) };
                self.wait(offset, bytes)
            }
        }
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.file.read_at(offset, bytes)
    }
}
