//! Objects that leave for the spill file and come back.

use std::ffi::CString;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use ramfold_sys::Errno;
use ramfold_sys::file::DirectFile;
use ramfold_sys::mem::Reservation;

use super::recompression::Halves;
use super::spill_file::{Medium, Spilling, TestDisk};
use super::{MIB, Page, Random, content, goes_on, use_pages};
use crate::{
    Choose, Claims, Config, Disk, EntryKind, KEY_BYTES, Key, LoadError, Loaded, Recompressed,
    Recompression, Spill, SpillCipher, SpillCounts, SpillError, SpillMemory, SpillShape,
    SpillWriter, Store,
};

const SEGMENT: usize = 64 << 10;

fn object(key: Key) -> Page {
    Page::Object { encoding: 1 + (key % 15) as u8, bytes: content(key, 200 + key as usize % 1500) }
}

/// Writes as long as something leaves the pool, and says how many pages have.
fn write_all(spilling: &mut Spilling, choose: Choose) -> u64 {
    let Spilling { store, spill, cipher, .. } = spilling;
    let before = spill.counts().pages_written;
    while spill.write(store, cipher, choose).unwrap() {
        spill.finish(store).unwrap();
    }
    spill.counts().pages_written - before
}

#[test]
fn objects_come_back_from_the_file_as_they_were() {
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 256);
    for key in 0..2000 {
        object(key).store(&spilling.store, key * 3).unwrap();
    }
    spilling.store.store_same_filled(1, 77).unwrap();
    assert_eq!(write_all(&mut spilling, Choose::Oldest), 2000);
    let s = spilling.store.statistics();
    assert_eq!((s.objects, s.same_filled, s.spilled, s.pages()), (0, 1, 2000, 2001));
    // 20 bytes are added to an object, and it is rounded up to 64.
    let lengths = (0..2000).map(|key| (220 + key % 1500usize).next_multiple_of(64));
    assert_eq!(s.spilled_bytes, lengths.sum::<usize>() as u64);
    // Nothing is left in the pool but the word whose halves differ.
    assert_eq!((s.slots, s.spans), (1, 1));
    spilling.audit();
    for key in 0..2000 {
        assert_eq!(spilling.load(key * 3), Some(object(key)));
    }
    // What is read stays where it is.
    assert_eq!(spilling.store.statistics(), s);
    spilling.store.for_each(|key, kind| {
        let spilled = EntryKind::Spilled { encoding: 1 + (key / 3 % 15) as u8 };
        assert!(kind == spilled || key == 1, "{key}: {kind:?}");
    });
    assert_eq!(spilling.store.invalidate_range(0, u64::MAX), 2001);
    spilling.spill.release_empty(&spilling.store);
    spilling.audit();
}

#[test]
fn an_object_lies_in_one_piece_and_nothing_of_it_can_be_read() {
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 64);
    let secret = b"a word that must never be on a disk";
    for key in 0..500 {
        let mut bytes = content(key, 1000);
        bytes[300..300 + secret.len()].copy_from_slice(secret);
        spilling.store.store_object(key, 1, &bytes).unwrap();
    }
    write_all(&mut spilling, Choose::Oldest);
    let mut first = Vec::new();
    for key in 0..500 {
        let range = spilling.store.load(key, |loaded| match loaded {
            Loaded::Spilled(spilled) => spilled.file_range(),
            other => panic!("{other:?}"),
        });
        let range = range.unwrap().unwrap();
        assert_eq!(range.start / SEGMENT as u64, (range.end - 1) / SEGMENT as u64);
        assert_eq!(range.end - range.start, 1024);
        first.push(range.start);
    }
    // Neighbours were written behind one another.
    assert!(first.is_sorted());
    let medium = spilling.medium.lock().unwrap();
    assert!(!medium.bytes.windows(secret.len()).any(|bytes| bytes == secret));
}

#[test]
fn the_oldest_leave_first_and_whole_pages_before_them_if_asked() {
    let mut spilling = Spilling::new(64 * MIB, SEGMENT, 1024);
    // Ten ages of 640 pages.
    for age in 0..10 {
        for key in age * 640..(age + 1) * 640 {
            object(key).store(&spilling.store, key).unwrap();
        }
        spilling.store.begin_age();
    }
    spilling.store.store_object(9 * 640, 15, &content(1, 4096)).unwrap();
    spilling.store.begin_age();
    let Spilling { store, spill, cipher, .. } = &mut spilling;
    assert_eq!(spill.write(store, cipher, Choose::Raw), Ok(true));
    spill.finish(store).unwrap();
    assert_eq!(spill.counts().pages_written, 1);
    assert_eq!(spill.write(store, cipher, Choose::Raw), Ok(false));
    while store.statistics().spilled <= 600 {
        spill.write(store, cipher, Choose::Oldest).unwrap();
    }
    spill.finish(store).unwrap();
    let mut ages = [0; 10];
    store.for_each(|key, kind| {
        ages[key as usize / 640] += u32::from(matches!(kind, EntryKind::Spilled { .. }));
    });
    assert!(ages[0] > 550 && ages[2..9] == [0; 7] && ages[9] == 1, "{ages:?}");
}

#[test]
fn what_changes_while_it_is_written_stays_as_it_is() {
    let mut spilling = Spilling::new(16 * MIB, MIB, 64);
    for key in 0..600 {
        object(key).store(&spilling.store, key).unwrap();
    }
    let (store, cipher) = (&spilling.store, &spilling.cipher);
    spilling.spill.write(store, cipher, Choose::Oldest).unwrap();
    // One page is stored anew: of the same length, in the slot that it had.
    let Page::Object { encoding, bytes } = object(5) else { unreachable!() };
    let other = content(999, bytes.len());
    assert!(store.invalidate(5));
    store.store_object(5, encoding, &other).unwrap();
    // Others go: some are taken, some move, and one comes to where another was.
    for key in 64..128 {
        store.take(key, |_| ()).unwrap();
    }
    store.rekey_range(128, 10_000, 64).unwrap();
    store.rekey_range(192, 256, 10).unwrap();
    store.set_mark(400, 9);
    spilling.spill.finish(store).unwrap();
    let written = spilling.spill.counts().pages_written;
    assert!(written < 600 && written > 200, "{written}");
    spilling.audit();
    assert_eq!(spilling.load(5), Some(Page::Object { encoding, bytes: other }));
    assert_eq!(spilling.load(70), None);
    for key in 0..64 {
        assert_eq!(spilling.load(10_000 + key), Some(object(128 + key)));
    }
    for key in 0..10 {
        assert_eq!(spilling.load(256 + key), Some(object(192 + key)));
    }
    assert_eq!(spilling.load(400), Some(object(400)));
    assert_eq!(spilling.store.mark(400), 9);
}

/// As in a child that was forked while its parent wrote.
#[test]
fn what_a_parent_was_writing_is_none_of_its_childs() {
    const PAGES: u64 = 300;
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 64);
    for key in 0..PAGES {
        object(key).store(&spilling.store, key).unwrap();
    }
    let Spilling { store, spill, cipher, medium } = &mut spilling;
    // Two batches: one is there, one is on its way.
    spill.write(store, cipher, Choose::Oldest).unwrap();
    spill.write(store, cipher, Choose::Oldest).unwrap();
    let written = store.statistics().spilled;
    assert!(written > 0);
    // And a segment that is spare.
    assert_eq!(medium.lock().unwrap().claimed_count(), 3);
    let (memory, disk) = (SpillMemory::new(SEGMENT).unwrap(), TestDisk::of(medium));
    // SAFETY: nobody else uses the memory.
    let mut child = unsafe { Spill::new(store, &memory, disk.clone(), disk).unwrap() };
    child.begin_child(store);
    assert_eq!(medium.lock().unwrap().claimed_count(), 1);
    while child.write(store, cipher, Choose::Oldest).unwrap() {}
    child.finish(store).unwrap();
    assert_eq!(store.statistics().spilled, PAGES);
    store.audit();
}

#[test]
fn spilled_pages_move_and_are_replaced() {
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 64);
    for key in 0..100 {
        object(key).store(&spilling.store, key).unwrap();
    }
    write_all(&mut spilling, Choose::Oldest);
    assert_eq!(spilling.store.rekey_range(0, 1 << 40, 100), Ok(100));
    for key in 0..100 {
        assert_eq!(spilling.load((1 << 40) + key), Some(object(key)));
    }
    object(7).store(&spilling.store, 1 << 40).unwrap();
    assert_eq!(spilling.load(1 << 40), Some(object(7)));
    let taken = spilling.store.take((1 << 40) + 1, |loaded| spilling.keep(loaded)).unwrap();
    assert_eq!(taken, Some(object(1)));
    assert!(spilling.store.discard((1 << 40) + 2, 3));
    assert_eq!(spilling.store.statistics().spilled, 97);
    spilling.audit();
}

#[test]
fn room_is_used_again_and_what_is_left_in_a_segment_is_moved() {
    let mut spilling = Spilling::new(64 * MIB, SEGMENT, 40);
    let mut random = Random::new(3);
    let mut pages = std::collections::BTreeMap::new();
    // Three times what the file has room for goes through it.
    for round in 0..60 {
        for _ in 0..120 {
            let key = random.below(100_000);
            object(key + round).store(&spilling.store, key).unwrap();
            pages.insert(key, object(key + round));
        }
        let Spilling { store, spill, cipher, .. } = &mut spilling;
        for _ in 0..2 {
            match spill.write(store, cipher, Choose::Oldest) {
                Ok(_) => {}
                Err(SpillError::Full) => {
                    // Nine of ten go: hardly a segment is empty by that.
                    let out: Vec<Key> = pages.keys().copied().collect();
                    for key in out.iter().filter(|_| random.below(10) != 0) {
                        store.invalidate(*key);
                        pages.remove(key);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        spill.finish(store).unwrap();
        spilling.audit();
    }
    for (key, page) in &pages {
        assert_eq!(spilling.load(*key).as_ref(), Some(page));
    }
    assert!(spilling.medium.lock().unwrap().sequence > 30);
}

/// While it writes, the program stores a page beside each of those in the file.
struct Meanwhile<'a> {
    disk: TestDisk,
    store: &'a Store,
    writes: u64,
}

impl Disk for Meanwhile<'_> {
    unsafe fn begin_write(&mut self, offset: u64, bytes: &[u8]) {
        // SAFETY: passed on.
        unsafe { self.disk.begin_write(offset, bytes) };
    }

    fn finish_write(&mut self) -> Result<(), Errno> {
        self.writes += 1;
        for key in (63..512).step_by(64) {
            object(key + self.writes).store(self.store, key).unwrap();
        }
        self.disk.finish_write()
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.disk.read(offset, bytes)
    }
}

/// What was in the file is moved there even while the program stores neighbours of it; otherwise
/// the file of a busy program would be full with hardly anything in it.
#[test]
fn what_is_left_is_moved_while_the_program_stores_beside_it() {
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 16);
    let keys = || (0..512).filter(|key| key % 64 != 63);
    for key in keys() {
        object(key).store(&spilling.store, key).unwrap();
    }
    write_all(&mut spilling, Choose::Oldest);
    keys().filter(|key| key % 8 != 0).for_each(|key| assert!(spilling.store.invalidate(key)));
    let Spilling { store, cipher, medium, .. } = &spilling;
    let disk = TestDisk::of(medium);
    let mut memory = SpillMemory::new(SEGMENT).unwrap();
    let meanwhile = Meanwhile { disk: disk.clone(), store, writes: 0 };
    let mut spill = Spill::with_memory(store, &mut memory, meanwhile, disk).unwrap();
    let (before, left) = (store.space.used_segments(), 64);
    assert!(before > 2, "{before}");
    assert!(spill.clean(store, cipher).unwrap());
    assert_eq!(spill.counts().pages_moved, left);
    assert_eq!(store.space.used_segments(), 1, "of {before}");
    for key in (0..512).step_by(8) {
        assert_eq!(spilling.load(key), Some(object(key)), "{key}");
    }
    store.audit();
}

#[test]
fn nothing_is_lost_when_an_operation_fails_whichever_it_is() {
    // Without a failure: so many operations are there to fail.
    let run = |fails_after| {
        let mut spilling = Spilling::new(64 * MIB, SEGMENT, 12);
        spilling.medium.lock().unwrap().fails_after = fails_after;
        let mut errors = 0;
        for round in 0..6 {
            for key in round * 100..round * 100 + 100 {
                object(key).store(&spilling.store, key).unwrap();
            }
            for key in (0..round * 100).filter(|key| key % 8 != 0) {
                spilling.store.invalidate(key);
            }
            let Spilling { store, spill, cipher, .. } = &mut spilling;
            let results = [
                spill.write(store, cipher, Choose::Oldest).map(drop),
                spill.write(store, cipher, Choose::Oldest).map(drop),
                spill.clean(store, cipher).map(drop),
            ];
            for error in results.into_iter().filter_map(Result::err) {
                assert!(!matches!(error, SpillError::Damaged { .. }), "{error}");
                errors += 1;
            }
            if let Err(error) = spill.finish(store) {
                assert!(matches!(
                    error,
                    SpillError::Write { errno: ramfold_sys::Errno::NOSPC, .. }
                ));
                errors += 1;
            }
        }
        spilling.audit();
        for key in 0..600 {
            let expected = (key >= 500 || key % 8 == 0).then(|| object(key));
            assert_eq!(spilling.load(key), expected, "{key}, failing after {fails_after:?}");
        }
        let operations = spilling.medium.lock().unwrap().operations;
        (operations, errors)
    };
    let (operations, errors) = run(None);
    assert_eq!(errors, 0);
    assert!(operations > 15, "{operations}");
    for after in 0..operations {
        assert_eq!(run(Some(after)).1, 1, "after {after} of {operations}");
    }
}

/// Claims of nobody but this process.
struct AllOurs(Vec<bool>, u64);

impl Claims for AllOurs {
    fn claim(&mut self) -> Option<u32> {
        let free = self.0.iter().position(|&claimed| !claimed)?;
        self.0[free] = true;
        Some(free as u32)
    }

    fn release(&mut self, segment: u32) {
        self.0[segment as usize] = false;
    }

    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool) {
        (0..).zip(&mut self.0).for_each(|(segment, claimed)| *claimed &= is_used(segment));
    }

    fn next_sequence(&mut self) -> u64 {
        self.1 += 1;
        self.1
    }
}

#[test]
fn a_file_on_a_disk_keeps_them_with_and_without_a_ring() {
    for with_ring in [false, true] {
        let named = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(named.path().to_str().unwrap()).unwrap();
        let file = DirectFile::open(&path).unwrap();
        let shape = SpillShape { segment_bytes: SEGMENT, segment_count_max: 8 };
        let store = Store::new(&Config {
            pool_bytes_max: 16 * MIB,
            reserve_bytes: 0,
            metadata_bytes_max: 16 * MIB,
            spill: Some(shape),
        });
        let store = store.unwrap();
        let memory = SpillMemory::new(SEGMENT).unwrap();
        let writer = SpillWriter::new(&file, with_ring);
        let claims = AllOurs(vec![false; 8], 0);
        // SAFETY: nobody else uses the memory.
        let mut spill = unsafe { Spill::new(&store, &memory, writer, claims).unwrap() };
        let cipher = SpillCipher::new(&[5; KEY_BYTES]);
        for key in 0..200 {
            object(key).store(&store, key).unwrap();
        }
        while spill.write(&store, &cipher, Choose::Oldest).unwrap() {}
        // Two of three go, so that the rest is moved.
        (0..200).filter(|key| key % 3 != 0).for_each(|key| assert!(store.invalidate(key)));
        assert!(spill.clean(&store, &cipher).unwrap());
        spill.rest(&store).unwrap();
        let memory = Reservation::new(2 * 4096).unwrap();
        memory.commit(0, 8192).unwrap();
        // SAFETY: committed above, and used here alone.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), 8192) };
        for key in (0..200).filter(|key| key % 3 == 0) {
            let spilled = store.load(key, |loaded| match loaded {
                Loaded::Spilled(spilled) => spilled,
                other => panic!("{other:?}"),
            });
            let spilled = spilled.unwrap().unwrap();
            let range = spilled.file_range();
            let first = range.start / 4096 * 4096;
            file.read_at(first, bytes).unwrap();
            let extent = &mut bytes[(range.start - first) as usize..(range.end - first) as usize];
            let bytes = cipher.open(spilled, extent).unwrap().to_vec();
            assert_eq!(Page::Object { encoding: spilled.encoding(), bytes }, object(key));
        }
        store.audit();
    }
}

#[test]
fn threads_store_and_load_while_everything_becomes_smaller_is_spilled_and_moved() {
    let mut spilling = Spilling::new(64 * MIB, SEGMENT, 256);
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    let Spilling { store, spill, cipher, medium } = &mut spilling;
    let (store, cipher, medium) = (&*store, &*cipher, &*medium);
    let enough = |counts: SpillCounts| counts.pages_written > 100 && counts.pages_moved > 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut recompression = Recompression::START;
            while !stop.load(Ordering::Relaxed) {
                recompression.begin_round(store);
                let mut step = || recompression.step(store, &mut Halves::default());
                while step() != Recompressed::Round {}
                // So that others find something to write: until they have stored as much again.
                let before = steps.load(Ordering::Relaxed);
                while steps.load(Ordering::Relaxed) - before < 1000 && !stop.load(Ordering::Relaxed)
                {
                    std::thread::yield_now();
                }
            }
        });
        for thread in 0..3u64 {
            let (stop, steps) = (&stop, &steps);
            scope.spawn(move || {
                use_pages(store, thread, 50, 1000, stop, steps, object, |key, expected| {
                    check(store, cipher, medium, key, expected);
                });
            });
        }
        let started = Instant::now();
        while goes_on(started, enough(spill.counts())) {
            let written = spill.write(store, cipher, Choose::Oldest).map(drop);
            let cleaned = spill.clean(store, cipher).map(drop);
            for done in [written, cleaned] {
                // What changes while it is moved stays where it was, and takes twice the room for
                // now.
                assert!(matches!(done, Ok(()) | Err(SpillError::Full)), "{done:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counts = spill.counts();
    println!("{} steps, {counts:?}", steps.load(Ordering::Relaxed));
    assert!(enough(counts), "{counts:?}");
    spill.finish(store).unwrap();
    spilling.audit();
}

/// Loads a page as a program's fault would: what is in the file is read without a lock, and
/// believed only if the store says the same afterwards.
fn check(
    store: &Store,
    cipher: &SpillCipher,
    medium: &Mutex<Medium>,
    key: Key,
    expected: Option<Page>,
) {
    loop {
        let kept = |loaded: Loaded<'_>| match loaded {
            Loaded::Spilled(spilled) => Err(spilled),
            other => Ok(Page::keep(other)),
        };
        let page = match store.load(key, kept).unwrap() {
            None => None,
            Some(Ok(page)) => Some(page),
            Some(Err(spilled)) => {
                let range = spilled.file_range();
                let mut bytes = vec![0; (range.end - range.start) as usize];
                medium.lock().unwrap().read(range.start, &mut bytes);
                let now =
                    store.load(key, |loaded| matches!(loaded, Loaded::Spilled(s) if s == spilled));
                if now.unwrap() != Some(true) {
                    continue;
                }
                let bytes = cipher.open(spilled, &mut bytes).unwrap().to_vec();
                Some(Page::Object { encoding: spilled.encoding(), bytes })
            }
        };
        let denser = expected.as_ref().and_then(Page::denser);
        assert!(page == expected || page.is_some() && page == denser, "{page:?}, {expected:?}");
        return;
    }
}

#[test]
fn every_flipped_bit_of_the_file_is_noticed() {
    let mut spilling = Spilling::new(MIB, SEGMENT, 4);
    let pages = [
        Page::Object { encoding: 1, bytes: vec![1] },
        Page::Object { encoding: 15, bytes: content(1, 44) },
        Page::Object { encoding: 7, bytes: content(2, 300) },
    ];
    for (key, page) in (0..).zip(&pages) {
        page.store(&spilling.store, key).unwrap();
    }
    write_all(&mut spilling, Choose::Oldest);
    for (key, page) in (0..).zip(&pages) {
        let spilled = spilling.store.load(key, |loaded| match loaded {
            Loaded::Spilled(spilled) => spilled,
            other => panic!("{other:?}"),
        });
        let spilled = spilled.unwrap().unwrap();
        let range = spilled.file_range();
        let whole = spilling.medium.lock().unwrap().bytes[range.start as usize..range.end as usize]
            .to_vec();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let opened = spilling.cipher.open(spilled, &mut bytes);
            let error = opened.expect_err("damage");
            assert_eq!(error, SpillError::Damaged { range: range.clone() });
        }
        // Another key opens nothing, nor does a part.
        let other = SpillCipher::new(&[8; KEY_BYTES]);
        assert!(other.open(spilled, &mut whole.clone()).is_err());
        let part = &mut whole.clone()[1..];
        assert!(spilling.cipher.open(spilled, part).is_err());
        assert_eq!(spilling.load(key).as_ref(), Some(page));
    }
}

#[test]
fn every_flipped_bit_of_a_spilled_entry_is_noticed() {
    let mut spilling = Spilling::new(16 * MIB, SEGMENT, 64);
    // Whole pages, so that a place differs from another valid one in few bits.
    for key in 0..200 {
        spilling.store.store_object(key, 15, &content(key, 4096)).unwrap();
    }
    write_all(&mut spilling, Choose::Raw);
    for key in [0, 77, 199] {
        for bit in 0..64 {
            spilling.store.flip_entry_bit(key, bit);
            match spilling.store.load(key, |loaded| matches!(loaded, Loaded::Spilled(_))) {
                Ok(Some(true)) => assert!((53..61).contains(&bit), "bit {bit}"),
                Err(LoadError::Entry { .. } | LoadError::Checksum { .. }) => {}
                other => panic!("bit {bit}: {other:?}"),
            }
            spilling.store.flip_entry_bit(key, bit);
        }
    }
    // An entry that is another key's is told in all but one of 512 cases.
    let mut noticed = 0;
    for key in 0..200 {
        spilling.store.rekey_wrongly(key, key + 1000);
        noticed += u32::from(spilling.store.load(key + 1000, |_| ()).is_err());
        spilling.store.rekey_wrongly(key + 1000, key);
    }
    assert!(noticed > 190, "{noticed}");
    spilling.audit();
}

#[test]
fn what_is_on_its_way_is_not_written_again() {
    // Fifteen pages fill a batch, so nearly all batches end within a leaf.
    let mut s = Spilling::new(16 * MIB, 64 << 10, 200);
    let pages = 1000;
    (0..pages).for_each(|key| s.store.store_object(key, 1, &content(key, 4096)).unwrap());
    s.store.begin_age();
    while s.spill.counts().pages_written < pages {
        if !s.spill.write(&s.store, &s.cipher, Choose::Oldest).unwrap() {
            s.spill.finish(&s.store).unwrap();
        }
    }
    assert_eq!(s.spill.counts().writes, pages.div_ceil(15));
    // Fewer than fill a batch, asked for again while they are on their way.
    (pages..pages + 9).for_each(|key| s.store.store_object(key, 1, &content(key, 4096)).unwrap());
    s.store.begin_age();
    let writes = s.spill.counts().writes;
    assert!(s.spill.write(&s.store, &s.cipher, Choose::Oldest).unwrap());
    assert!(!s.spill.write(&s.store, &s.cipher, Choose::Oldest).unwrap());
    assert_eq!(s.spill.counts().writes, writes + 1);
    assert_eq!(s.spill.counts().pages_written, pages + 9);
    s.audit();
    for key in 0..pages + 9 {
        let page = Page::Object { encoding: 1, bytes: content(key, 4096) };
        assert_eq!(s.load(key), Some(page));
    }
}
