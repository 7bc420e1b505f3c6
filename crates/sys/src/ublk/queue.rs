//! The requests of one hardware queue.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use io_uring::{IoUring, opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::abi::{self, Descriptor, DeviceInfo, IoCommand};
use crate::mem::Pages;
use crate::{Errno, PAGE_SIZE};

const SECTOR_SHIFT: u32 = 9;

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Fill this.
    Read(&'a mut [u8]),
    /// Keep this.
    Write(&'a [u8]),
    /// Make durable what was written before.
    Flush,
    /// This number of bytes is not needed any more.
    Discard(u64),
    /// This number of bytes reads as zeros from then on.
    WriteZeroes {
        /// How many.
        bytes: u64,
        /// They may be discarded.
        may_unmap: bool,
    },
}

/// A request of the kernel's.
#[derive(Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The first byte; zero for a flush.
    pub offset: u64,
    /// What to do.
    pub operation: Operation<'a>,
    /// It must be durable when it is done.
    pub is_forced: bool,
}

/// The file by which the queues of a device are served. Only one process at a time has it open, and
/// only once.
pub struct Queues {
    file: File,
    info: DeviceInfo,
}

impl Queues {
    /// Opens it.
    ///
    /// # Errors
    /// `EBUSY` while a server has it open.
    pub fn open(info: &DeviceInfo) -> io::Result<Queues> {
        let path = PathBuf::from(format!("/dev/ublkc{}", info.device));
        Ok(Queues { file: File::options().read(true).write(true).open(path)?, info: *info })
    }
}

/// The descriptors of a queue's requests, which the kernel writes.
struct Descriptors {
    start: *const Descriptor,
    bytes: usize,
}

impl Descriptors {
    fn new(queues: &Queues, queue: u16) -> Result<Descriptors, Errno> {
        let size = |depth: usize| (depth * size_of::<Descriptor>()).next_multiple_of(PAGE_SIZE);
        let bytes = size(usize::from(queues.info.queue_depth));
        let offset = u64::from(queue) * size(abi::DEPTH_MAX) as u64;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, flags, &queues.file, offset)? };
        Ok(Descriptors { start: start.cast(), bytes })
    }

    fn read(&self, tag: u16) -> Descriptor {
        let index = usize::from(tag);
        assert!((index + 1) * size_of::<Descriptor>() <= self.bytes);
        // SAFETY: inside the mapping; the kernel does not write it while the request is here, but
        // the compiler must not read it at another time.
        unsafe { self.start.add(index).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing refers into it any more.
        let unmapped = unsafe { munmap(self.start.cast_mut().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// One queue of a device. The thread that [fetches](Queue::fetch) it must also
/// [serve](Queue::serve) it: the kernel takes that thread for its server.
pub struct Queue {
    // Dropped first: what the kernel still does with the buffers ends with it.
    ring: IoUring,
    descriptors: Descriptors,
    /// The same number of bytes for each tag. A request that reads or writes has its data there.
    buffers: Pages,
    buffer_bytes: usize,
    queues: Arc<Queues>,
    queue: u16,
}

impl Queue {
    /// Makes what is needed to serve a queue, and hands all its tags to the kernel to put requests
    /// into.
    ///
    /// # Errors
    /// What the kernel says of the ring, of the memory, or of the queue: it is served already.
    pub fn fetch(queues: &Arc<Queues>, queue: u16) -> io::Result<Queue> {
        let depth = queues.info.queue_depth;
        let buffer_bytes = queues.info.request_bytes_max as usize;
        let mut fetched = Queue {
            ring: IoUring::builder().build(u32::from(depth).next_power_of_two())?,
            descriptors: Descriptors::new(queues, queue)?,
            buffers: Pages::new(buffer_bytes * usize::from(depth))?,
            buffer_bytes,
            queues: Arc::clone(queues),
            queue,
        };
        for tag in 0..depth {
            fetched.push(abi::IO_FETCH, tag, 0)?;
        }
        fetched.ring.submit()?;
        // What is refused is so at once.
        if let Some(refused) = fetched.ring.completion().next() {
            return Err(io::Error::from_raw_os_error(-refused.result().min(0)));
        }
        Ok(fetched)
    }

    /// Answers requests, by `answer`, until the device is stopped. It allocates nothing.
    ///
    /// # Errors
    /// What io_uring_enter(2) says; requests are not answered any more then.
    pub fn serve(
        &mut self,
        mut answer: impl FnMut(Request<'_>) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let mut tags_left = self.queues.info.queue_depth;
        while tags_left > 0 {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            loop {
                let Some(entry) = self.ring.completion().next() else { break };
                let tag = entry.user_data() as u16;
                match entry.result() {
                    0 => {
                        let result = self.answer_one(tag, &mut answer);
                        self.push(abi::IO_COMMIT_AND_FETCH, tag, result)?;
                    }
                    // The device is being stopped, or this queue is not its server's any more.
                    _ => tags_left -= 1,
                }
            }
        }
        Ok(())
    }

    fn answer_one(
        &mut self,
        tag: u16,
        answer: &mut impl FnMut(Request<'_>) -> Result<(), Errno>,
    ) -> i32 {
        let descriptor = self.descriptors.read(tag);
        let place = usize::from(tag) * self.buffer_bytes;
        let buffer = &mut self.buffers[place..place + self.buffer_bytes];
        let Some(request) = request(&descriptor, buffer) else {
            return -Errno::OPNOTSUPP.raw_os_error();
        };
        let moved = match &request.operation {
            Operation::Read(data) => data.len(),
            Operation::Write(data) => data.len(),
            _ => 0,
        };
        match answer(request) {
            Ok(()) => moved as i32,
            Err(errno) => -errno.raw_os_error(),
        }
    }

    fn push(&mut self, command: u32, tag: u16, result: i32) -> io::Result<()> {
        let place = usize::from(tag) * self.buffer_bytes;
        let address = self.buffers[place..].as_ptr() as u64;
        let content = IoCommand { queue: self.queue, tag, result, address };
        let mut bytes = [0u8; 16];
        // SAFETY: plain numbers without padding, as long as the place.
        unsafe { bytes.as_mut_ptr().cast::<IoCommand>().write_unaligned(content) };
        let file = types::Fd(self.queues.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(file, command).cmd(bytes).build();
        // SAFETY: the kernel uses the file and the buffer until this tag's completion or the end of
        // the ring, which are dropped later. Nobody else uses the buffer between.
        unsafe { self.ring.submission().push(&entry.user_data(u64::from(tag))) }
            .map_err(|_| io::Error::other("a queue's ring has fewer places than it has requests"))
    }
}

/// It is not an error of the ring: a signal came, or there is no memory just now.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::INTR, Errno::AGAIN, Errno::BUSY];
    error.raw_os_error().is_some_and(|raw| passing.iter().any(|errno| errno.raw_os_error() == raw))
}

/// What a descriptor asks for; `None` for what was not offered to the kernel, and for a request
/// with more data than the buffer holds.
fn request<'a>(descriptor: &Descriptor, buffer: &'a mut [u8]) -> Option<Request<'a>> {
    let bytes = u64::from(descriptor.sectors) << SECTOR_SHIFT;
    let flags = descriptor.operation_and_flags;
    let operation = match flags & abi::OPERATION_MASK {
        abi::OPERATION_READ => Operation::Read(buffer.get_mut(..bytes as usize)?),
        abi::OPERATION_WRITE => Operation::Write(buffer.get(..bytes as usize)?),
        abi::OPERATION_FLUSH => Operation::Flush,
        abi::OPERATION_DISCARD => Operation::Discard(bytes),
        abi::OPERATION_WRITE_ZEROES => {
            Operation::WriteZeroes { bytes, may_unmap: flags & abi::FLAG_NO_UNMAP == 0 }
        }
        _ => return None,
    };
    // The kernel numbers no sector in a flush, and gives the highest number there is.
    let offset = match operation {
        Operation::Flush => 0,
        _ => descriptor.start_sector.checked_mul(1 << SECTOR_SHIFT)?,
    };
    Some(Request { offset, operation, is_forced: flags & abi::FLAG_FUA != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(operation_and_flags: u32, sectors: u32) -> Descriptor {
        Descriptor { operation_and_flags, sectors, start_sector: 24, address: 0 }
    }

    #[test]
    fn a_descriptor_becomes_what_it_asks_for() {
        let mut buffer = [7; 8192];
        let mut asked = |flags, sectors| {
            request(&descriptor(flags, sectors), &mut buffer).map(|request| {
                assert_eq!(request.offset, 24 * 512);
                let operation = format!("{:?}", request.operation);
                (operation.replace("7, ", ""), request.is_forced)
            })
        };
        let some = |operation: &str, is_forced| Some((operation.to_owned(), is_forced));
        assert_eq!(asked(abi::OPERATION_READ, 8), some("Read([7])", false));
        assert_eq!(asked(abi::OPERATION_WRITE | abi::FLAG_FUA, 16), some("Write([7])", true));
        assert_eq!(asked(abi::OPERATION_WRITE, 17), None, "more than the buffer holds");
        assert_eq!(asked(abi::OPERATION_DISCARD, 1 << 20), some("Discard(536870912)", false));
        let zeroes = |may_unmap| format!("WriteZeroes {{ bytes: 4096, may_unmap: {may_unmap} }}");
        assert_eq!(asked(abi::OPERATION_WRITE_ZEROES, 8), some(&zeroes(true), false));
        let kept = abi::OPERATION_WRITE_ZEROES | abi::FLAG_NO_UNMAP;
        assert_eq!(asked(kept, 8), some(&zeroes(false), false));
        let flush = Descriptor { start_sector: u64::MAX, ..descriptor(abi::OPERATION_FLUSH, 0) };
        let asked_flush = request(&flush, &mut []).unwrap();
        assert_eq!((asked_flush.offset, asked_flush.operation), (0, Operation::Flush));
        assert_eq!(asked(4, 8), None, "the kernel was not told of WRITE_SAME");
    }
}
