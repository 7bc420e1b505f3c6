//! Sees what is changed in SOURCE behind the mount, and tells the kernel to drop what it has cached
//! of it, pages that are mapped too.
//!
//! A thread of its own does that: dropping pages waits for those that are being read or written,
//! and they wait for the threads that answer requests.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{INodeNo, Notifier};

use super::files::Files;

/// How often the open files are looked at: what is changed behind the mount is to be seen within a
/// second.
const INTERVAL: Duration = Duration::from_millis(500);

/// The file system's side of it. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    files: Arc<Files>,
    to_drop: Sender<INodeNo>,
    notifier: Arc<OnceLock<Notifier>>,
}

/// The other side, until the mount is there and the thread can begin.
#[derive(Debug)]
pub(crate) struct Watcher {
    files: Arc<Files>,
    to_drop: Receiver<INodeNo>,
    notifier: Arc<OnceLock<Notifier>>,
}

pub(crate) fn watch() -> (Watch, Watcher) {
    let files = Arc::<Files>::default();
    let notifier = Arc::default();
    let (sender, receiver) = channel();
    (
        Watch { files: Arc::clone(&files), to_drop: sender, notifier: Arc::clone(&notifier) },
        Watcher { files, to_drop: receiver, notifier },
    )
}

impl Watch {
    pub(crate) fn files(&self) -> &Arc<Files> {
        &self.files
    }

    /// Has the kernel drop all it has cached of a file, soon.
    pub(crate) fn invalidate(&self, number: INodeNo) {
        // Without the thread the mount is ending.
        let _ = self.to_drop.send(number);
    }

    /// Has the kernel write what was changed of these bytes through a mapping, and drop all that it
    /// has cached of them. That waits for others' requests: not for a thread that takes requests.
    pub(crate) fn drop_pages(&self, number: INodeNo, bytes: Range<u64>) {
        let Some(notifier) = self.notifier.get() else { return };
        let offset = i64::try_from(bytes.start).unwrap_or(i64::MAX);
        // 0 is all that follows.
        let length = i64::try_from(bytes.end - bytes.start).unwrap_or(0);
        // That the kernel does not know the file any more is as well.
        let _ = notifier.inval_inode(number, offset, length);
    }

    /// Has the kernel ask for a file's attributes anew, at once: that waits for nothing.
    pub(crate) fn invalidate_attributes(&self, number: INodeNo) {
        if let Some(notifier) = self.notifier.get() {
            // That the kernel does not know the file any more is as well.
            let _ = notifier.inval_inode(number, -1, 0);
        }
    }
}

impl Watcher {
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn begin(self, notifier: Notifier) -> std::io::Result<JoinHandle<()>> {
        let _ = self.notifier.set(notifier.clone());
        thread::Builder::new().name("watch".to_owned()).spawn(move || self.run(&notifier))
    }

    fn run(&self, notifier: &Notifier) {
        let mut next = Instant::now() + INTERVAL;
        loop {
            match self.to_drop.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(number) => drop_cached(notifier, number),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= next {
                self.look(notifier);
                next = Instant::now() + INTERVAL;
            }
        }
    }

    fn look(&self, notifier: &Notifier) {
        let mut looked_at = HashSet::new();
        for file in self.files.all() {
            if file.is_passed_through() || !looked_at.insert(file.inode.number) {
                continue;
            }
            if !file.inode.was_cached_at(file.cached.changes_behind(file.source())) {
                drop_cached(notifier, file.inode.number);
            }
        }
    }
}

fn drop_cached(notifier: &Notifier, number: INodeNo) {
    // That the kernel does not know the file any more is as well.
    let _ = notifier.inval_inode(number, 0, 0);
}
