//! A store that spills to a file of its own.

use std::ffi::CString;
use std::fs::{File, Permissions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use ramfold_store::{
    Claims, Config, KEY_BYTES, OBJECT_BYTES_MAX, Spill, SpillCipher, SpillMemory, SpillShape,
    SpillWriter, Spilled, Store,
};
use ramfold_sys::file::DirectFile;

use crate::content::random::Random;

/// A file that only this process has, and a store that spills to it.
pub(in crate::experiments::store) struct Bed {
    // Kept open: without it the direct file could not have been opened.
    _file: File,
    pub(in crate::experiments::store) direct: DirectFile,
    pub(in crate::experiments::store) store: Store,
    pub(in crate::experiments::store) cipher: SpillCipher,
    segment_bytes: usize,
    segment_count: usize,
}

impl Bed {
    pub(in crate::experiments::store) fn new(
        folder: &Path,
        pool_bytes: u64,
        file_bytes: u64,
        segment_bytes: usize,
    ) -> Result<Bed> {
        let describe = || format!("cannot make a spill file in {}", folder.display());
        let file = tempfile::tempfile_in(folder).with_context(describe)?;
        file.set_permissions(Permissions::from_mode(0o600)).with_context(describe)?;
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let direct = DirectFile::open(&path).with_context(describe)?;
        let segment_count = (file_bytes / segment_bytes as u64).max(4) as usize;
        let store = Store::new(&Config {
            pool_bytes_max: pool_bytes as usize,
            reserve_bytes: 0,
            metadata_bytes_max: 256 << 20,
            spill: Some(SpillShape { segment_bytes, segment_count_max: segment_count }),
        })
        .context("cannot make a store")?;
        let mut random = Random::new(5);
        let key: [u8; KEY_BYTES] = std::array::from_fn(|_| random.word() as u8);
        let cipher = SpillCipher::new(&key);
        Ok(Bed { _file: file, direct, store, cipher, segment_bytes, segment_count })
    }

    pub(in crate::experiments::store) fn memory(&self) -> Result<SpillMemory> {
        SpillMemory::new(self.segment_bytes).context("no address space for the batches")
    }

    pub(in crate::experiments::store) fn spill<'m>(
        &'m self,
        memory: &'m mut SpillMemory,
    ) -> Result<Spill<'m, SpillWriter<'m>, OwnClaims>> {
        let claims = OwnClaims { claimed: vec![false; self.segment_count], sequence: 0 };
        let writer = SpillWriter::new(&self.direct, true);
        Spill::with_memory(&self.store, memory, writer, claims).context("cannot spill")
    }

    /// Reads an object from the file.
    pub(in crate::experiments::store) fn read<'r>(
        &self,
        spilled: Spilled,
        room: &'r mut ReadRoom,
    ) -> Result<&'r [u8]> {
        let own = spilled.file_range();
        let whole = self.direct.whole(own.clone());
        let len = |range: &Range<u64>| (range.end - range.start) as usize;
        let bytes = &mut room.0[..len(&whole)];
        self.direct.read_at(whole.start, bytes).context("cannot read the spill file")?;
        let extent = &mut bytes[(own.start - whole.start) as usize..][..len(&own)];
        Ok(self.cipher.open(spilled, extent)?)
    }
}

/// Memory to read into, aligned to pages: as much as an object lies in at most.
#[repr(align(4096))]
pub(in crate::experiments::store) struct ReadRoom([u8; 3 * OBJECT_BYTES_MAX]);

impl ReadRoom {
    pub(in crate::experiments::store) fn new() -> Box<ReadRoom> {
        Box::new(ReadRoom([0; 3 * OBJECT_BYTES_MAX]))
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Segments of a file that one process has.
pub(in crate::experiments::store) struct OwnClaims {
    claimed: Vec<bool>,
    sequence: u64,
}

impl Claims for OwnClaims {
    fn claim(&mut self) -> Option<u32> {
        let free = self.claimed.iter().position(|&claimed| !claimed)?;
        self.claimed[free] = true;
        Some(free as u32)
    }

    fn release(&mut self, segment: u32) {
        self.claimed[segment as usize] = false;
    }

    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool) {
        for (segment, claimed) in (0..).zip(&mut self.claimed) {
            *claimed &= is_used(segment);
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}
