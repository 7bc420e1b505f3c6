//! Which thread does what: the threads that take requests, or others where it may take long.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fuser::{ReplyWrite, Request, WriteFlags};

use super::FileSystem;
use super::patience::Patience;
use super::writes::{Write, Written};

/// Requests that nobody waits for, reading ahead above all, that the kernel sends at a time.
pub(super) const BACKGROUND_MAX: u16 = 64;

/// Whose business it is to close what was removed.
pub(super) const NOBODY: u32 = u32::MAX;

/// Bytes of writes that are handed over at most. More are left in the kernel, which then waits for
/// all threads that take requests.
const QUEUED_MAX: usize = 8 << 20;

/// So many writes at a time wait until the kernel has dropped pages. Others are answered before:
/// all that the kernel sends at a time ([`BACKGROUND_MAX`]) could be writes, and the reads that
/// they wait for never come.
const DROPPING_MAX: usize = BACKGROUND_MAX as usize / 4;

/// How often it is tried whether somebody has given up a lease.
const LEASE_INTERVAL: Duration = Duration::from_millis(5);

/// Longer than the system leaves it to him (fs.lease-break-time, 45 s by default): he may take the
/// lease again and again.
const LEASE_MAX: Duration = Duration::from_secs(60);

/// Answers the kernel's requests.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its threads are done before the file system ends.
    pub(super) patience: Patience,
    /// Writes that wait until the kernel has dropped what it has of the same bytes.
    dropping: Arc<AtomicUsize>,
    /// Bytes of writes that were handed over.
    queued: Arc<AtomicUsize>,
    pub(super) file_system: Arc<FileSystem>,
}

impl Deref for Server {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.file_system
    }
}

impl Server {
    /// `threads`: how many take requests.
    pub(crate) fn new(file_system: FileSystem, threads: usize) -> Server {
        Server {
            patience: Patience::new(threads),
            dropping: Arc::default(),
            queued: Arc::default(),
            file_system: Arc::new(file_system),
        }
    }

    /// Does something that may take long.
    pub(crate) fn patiently(
        &self,
        request: &Request,
        task: impl FnOnce(&FileSystem) + Send + 'static,
    ) {
        let file_system = Arc::clone(&self.file_system);
        self.patience.run(request.uid(), move || task(&file_system));
    }

    /// Answers what opens a file of SOURCE. Where somebody holds a lease on it (F_SETLEASE in
    /// fcntl(2)), which he is told to give up, that is waited for on another thread.
    pub(crate) fn when_unleased<R: Send + 'static, T>(
        &self,
        request: &Request,
        reply: R,
        attempt: impl Fn(&FileSystem, &R) -> io::Result<T> + Send + 'static,
        answer: impl FnOnce(R, io::Result<T>) + Send + 'static,
    ) {
        let is_leased = |result: &io::Result<T>| {
            result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        let first = attempt(&self.file_system, &reply);
        if !is_leased(&first) {
            return answer(reply, first);
        }
        let (file_system, mut reply) = (Arc::clone(&self.file_system), Some(reply));
        let begun = Instant::now();
        let again = move |is_ending: bool| {
            let result = attempt(&file_system, reply.as_ref()?);
            let is_done = !is_leased(&result) || is_ending || begun.elapsed() > LEASE_MAX;
            is_done.then(|| Some((reply.take()?, result))).flatten()
        };
        let then = |(reply, result)| answer(reply, result);
        self.patience.wait_until(request.uid(), LEASE_INTERVAL, again, then);
    }

    /// Writes, and answers: here, or on another thread where all but one are at work.
    pub(crate) fn write_data(&self, write: Write, data: &[u8], reply: ReplyWrite) {
        let (dropping, waiting) = (Arc::clone(&self.dropping), self.patience.waiting());
        let caller = write.caller;
        // Written back is for nobody in particular: that is the opener's business.
        let user = match write.about.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => self.opener_of(write.handle),
            false => caller.user,
        };
        let write = move |file_system: &Arc<FileSystem>, data: &[u8]| {
            let (count, stale) = match file_system.write_file(&write, data) {
                Ok(Written { count, stale }) => (count, stale),
                Err(error) => return reply.error(error.into()),
            };
            let Some((inode, bytes)) = stale else { return reply.written(count) };
            let file_system = Arc::clone(file_system);
            if dropping.fetch_add(1, Ordering::Relaxed) < DROPPING_MAX {
                waiting.add(caller.user, move || {
                    file_system.drop_stale(&inode, bytes);
                    dropping.fetch_sub(1, Ordering::Relaxed);
                    reply.written(count);
                });
                return;
            }
            dropping.fetch_sub(1, Ordering::Relaxed);
            reply.written(count);
            if !inode.open_state().is_to_be_dropped.swap(true, Ordering::Relaxed) {
                waiting.add(caller.user, move || {
                    inode.open_state().is_to_be_dropped.store(false, Ordering::Relaxed);
                    file_system.drop_stale(&inode, 0..u64::MAX);
                });
            }
        };
        let here = self.patience.here();
        let bytes = data.len();
        if here.is_some() || self.queued.load(Ordering::Relaxed) + bytes > QUEUED_MAX {
            return write(&self.file_system, data);
        }
        let (file_system, data) = (Arc::clone(&self.file_system), data.to_vec());
        let queued = Arc::clone(&self.queued);
        queued.fetch_add(bytes, Ordering::Relaxed);
        self.patience.hand_over(user, move || {
            write(&file_system, &data);
            queued.fetch_sub(bytes, Ordering::Relaxed);
        });
    }
}
