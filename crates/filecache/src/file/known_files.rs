//! The files that anything is remembered of.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::{CachedFile, FileKey, allocated, locked};

/// Known files may take this part of the memory.
const FILES_PART: u64 = 64;
/// What each takes, about: itself, and a place in a table that is half full.
pub(super) const FILE_BYTES: usize =
    allocated::<CachedFile>() + 2 * (size_of::<(FileKey, Arc<CachedFile>)>() + 1);
/// Of those that nobody uses, so many are forgotten at once.
const FORGOTTEN_PART: usize = 8;

pub(super) struct KnownFiles {
    files: Mutex<HashMap<FileKey, Arc<CachedFile>>>,
    /// Those that have lost their last name.
    nameless: Mutex<Vec<FileKey>>,
    /// So many files may be known.
    max: usize,
    /// When so many are known, they are gone through for some to be forgotten.
    sweep_len: AtomicUsize,
}

impl KnownFiles {
    pub(super) fn new(memory_bytes: u64) -> KnownFiles {
        let max = (memory_bytes / FILES_PART) as usize / FILE_BYTES;
        KnownFiles {
            files: Mutex::default(),
            nameless: Mutex::default(),
            max,
            sweep_len: AtomicUsize::new(max),
        }
    }

    pub(super) fn len(&self) -> usize {
        locked(&self.files).len()
    }

    #[cfg(test)]
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// What they take.
    pub(super) fn bytes(&self) -> u64 {
        (self.len() * FILE_BYTES) as u64
    }

    /// A file, which is made where it is not known.
    pub(super) fn get(&self, key: FileKey, new: impl FnOnce() -> CachedFile) -> Arc<CachedFile> {
        Arc::clone(locked(&self.files).entry(key).or_insert_with(|| Arc::new(new())))
    }

    /// A file has lost its last name.
    pub(super) fn note_nameless(&self, key: FileKey) {
        locked(&self.nameless).push(key);
    }

    /// Forgets files that have lost their last name, when nobody uses them any more; and others
    /// that nobody uses, when there are too many.
    pub(super) fn forget_some(&self) {
        let mut forgotten = Vec::new();
        let mut files = locked(&self.files);
        // Whoever else has one counts.
        let is_unused = |file: &Arc<CachedFile>| Arc::strong_count(file) == 1;
        locked(&self.nameless).retain(|key| match files.get(key) {
            Some(file) if !is_unused(file) => true,
            Some(_) => {
                forgotten.extend(files.remove(key));
                false
            }
            None => false,
        });
        if files.len() >= self.sweep_len.load(Ordering::Relaxed) {
            let excess = files.len() / FORGOTTEN_PART + 1;
            forgotten.extend(take_unused(&mut files, excess));
            // Where nearly all are in use they are not gone through for each new one.
            let next = files.len() + files.len() / FORGOTTEN_PART;
            self.sweep_len.store(next.max(self.max), Ordering::Relaxed);
        }
        drop(files);
        forgotten.iter().for_each(|file| file.end());
    }

    /// Forgets up to this number of files that nobody uses.
    pub(super) fn forget_unused(&self, count: usize) {
        let forgotten = take_unused(&mut locked(&self.files), count);
        forgotten.iter().for_each(|file| file.end());
    }

    pub(super) fn clear(&self) {
        locked(&self.files).clear();
    }
}

/// Takes up to this number of files that nobody else holds out of the known ones.
fn take_unused(
    files: &mut HashMap<FileKey, Arc<CachedFile>>,
    count: usize,
) -> Vec<Arc<CachedFile>> {
    let unused = files.iter().filter(|(_, file)| Arc::strong_count(file) == 1);
    let keys: Vec<FileKey> = unused.take(count).map(|(key, _)| *key).collect();
    keys.iter().filter_map(|key| files.remove(key)).collect()
}
