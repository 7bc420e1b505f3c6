//! Has the kernel forget inodes that it does not use when what is known of them takes too much
//! memory.
//!
//! The kernel keeps what it was told of until it is short of memory itself. FUSE_NOTIFY_PRUNE
//! (Linux 6.18) has it drop an inode that nobody uses: not one that is open, mapped, somebody's
//! working directory or mounted over, nor a directory of which something else is known. Then it
//! says so (FUSE_FORGET), and the inode leaves the table.
//!
//! A thread of its own does that: the kernel may wait for pages that are being read or written, and
//! they wait for the threads that answer requests.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use super::inodes::{Inodes, Tally};
use crate::file::Accounts;

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_millis(500);
/// The memory is also looked at when the table has grown by this number of bytes.
const GROWTH_BYTES: u64 = 512 << 10;
/// What is asked of the kernel at once.
const BATCH: usize = 512;
/// How long to wait for the kernel to say what it has forgotten, of which most is to come.
const ANSWER: Duration = Duration::from_millis(200);
const LOOK: Duration = Duration::from_millis(5);
/// How long nothing is asked of it when nearly all are in use, at most.
const REST_MAX: Duration = Duration::from_secs(16);
/// When inodes are held by all descriptors but this part, as many are forgotten.
const DESCRIPTORS_PART: u64 = 8;

/// The kernel behind the mount.
pub(crate) trait Pruner: Send {
    /// Has it drop those of these inodes that are not in use.
    ///
    /// # Errors
    /// `EINVAL` where it cannot.
    fn prune(&self, nodes: &[u64]) -> io::Result<()>;
}

/// Tells the thread that the table grows.
#[derive(Debug)]
pub(crate) struct Wake {
    thread: SyncSender<()>,
    above_bytes: AtomicU64,
    above_descriptors: AtomicUsize,
}

impl Wake {
    #[cfg(test)]
    pub(crate) fn nobody() -> Wake {
        wake().0
    }

    pub(crate) fn grown(&self, bytes: u64, descriptors: usize) {
        if bytes > self.above_bytes.load(Ordering::Relaxed)
            || descriptors > self.above_descriptors.load(Ordering::Relaxed)
        {
            // Once, until the thread has come by.
            self.wake_above(u64::MAX, usize::MAX);
            // It has been told already, or the mount ends.
            let _ = self.thread.try_send(());
        }
    }

    fn wake_above(&self, bytes: u64, descriptors: usize) {
        self.above_bytes.store(bytes, Ordering::Relaxed);
        self.above_descriptors.store(descriptors, Ordering::Relaxed);
    }
}

pub(super) fn wake() -> (Wake, Receiver<()>) {
    let (thread, woken) = sync_channel(1);
    let (above_bytes, above_descriptors) = (AtomicU64::new(u64::MAX), AtomicUsize::new(usize::MAX));
    (Wake { thread, above_bytes, above_descriptors }, woken)
}

/// What the thread has. It ends when the inodes are dropped.
pub(crate) struct Forgetting {
    inodes: Weak<Inodes>,
    woken: Receiver<()>,
    accounts: Accounts,
    descriptors_max: usize,
    /// Nothing is asked of the kernel until then.
    rests_until: Option<Instant>,
    rest: Duration,
    can_prune: bool,
}

impl Forgetting {
    pub(crate) fn new(inodes: &Arc<Inodes>, woken: Receiver<()>, accounts: Accounts) -> Forgetting {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max = descriptors - descriptors / DESCRIPTORS_PART;
        Forgetting {
            inodes: Arc::downgrade(inodes),
            woken,
            accounts,
            descriptors_max: usize::try_from(max).unwrap_or(usize::MAX),
            rests_until: None,
            rest: INTERVAL,
            can_prune: true,
        }
    }

    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn begin(self, kernel: impl Pruner + 'static) -> io::Result<JoinHandle<()>> {
        thread::Builder::new().name("forgetting".to_owned()).spawn(move || self.run(&kernel))
    }

    fn run(mut self, kernel: &impl Pruner) {
        loop {
            if let Err(RecvTimeoutError::Disconnected) = self.woken.recv_timeout(INTERVAL) {
                return;
            }
            let Some(inodes) = self.inodes.upgrade() else { return };
            self.accounts.settle();
            while self.may_ask() && self.forget_some(&inodes, kernel) {
                self.accounts.settle();
            }
            let tally = inodes.tally();
            let descriptors = self.descriptors_max.max(tally.descriptors + BATCH);
            inodes.wake().wake_above(tally.bytes + GROWTH_BYTES, descriptors);
        }
    }

    fn may_ask(&self) -> bool {
        self.can_prune && self.rests_until.is_none_or(|end| end <= Instant::now())
    }

    /// Has the kernel forget what is too much, and says whether to go on at once.
    fn forget_some(&mut self, inodes: &Inodes, kernel: &impl Pruner) -> bool {
        let before = inodes.tally();
        let wanted = self.excess(before);
        if wanted == 0 {
            return false;
        }
        let (mut gone_over, mut asked) = (0, 0);
        let mut nodes = Vec::with_capacity(BATCH);
        while asked < wanted && gone_over < before.inodes {
            nodes.clear();
            let step = BATCH.min(wanted - asked);
            inodes.unused(step, &mut nodes);
            gone_over += step;
            asked += nodes.len();
            match kernel.prune(&nodes) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.can_prune = false;
                    return false;
                }
                // When the mount is gone the inodes will be.
                Err(_) => return false,
                Ok(()) => {}
            }
        }
        let begin = Instant::now();
        let forgotten = || inodes.tally().forgotten - before.forgotten;
        while forgotten() < (asked - asked / 4) as u64 && begin.elapsed() < ANSWER {
            thread::sleep(LOOK);
        }
        let has_helped = forgotten() > (wanted / 8) as u64;
        self.rest = match has_helped {
            true => INTERVAL,
            // All have been passed over once, as they were used; or nearly all are in use.
            false => (self.rest * 2).min(REST_MAX),
        };
        self.rests_until = (!has_helped).then(|| Instant::now() + self.rest);
        has_helped
    }

    /// How many inodes are to be forgotten.
    fn excess(&self, tally: Tally) -> usize {
        let held = match tally.descriptors.checked_sub(self.descriptors_max) {
            Some(excess) => excess + self.descriptors_max / DESCRIPTORS_PART as usize,
            None => 0,
        };
        held.max(self.accounts.inodes_excess() as usize)
    }
}
