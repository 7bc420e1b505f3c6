//! The content of files: every byte that is read through the kernel's page cache, and every operation that
//! changes a file, comes through here.
//!
//! Reads go through to SOURCE as they are.

mod buffer;
mod stamp;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::{Errno, pread};

pub use buffer::with_buffer;
pub use stamp::Stamp;

/// Which file this is, whatever its name and wherever it is mounted. The generation tells files apart that
/// had the same inode number one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub device: u64,
    pub inode: u64,
    pub generation: u64,
}

/// All files' content.
#[derive(Debug, Default)]
pub struct Contents {
    known: Mutex<HashMap<FileKey, Weak<Content>>>,
}

/// A file's content as long as it is known: shared by all handles of the inode.
///
/// The lock is held while a file is changed, so of two changes one comes after the other. Lock order: this one,
/// then [`Contents`].
#[derive(Debug)]
pub struct Content {
    key: FileKey,
    contents: Weak<Contents>,
    seen: Mutex<Seen>,
}

/// What was seen of the file in SOURCE.
#[derive(Debug, Default)]
struct Seen {
    /// After the last change through the mount, or when last looked at. Nothing at first, and when a look at
    /// the file failed.
    stamp: Option<Stamp>,
    /// How often something was found changed that had not been changed through the mount.
    changes_behind: u64,
}

/// What an operation changes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// Owner, mode, times, names, extended attributes.
    Attributes,
    /// These bytes, and the size where they end behind the end of the file.
    Bytes(Range<u64>),
    /// Anything: size, and all bytes.
    All,
}

impl Contents {
    pub fn new() -> Arc<Contents> {
        Arc::default()
    }

    /// The content of a file.
    pub fn of(self: &Arc<Self>, key: FileKey) -> Arc<Content> {
        let mut known = locked(&self.known);
        if let Some(content) = known.get(&key).and_then(Weak::upgrade) {
            return content;
        }
        let content =
            Arc::new(Content { key, contents: Arc::downgrade(self), seen: Mutex::default() });
        known.insert(key, Arc::downgrade(&content));
        content
    }
}

impl Content {
    /// Reads up to `len` bytes at `offset` through `source`, a readable descriptor of the file, and hands them
    /// to `reply`. Fewer bytes than asked for mean the end of the file.
    ///
    /// # Errors
    /// `reply` gets what pread(2) says.
    pub fn read<R>(
        &self,
        source: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        reply: impl FnOnce(io::Result<&[u8]>) -> R,
    ) -> R {
        with_buffer(len, |buffer| match read_whole(source, offset, buffer) {
            Ok(count) => reply(Ok(&buffer[..count])),
            Err(error) => reply(Err(error)),
        })
    }

    /// To be called around every operation `f` that changes data, size, times or attributes of the file through
    /// the mount. `source` is any descriptor of the file, O_PATH too; without one it is not known afterwards
    /// whether the file was changed behind the mount at the same time.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn change<T>(
        &self,
        source: Option<BorrowedFd<'_>>,
        changed: Changed,
        f: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        // Nothing is kept of what a change is about.
        let _ = changed;
        let mut seen = locked(&self.seen);
        let look = || source.and_then(|source| Stamp::of(source).ok());
        seen.compare(look());
        let result = f();
        // A failed operation may have changed something all the same.
        seen.stamp = look();
        result
    }

    /// How often the file was changed behind the mount, as far as it shows in its times and size. Whoever keeps
    /// something of the file keeps this number with it, and drops it when the number is another.
    pub fn changes_behind(&self, source: BorrowedFd<'_>) -> u64 {
        let mut seen = locked(&self.seen);
        seen.compare(Stamp::of(source).ok());
        seen.changes_behind
    }

    /// [`Self::changes_behind`], unless somebody is just changing the file.
    pub fn changes_behind_if_at_rest(&self, source: BorrowedFd<'_>) -> Option<u64> {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => return None,
        };
        seen.compare(Stamp::of(source).ok());
        Some(seen.changes_behind)
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        let Some(contents) = self.contents.upgrade() else { return };
        let mut known = locked(&contents.known);
        // Somebody may have begun anew with the same file.
        if known.get(&self.key).is_some_and(|content| content.strong_count() == 0) {
            known.remove(&self.key);
        }
    }
}

impl Seen {
    fn compare(&mut self, now: Option<Stamp>) {
        if self.stamp.is_some() && self.stamp != now {
            self.changes_behind += 1;
        }
        self.stamp = now;
    }
}

/// Reads until the buffer is full or the file ends: to the kernel, fewer bytes are the end.
///
/// # Errors
/// What pread(2) says, whatever was read before it said so.
pub fn read_whole(source: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match pread(source, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// No invariant of ours breaks by a panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    fn a_file() -> (Arc<Contents>, Arc<Content>, File) {
        let contents = Contents::new();
        let content = contents.of(FileKey { device: 1, inode: 2, generation: 3 });
        let name = format!("/tmp/ramfold-content-{}-{:p}", std::process::id(), &*content);
        let file = File::options().create_new(true).read(true).write(true).open(&name).unwrap();
        std::fs::remove_file(name).unwrap();
        (contents, content, file)
    }

    #[test]
    fn what_is_written_past_it_is_noticed_once() {
        let (_contents, content, mut file) = a_file();
        assert_eq!(content.changes_behind(file.as_fd()), 0);
        file.write_all(b"behind").unwrap();
        assert_eq!(content.changes_behind(file.as_fd()), 1);
        assert_eq!(content.changes_behind(file.as_fd()), 1);
        let again = file.try_clone().unwrap();
        content
            .change(Some(again.as_fd()), Changed::Bytes(6..13), || file.write_all(b"through"))
            .unwrap();
        assert_eq!(content.changes_behind_if_at_rest(file.as_fd()), Some(1));
        file.write_all(b"behind").unwrap();
        content.change(Some(again.as_fd()), Changed::All, || file.write_all(b"through")).unwrap();
        assert_eq!(content.changes_behind(file.as_fd()), 2);
    }

    #[test]
    fn it_is_shared_as_long_as_it_is_known() {
        let (contents, content, mut file) = a_file();
        assert!(Arc::ptr_eq(&content, &contents.of(content.key)));
        file.write_all(b"0123456789").unwrap();
        content.read(file.as_fd(), 7, 100, |bytes| assert_eq!(bytes.unwrap(), b"789"));
        content.read(file.as_fd(), 10, 100, |bytes| assert!(bytes.unwrap().is_empty()));
        drop(content);
        assert!(contents.known.lock().unwrap().is_empty());
    }
}
