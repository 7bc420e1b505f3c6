//! Whether a file is as it was: changes behind the mount are found by its times and size.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, TryLockError};

use ramfold_cache::Version;

use super::stamp::Stamp;
use super::writers::Writers;
use super::{CachedFile, locked};

/// What is known of the file's times and size is believed for so long, in milliseconds.
const BELIEVED_MS: u64 = 100;
/// A file that was changed behind the mount so shortly before it was looked at can be changed again
/// without a trace, where the kernel's clock has coarse ticks (10 ms at most). What is read of it
/// is not kept.
pub(super) const FRESH_NS: i128 = 20_000_000;
/// Instead of when the file was looked at: it is to be looked at again before anything of it is
/// kept.
pub(super) const NOT_BELIEVED: u64 = 0;

/// What was seen of the file in SOURCE.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// After the last change through the mount, or when last looked at. Nothing at first, and when
    /// a look at the file failed.
    stamp: Option<Stamp>,
    /// The last change that it shows was made through the mount.
    is_own: bool,
    /// Those who write the file behind the mount.
    writers: Writers,
}

impl Seen {
    /// How the file was left by a change through the mount.
    pub(super) fn note_own(&mut self, stamp: Option<Stamp>) {
        (self.stamp, self.is_own) = (stamp, true);
    }

    pub(super) fn stamp(&self) -> Option<Stamp> {
        self.stamp
    }
}

impl CachedFile {
    /// How often the file was changed behind the mount, as far as it shows in its times and size.
    /// Whoever keeps something of the file keeps this number with it, and drops it when the number
    /// is another.
    pub(crate) fn changes_behind(&self, source: BorrowedFd<'_>) -> u64 {
        // Whoever is changing it, which may take long, has compared by himself.
        if self.version.load(Ordering::Acquire).is_multiple_of(2) {
            self.compare_open(&mut locked(&self.seen), source);
        }
        self.changes_behind.load(Ordering::Relaxed)
    }

    /// Looks whether the file was changed behind the mount, at times or now. `None` where what is
    /// read now must not be kept.
    pub(super) fn check(&self, source: BorrowedFd<'_>, now: bool) -> Option<Version> {
        let version = self.version.load(Ordering::Acquire);
        let checked_at = self.checked_at_ms.load(Ordering::Relaxed);
        let age_ms = self.shared.now_ms().saturating_sub(checked_at);
        if !now && checked_at != NOT_BELIEVED && age_ms < BELIEVED_MS {
            return version.is_multiple_of(2).then_some(Version(version));
        }
        // The size that somebody is just changing would be a wrong end of the file.
        let seen = if now { Some(locked(&self.seen)) } else { self.seen_at_rest() };
        let Some(mut seen) = seen else {
            // Somebody else is looking, or stores something: what is found changed then, or at the
            // next look, outdates what is read now. Or is changing the file.
            let is_at_rest = checked_at != NOT_BELIEVED && version.is_multiple_of(2);
            return is_at_rest.then_some(Version(version));
        };
        self.compare_open(&mut seen, source);
        let is_believed = self.checked_at_ms.load(Ordering::Relaxed) != NOT_BELIEVED;
        is_believed.then(|| Version(self.version.load(Ordering::Acquire)))
    }

    /// What was seen, unless somebody else is at it.
    pub(super) fn seen_at_rest(&self) -> Option<MutexGuard<'_, Seen>> {
        match self.seen.try_lock() {
            Ok(seen) => Some(seen),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Compares what was seen with what is seen now.
    pub(super) fn compare(&self, seen: &mut Seen, now: Option<Stamp>) {
        if seen.stamp.is_some() && seen.stamp != now {
            seen.writers.note_change();
            self.changes_behind.fetch_add(1, Ordering::Relaxed);
            self.shared.counters.changes_behind.add(1);
            // What is still stored meanwhile may be read, but is not to be stored again.
            self.version.fetch_add(1, Ordering::AcqRel);
            self.forget(0..u64::MAX);
            self.note_new_data();
            // Whoever sees the version that begins is not to believe what was seen in the last one.
            self.checked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        let is_own = seen.is_own && seen.stamp == now;
        let is_believed = now.is_some_and(|stamp| is_own || stamp.age_ns() >= FRESH_NS);
        (seen.stamp, seen.is_own) = (now, is_own);
        self.note_size(now);
        let checked_at_ms = if is_believed { self.shared.now_ms().max(1) } else { NOT_BELIEVED };
        self.checked_at_ms.store(checked_at_ms, Ordering::Relaxed);
    }

    /// The same with a descriptor that is not one of O_PATH.
    fn compare_open(&self, seen: &mut Seen, source: BorrowedFd<'_>) {
        self.compare(seen, Stamp::of(source).ok());
        let Some(stamp) = seen.stamp else { return };
        if seen.writers.look(source, &stamp, self.is_open_for_writing()) {
            // What the kernel has may be old. Nothing is kept here.
            self.changes_behind.fetch_add(1, Ordering::Relaxed);
            self.version.fetch_add(2, Ordering::AcqRel);
        }
        if seen.writers.changes_unseen() {
            self.checked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::file::{Changed, FileCache, FileKey, tests};

    /// Two that read at once both keep what they read, though only one of them looks.
    #[test]
    fn who_cannot_look_because_another_does_keeps_what_it_reads() {
        let source = tempfile::tempfile().unwrap();
        source.set_len(5000).unwrap();
        // Times that pass are what this is about: until it does not count as freshly changed, and
        // until what was seen is believed no more.
        thread::sleep(Duration::from_nanos(FRESH_NS as u64 * 2));
        let cache = FileCache::new(tests::config(16 << 20), None).unwrap();
        let file = cache.file(FileKey { device: 1, inode: 1, generation: 0 });
        file.note_writer();
        let first = file.check(source.as_fd(), true).unwrap();
        thread::sleep(Duration::from_millis(BELIEVED_MS + 10));
        let looking = locked(&file.seen);
        assert_eq!(file.check(source.as_fd(), false), Some(first));
        file.checked_at_ms.store(NOT_BELIEVED, Ordering::Relaxed);
        assert_eq!(file.check(source.as_fd(), false), None);
        drop(looking);
        file.change(None, Changed::All, || Ok(())).unwrap();
        assert_ne!(file.check(source.as_fd(), true), Some(first));
    }
}
