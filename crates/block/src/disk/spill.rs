//! The spill file: where objects go that the memory has no room for.

use std::ffi::CString;
use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;

use ramfold_codec::Page;
use ramfold_store::{
    Choose, Claims, KEY_BYTES, Key, Spill, SpillCipher, SpillMemory, SpillShape, SpillWriter,
    Spilled, Store,
};
use ramfold_sys::file::{DirectFile, is_in_ram};

use super::config::{DiskError, SpillConfig};
use super::workspace::Workspace;
use super::{Inner, PAGE, random};
use crate::DeviceError;

/// Two segments are in memory while they are written.
const SEGMENT_BYTES: usize = 1 << 20;
const SEGMENT_BYTES_SMALL: usize = 256 << 10;
const SMALL_MEMORY_BYTES: u64 = 64 << 20;
/// One for each of two that are written, one that is spare, and one to be read.
const SEGMENTS_MIN: u64 = 4;
/// How often a read is tried before the front is told that it fails.
const ATTEMPTS: usize = 3;

fn segment_bytes(memory_bytes: u64) -> usize {
    if memory_bytes < SMALL_MEMORY_BYTES { SEGMENT_BYTES_SMALL } else { SEGMENT_BYTES }
}

/// Bytes of memory that a file takes for writing, where the disk has this much memory.
pub(super) fn memory_bytes(memory_bytes: usize) -> usize {
    writing_bytes(segment_bytes(memory_bytes as u64))
}

/// Bytes of two segments and of a list of what is in each.
fn writing_bytes(segment_bytes: usize) -> usize {
    2 * (segment_bytes + segment_bytes / 64 * 24 + PAGE)
}

/// The file, as its readers need it.
pub(super) struct SpillFile {
    file: DirectFile,
    cipher: SpillCipher,
    segment_bytes: usize,
    segment_count: usize,
}

impl SpillFile {
    pub(super) fn new(config: &SpillConfig, memory_bytes: u64) -> Result<SpillFile, DiskError> {
        let failed = |reason: String| DiskError::Spill { folder: config.folder.clone(), reason };
        let disk = rustix::fs::statfs(&config.folder).map_err(|e| failed(e.to_string()))?;
        if is_in_ram(disk.f_type as u64) {
            return Err(failed("it is in RAM (tmpfs); name a folder on a disk".to_owned()));
        }
        let segment_bytes = segment_bytes(memory_bytes);
        let segments = config.bytes / segment_bytes as u64;
        if segments < SEGMENTS_MIN {
            let least = (SEGMENTS_MIN * segment_bytes as u64) >> 10;
            return Err(failed(format!(
                "{} KiB is too small, {least} KiB is the least",
                config.bytes >> 10
            )));
        }
        let file = tempfile::tempfile_in(&config.folder).map_err(|e| failed(e.to_string()))?;
        // It can be opened by way of a process that has it, by who may look into that.
        file.set_permissions(Permissions::from_mode(0o600)).map_err(|e| failed(e.to_string()))?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_err(|e| failed(e.to_string()))?;
        let file = DirectFile::open(&path).map_err(|e| failed(e.to_string()))?;
        let key: [u8; KEY_BYTES] = random::bytes().map_err(DiskError::Key)?;
        Ok(SpillFile {
            file,
            cipher: SpillCipher::new(&key),
            segment_bytes,
            segment_count: usize::try_from(segments).unwrap_or(usize::MAX),
        })
    }

    pub(super) fn shape(&self) -> SpillShape {
        SpillShape { segment_bytes: self.segment_bytes, segment_count_max: self.segment_count }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        writing_bytes(self.segment_bytes) + self.segment_count * size_of::<u32>()
    }

    /// Memory for what is written.
    pub(super) fn memory(&self) -> Result<SpillMemory, DiskError> {
        SpillMemory::new(self.segment_bytes).map_err(|errno| {
            DiskError::Store(ramfold_store::StoreError::NoMemory { part: "the spill file", errno })
        })
    }

    pub(super) fn segments(&self) -> Segments {
        Segments { free: (0..self.segment_count as u32).rev().collect(), sequence: 0 }
    }

    pub(super) fn writer(&self) -> SpillWriter<'_> {
        SpillWriter::new(&self.file, true)
    }
}

/// Which segments of the file are free: it is this disk's alone.
pub(super) struct Segments {
    free: Vec<u32>,
    sequence: u64,
}

impl Claims for Segments {
    fn claim(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn release(&mut self, segment: u32) {
        self.free.push(segment);
    }

    /// For the child of a fork, which no disk is in.
    fn retain(&mut self, _: &mut dyn FnMut(u32) -> bool) {}

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

pub(super) type Writer<'f> = Spill<'f, SpillWriter<'f>, Segments>;

/// Writes the objects that were stored longest ago. Whether any have left the pool.
pub(super) fn write_oldest(store: &Store, file: &SpillFile, spill: &mut Writer<'_>) -> bool {
    let before = spill.counts().pages_written;
    // An error leaves all objects where they are; a write that needs room is then refused.
    let written = spill.write(store, &file.cipher, Choose::Oldest).is_ok_and(|begun| begun);
    let settled = spill.finish(store).is_ok();
    spill.release_empty(store);
    written && settled && spill.counts().pages_written > before
}

impl Inner {
    /// Reads a page's object from the file. `false` if it is not there any more.
    pub(super) fn read_spilled(
        &self,
        workspace: &mut Workspace,
        key: Key,
        spilled: Spilled,
        page: &mut Page,
    ) -> Result<bool, DeviceError> {
        let failed = |what: &dyn ToString| DeviceError::Failed(what.to_string());
        let Workspace { coder, extent, .. } = workspace;
        let (Some(spill), Some(buffer)) = (&self.spill, extent) else {
            return Err(failed(&"there is no spill file"));
        };
        let range = spilled.file_range();
        let whole = spill.file.whole(range.clone());
        let start = (range.start - whole.start) as usize;
        let Some(bytes) = buffer.0.get_mut(..(whole.end - whole.start) as usize) else {
            return Err(failed(&"an object of the spill file is too long"));
        };
        let mut read = Ok(());
        for _ in 0..ATTEMPTS {
            read = spill.file.read_at(whole.start, bytes);
            if read.is_ok() {
                break;
            }
        }
        read.map_err(|errno| {
            failed(&format_args!("reading the spill file at byte {}: {errno}", whole.start))
        })?;
        let extent = &mut bytes[start..start + (range.end - range.start) as usize];
        let opened = spill.cipher.open(spilled, extent);
        // The bytes are those of this page if it is still there.
        if self.store.spilled(key) != Some(spilled) {
            return Ok(false);
        }
        let object = opened.map_err(|error| failed(&error))?;
        coder.decompress(spilled.encoding(), object, page).map_err(|error| failed(&error))?;
        Ok(true)
    }
}
