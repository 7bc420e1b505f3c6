//! What is open, by the number that the kernel was given for it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use fuser::FileHandle;
use rustix::io::Errno;

/// Open files, or open directories.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    last: AtomicU64,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Handles { open: RwLock::default(), last: AtomicU64::new(0) }
    }
}

impl<T> Handles<T> {
    pub(crate) fn add(&self, what: T) -> FileHandle {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(handle, Arc::new(what));
        FileHandle(handle)
    }

    /// # Errors
    /// `EBADF` when nothing is open by that number.
    pub(crate) fn get(&self, handle: FileHandle) -> io::Result<Arc<T>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(open.get(&handle.0).ok_or(Errno::BADF)?))
    }

    /// Closes it, unless somebody else is at it, who then does.
    pub(crate) fn remove(&self, handle: FileHandle) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let removed = open.remove(&handle.0);
        // Closing may take a while.
        drop(open);
        drop(removed);
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }
}
