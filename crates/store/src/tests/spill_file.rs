//! A spill file in memory that fails when told to, and a store with one.

use std::sync::{Arc, Mutex};

use ramfold_sys::Errno;

use super::{MIB, Page, Random};
use crate::{
    Claims, Config, Disk, KEY_BYTES, Key, Loaded, Spill, SpillCipher, SpillMemory, SpillShape,
    Store,
};

/// What is in the file, and how it fails.
#[derive(Default)]
pub(super) struct Medium {
    pub bytes: Vec<u8>,
    /// Of so many operations one fails; 0: none.
    pub fails_one_in: u64,
    /// After so many operations one fails; then none.
    pub fails_after: Option<u64>,
    pub operations: u64,
    pub claimed: Vec<bool>,
    pub sequence: u64,
    random: Option<Random>,
}

impl Medium {
    fn fails(&mut self) -> bool {
        self.operations += 1;
        let random = self.random.get_or_insert_with(|| Random::new(99));
        let now = self.fails_one_in != 0 && random.below(self.fails_one_in) == 0;
        now || self.fails_after.is_some_and(|after| self.operations == after + 1)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        let rest = self.bytes.get(offset as usize..).unwrap_or_default();
        let there = rest.len().min(bytes.len());
        bytes[..there].copy_from_slice(&rest[..there]);
        bytes[there..].fill(0);
    }

    pub(super) fn claimed_count(&self) -> usize {
        self.claimed.iter().filter(|&&claimed| claimed).count()
    }
}

#[derive(Clone)]
pub(super) struct TestDisk {
    pub medium: Arc<Mutex<Medium>>,
    under_way: Option<(u64, *const u8, usize)>,
}

// SAFETY: the pointer is to what `begin_write` was promised stays.
unsafe impl Send for TestDisk {}

impl TestDisk {
    pub(super) fn of(medium: &Arc<Mutex<Medium>>) -> TestDisk {
        TestDisk { medium: medium.clone(), under_way: None }
    }
}

impl Disk for TestDisk {
    unsafe fn begin_write(&mut self, offset: u64, bytes: &[u8]) {
        assert!(self.under_way.is_none(), "two writes at a time");
        assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
        self.under_way = Some((offset, bytes.as_ptr(), bytes.len()));
    }

    fn finish_write(&mut self) -> Result<(), Errno> {
        let (offset, start, len) = self.under_way.take().expect("a write");
        let medium = &mut *self.medium.lock().unwrap();
        // SAFETY: they are still there, by the promise.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        let (fails, offset) = (medium.fails(), offset as usize);
        // A write that fails has written a part.
        let written = if fails { len / 2 } else { len };
        if medium.bytes.len() < offset + written {
            medium.bytes.resize(offset + written, 0);
        }
        medium.bytes[offset..offset + written].copy_from_slice(&bytes[..written]);
        if fails { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        assert!(offset.is_multiple_of(4096) && bytes.len().is_multiple_of(4096));
        let medium = &mut *self.medium.lock().unwrap();
        if medium.fails() {
            return Err(Errno::IO);
        }
        medium.read(offset, bytes);
        Ok(())
    }
}

impl Claims for TestDisk {
    fn claim(&mut self) -> Option<u32> {
        let claimed = &mut self.medium.lock().unwrap().claimed;
        let free = claimed.iter().position(|&claimed| !claimed)?;
        claimed[free] = true;
        Some(free as u32)
    }

    fn release(&mut self, segment: u32) {
        let claimed = &mut self.medium.lock().unwrap().claimed;
        assert!(std::mem::take(&mut claimed[segment as usize]), "released twice");
    }

    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool) {
        let claimed = &mut self.medium.lock().unwrap().claimed;
        for (segment, claimed) in (0..).zip(claimed) {
            *claimed &= is_used(segment);
        }
    }

    fn next_sequence(&mut self) -> u64 {
        let medium = &mut *self.medium.lock().unwrap();
        medium.sequence += 1;
        medium.sequence
    }
}

/// A store with a spill file.
pub(super) struct Spilling {
    pub store: Store,
    pub spill: Spill<'static, TestDisk, TestDisk>,
    pub cipher: SpillCipher,
    pub medium: Arc<Mutex<Medium>>,
}

impl Spilling {
    pub(super) fn new(pool_bytes_max: usize, segment_bytes: usize, segments: usize) -> Spilling {
        let store = Store::new(&Config {
            pool_bytes_max,
            reserve_bytes: 0,
            metadata_bytes_max: 16 * MIB,
            spill: Some(SpillShape { segment_bytes, segment_count_max: segments }),
        });
        let store = store.unwrap();
        let medium = Medium { claimed: vec![false; segments], ..Medium::default() };
        let medium = Arc::new(Mutex::new(medium));
        let disk = TestDisk::of(&medium);
        let memory = Box::leak(Box::new(SpillMemory::new(segment_bytes).unwrap()));
        // SAFETY: nobody else uses the memory.
        let spill = unsafe { Spill::new(&store, memory, disk.clone(), disk).unwrap() };
        Spilling { store, spill, cipher: SpillCipher::new(&[7; KEY_BYTES]), medium }
    }

    /// The page as it was stored, from wherever it is.
    pub(super) fn keep(&self, loaded: Loaded<'_>) -> Page {
        let Loaded::Spilled(spilled) = loaded else { return Page::keep(loaded) };
        let range = spilled.file_range();
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.medium.lock().unwrap().read(range.start, &mut bytes);
        let bytes = self.cipher.open(spilled, &mut bytes).unwrap().to_vec();
        Page::Object { encoding: spilled.encoding(), bytes }
    }

    pub(super) fn load(&self, key: Key) -> Option<Page> {
        self.store.load(key, |loaded| self.keep(loaded)).unwrap()
    }

    /// The segments that are claimed are those that something is in.
    pub(super) fn audit(&self) {
        self.store.audit();
        // And a spare one.
        let used = self.store.space.used_segments() + usize::from(self.spill.has_spare());
        assert_eq!(self.medium.lock().unwrap().claimed_count(), used);
    }
}
