//! A small io_uring: reads and writes of one file that go on while the thread does other things.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io_uring::{
    IORING_OFF_CQ_RING, IORING_OFF_SQ_RING, IORING_OFF_SQES, IoringEnterFlags, IoringFeatureFlags,
    IoringOp, IoringRegisterOp, io_uring_cqe, io_uring_enter, io_uring_params, io_uring_ptr,
    io_uring_register, io_uring_setup, io_uring_sqe, io_uring_user_data,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::{Errno, PAGE_SIZE};

/// Memory of the kernel that describes operations to do and operations that are done.
struct Mapping {
    start: NonNull<c_void>,
    len: usize,
}

impl Mapping {
    fn new(ring: &OwnedFd, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping of the ring, at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), len, access, flags, ring, offset)? };
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        // A forked child has a copy of neither the ring nor what it works on.
        // SAFETY: advice on a mapping of ours.
        unsafe { madvise(start.as_ptr(), len, Advice::LinuxDontFork)? };
        Ok(Mapping { start, len })
    }

    /// The word at an offset that the kernel gave.
    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel's offsets are of aligned words inside the mapping, which both sides
        // use as atomics.
        unsafe { self.start.cast::<u8>().add(offset as usize).cast::<AtomicU32>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers into it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.len) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Keeps a file open as long as this address space lives: as one of the files of a ring that stays
/// mapped. A forked child does not have the mapping.
///
/// # Errors
/// As [`Ring::new`].
pub(crate) fn keep_open(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut params = io_uring_params::default();
    // SAFETY: no flags, so no descriptor to attach to.
    let ring = unsafe { io_uring_setup(1, &mut params)? };
    let files = [file.as_raw_fd()];
    // SAFETY: a list of one descriptor, which the kernel copies.
    unsafe {
        io_uring_register(&ring, IoringRegisterOp::RegisterFiles, files.as_ptr().cast(), 1)?;
    }
    core::mem::forget(Mapping::new(&ring, IORING_OFF_SQ_RING, PAGE_SIZE)?);
    Ok(())
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As it was given with the operation.
    pub token: u64,
    /// Bytes that were read or written, or why none were.
    pub result: Result<usize, Errno>,
}

/// An io_uring of one thread. Dropping it does not wait for the operations under way.
pub struct Ring {
    fd: OwnedFd,
    params: io_uring_params,
    /// Both rings: one mapping since Linux 5.4.
    rings: Mapping,
    entries: Mapping,
    /// Operations that were submitted and whose completion was not seen.
    under_way: u32,
}

impl Ring {
    /// A ring for that many operations at a time, a power of two.
    ///
    /// # Errors
    /// `ENOSYS` where the kernel has no io_uring (or one before Linux 5.5); `EPERM` where it is not
    /// allowed (kernel.io_uring_disabled, a container's filter).
    pub fn new(operations: u32) -> Result<Ring, Errno> {
        let mut params = io_uring_params::default();
        // SAFETY: no flags, so no descriptor to attach to.
        let fd = unsafe { io_uring_setup(operations, &mut params)? };
        if !params.features.contains(IoringFeatureFlags::SINGLE_MMAP | IoringFeatureFlags::NODROP) {
            return Err(Errno::NOSYS);
        }
        let submissions =
            params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
        let completions =
            params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<io_uring_cqe>();
        let rings = Mapping::new(&fd, IORING_OFF_SQ_RING, submissions.max(completions))?;
        let entries = Mapping::new(
            &fd,
            IORING_OFF_SQES,
            params.sq_entries as usize * size_of::<io_uring_sqe>(),
        )?;
        const { assert!(IORING_OFF_CQ_RING != IORING_OFF_SQ_RING) };
        Ok(Ring { fd, params, rings, entries, under_way: 0 })
    }

    /// Whether another operation can be submitted.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way < self.params.sq_entries
    }

    /// How many operations are under way.
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// Begins to read from a place in a file.
    ///
    /// # Errors
    /// `EBUSY` if there is no room, or why the kernel would not take it; then nothing is under way.
    ///
    /// # Safety
    /// `bytes` to `bytes + len` is writable memory that nobody else uses until [`Self::complete`]
    /// has returned the operation, and the file stays open as long.
    pub unsafe fn read(
        &mut self,
        file: impl AsFd,
        offset: u64,
        bytes: *mut u8,
        len: usize,
        token: u64,
    ) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.submit(IoringOp::Read, file, offset, bytes, len, token) }
    }

    /// Begins to write to a place in a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    ///
    /// # Safety
    /// `bytes` to `bytes + len` is readable memory that nobody changes until [`Self::complete`] has
    /// returned the operation, and the file stays open as long.
    pub unsafe fn write(
        &mut self,
        file: impl AsFd,
        offset: u64,
        bytes: *const u8,
        len: usize,
        token: u64,
    ) -> Result<(), Errno> {
        // SAFETY: passed on to the caller.
        unsafe { self.submit(IoringOp::Write, file, offset, bytes.cast_mut(), len, token) }
    }

    unsafe fn submit(
        &mut self,
        operation: IoringOp,
        file: impl AsFd,
        offset: u64,
        bytes: *mut u8,
        len: usize,
        token: u64,
    ) -> Result<(), Errno> {
        if !self.has_room() {
            return Err(Errno::BUSY);
        }
        let len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
        let sq = &self.params.sq_off;
        let tail = self.rings.word(sq.tail);
        let place = tail.load(Ordering::Relaxed);
        let index = place & self.rings.word(sq.ring_mask).load(Ordering::Relaxed);
        let mut entry = io_uring_sqe {
            opcode: operation,
            fd: file.as_fd().as_raw_fd(),
            user_data: io_uring_user_data::from_u64(token),
            ..io_uring_sqe::default()
        };
        entry.off_or_addr2.off = offset;
        entry.addr_or_splice_off_in.addr = io_uring_ptr::new(bytes.cast());
        entry.len.len = len;
        // SAFETY: the index is below the number of entries, by the mask; the kernel has taken what
        // was there before, for every submission is entered at once.
        unsafe { self.entries.start.cast::<io_uring_sqe>().add(index as usize).write(entry) };
        self.rings.word(sq.array + index * size_of::<u32>() as u32).store(index, Ordering::Relaxed);
        tail.store(place.wrapping_add(1), Ordering::Release);
        loop {
            // SAFETY: one entry, which is written above; the caller vouches for what it names.
            match unsafe { io_uring_enter(&self.fd, 1, 0, IoringEnterFlags::empty()) } {
                Ok(1) => {
                    self.under_way += 1;
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                refused => {
                    // The kernel has not taken the entry: it is withdrawn.
                    tail.store(place, Ordering::Release);
                    return Err(refused.err().unwrap_or(Errno::AGAIN));
                }
            }
        }
    }

    /// The next operation that is done; `None` if there is none.
    pub fn complete(&mut self) -> Option<Completion> {
        let cq = &self.params.cq_off;
        let head = self.rings.word(cq.head);
        let place = head.load(Ordering::Relaxed);
        if place == self.rings.word(cq.tail).load(Ordering::Acquire) {
            return None;
        }
        let index = place & self.rings.word(cq.ring_mask).load(Ordering::Relaxed);
        let start = self.rings.start.cast::<u8>();
        // SAFETY: the kernel has written this entry, as its tail says, and leaves it until the head
        // has passed it.
        let (user_data, result) = unsafe {
            let entries = start.add(cq.cqes as usize).cast::<io_uring_cqe>();
            let entry = entries.add(index as usize).as_ref();
            (entry.user_data.u64_(), entry.res)
        };
        head.store(place.wrapping_add(1), Ordering::Release);
        self.under_way -= 1;
        let result = match u32::try_from(result) {
            Ok(bytes) => Ok(bytes as usize),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        Some(Completion { token: user_data, result })
    }

    /// Waits until an operation is done.
    ///
    /// # Errors
    /// What io_uring_enter(2) says, but for interruptions.
    pub fn wait(&mut self) -> Result<(), Errno> {
        loop {
            // SAFETY: nothing is submitted.
            match unsafe { io_uring_enter(&self.fd, 0, 1, IoringEnterFlags::GETEVENTS) } {
                Err(Errno::INTR) => {}
                other => return other.map(drop),
            }
        }
    }
}

/// Readable for poll(2) while there is an operation for [`Ring::complete`].
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd as _;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn ring(operations: u32) -> Option<Ring> {
        match Ring::new(operations) {
            Ok(ring) => Some(ring),
            Err(Errno::NOSYS | Errno::PERM) => {
                println!("io_uring is not allowed here");
                None
            }
            Err(errno) => panic!("{errno}"),
        }
    }

    #[test]
    fn reads_and_writes_are_told_when_they_are_done() {
        let Some(mut ring) = ring(4) else { return };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8192]).unwrap();
        let mut buffers = [[0u8; 4096]; 3];
        let source = [9u8; 4096];
        // SAFETY: the buffers are looked at only when all is done.
        unsafe {
            ring.write(file.as_fd(), 8192, source.as_ptr(), 4096, 77).unwrap();
            ring.wait().unwrap();
            assert_eq!(ring.complete(), Some(Completion { token: 77, result: Ok(4096) }));
            assert_eq!(ring.complete(), None);
            for (token, buffer) in (0..).zip(&mut buffers) {
                let offset = [4096, 8192, 1 << 20][token as usize];
                ring.read(file.as_fd(), offset, buffer.as_mut_ptr(), 4096, token).unwrap();
            }
        }
        let mut done = Vec::new();
        while ring.under_way() > 0 {
            poll(&mut [PollFd::new(&ring, PollFlags::IN)], None).unwrap();
            while let Some(completion) = ring.complete() {
                done.push((completion.token, completion.result));
            }
        }
        done.sort_unstable_by_key(|&(token, _)| token);
        // Behind the end there is nothing.
        assert_eq!(done, [(0, Ok(4096)), (1, Ok(4096)), (2, Ok(0))]);
        assert_eq!((buffers[0][0], buffers[1][4095], buffers[2][0]), (1, 9, 0));
    }

    #[test]
    fn what_is_refused_is_not_under_way() {
        let Some(mut ring) = ring(2) else { return };
        let file = tempfile::tempfile().unwrap();
        let (_, writer) = std::io::pipe().unwrap();
        let mut buffer = [0u8; 4096];
        // SAFETY: the buffer outlives both, and is not looked at.
        unsafe {
            // Not readable: the completion says so.
            ring.read(writer.as_fd(), 0, buffer.as_mut_ptr(), 4096, 5).unwrap();
            ring.wait().unwrap();
            assert_eq!(ring.complete(), Some(Completion { token: 5, result: Err(Errno::BADF) }));
            for token in 0..2 {
                ring.read(file.as_fd(), 0, buffer.as_mut_ptr(), 4096, token).unwrap();
            }
            assert!(!ring.has_room());
            let refused = ring.read(file.as_fd(), 0, buffer.as_mut_ptr(), 4096, 9);
            assert_eq!(refused, Err(Errno::BUSY));
        }
        let mut seen = 0;
        while ring.under_way() > 0 {
            ring.wait().unwrap();
            while let Some(completion) = ring.complete() {
                assert_eq!(completion.result, Ok(0));
                seen += 1;
            }
        }
        assert_eq!(seen, 2);
    }
}
