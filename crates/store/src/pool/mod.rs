//! The pool: memory for objects. An object lies in one slot of a size class, its seal before it
//! (beside the pool if it fills a whole-page slot); the slots are cut from spans.
//!
//! An [`Object`] is the right to one slot: it cannot be copied, so a slot has one owner, and what
//! an owner does to its slot needs no lock.

mod checksum;
mod classes;
mod freed_later;
pub(crate) mod memory;
mod object;
mod page_seals;
pub(crate) mod slots;
pub(crate) mod spans;

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use ramfold_sys::sync::MutexGuard;
use ramfold_sys::{Errno, PAGE_SIZE};

use crate::object_trace::Recorder;

pub(crate) use checksum::Checksum;
pub use classes::charged_bytes;
pub(crate) use classes::{CLASS_COUNT, Class, SPAN_BYTES, UNIT_BYTES};
use classes::{CLASSES, PAGE_CLASS, SEAL_BYTES, class_of, half_larger, near};
use freed_later::FreedLater;
pub use object::Object;
pub(crate) use object::ObjectRef;
use page_seals::{PageSeals, PausedSeals};
use slots::{Ground, PausedList, Slot, SlotList};
pub(crate) use spans::NoSpan;
use spans::{PausedSpans, Spans};

/// Largest pool whose slots 35 bits of 16-byte units can name: 512 GiB.
pub(crate) const POOL_BYTES_LIMIT: usize = UNIT_BYTES << object::LOCATION_BITS;

const UNITS_PER_SPAN: u64 = (SPAN_BYTES / UNIT_BYTES) as u64;

/// Below this many spans (64 MiB) an object goes into a slot a little too large rather than into a
/// new span: with 97 classes the spans that are not full cost most in a small pool. Measured with
/// 32 MiB of mixed lengths after churn: 1.12 bytes allocated for a compressed byte instead of 1.17;
/// with ten times as much there is no difference.
const SMALL_POOL_SPANS: u32 = 1024;

/// What the slots hold, all classes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    pub used_slots: u64,
    /// Slots in use times their sizes.
    pub used_bytes: u64,
    /// Spans the slots are in.
    pub span_count: u32,
}

/// Memory for objects, by size classes. The store has its own; it is public to be compared with
/// other allocators, by [`crate::Allocator`].
pub struct Pool {
    spans: Spans,
    page_seals: PageSeals,
    lists: [SlotList; CLASS_COUNT],
    /// Objects in slots of [`PAGE_CLASS`].
    page_count: AtomicUsize,
    freed_later: FreedLater,
    pub(crate) recorder: Recorder,
}

impl Pool {
    /// Reserves address space for as many spans of 64 KiB as `bytes_max` holds, and plans to keep
    /// `reserve_bytes` of them ready. Takes no memory yet.
    ///
    /// # Errors
    /// `ENOMEM` when there is no address space.
    pub fn new(bytes_max: usize, reserve_bytes: usize) -> Result<Pool, Errno> {
        Ok(Pool {
            spans: Spans::new(bytes_max, reserve_bytes)?,
            page_seals: PageSeals::new(bytes_max / SPAN_BYTES)?,
            lists: [const { SlotList::new() }; CLASS_COUNT],
            page_count: AtomicUsize::new(0),
            freed_later: FreedLater::new()?,
            recorder: Recorder::default(),
        })
    }

    fn ground(&self, class: usize) -> Ground<'_> {
        Ground { spans: &self.spans, class: &CLASSES[class], class_number: class as u8 }
    }

    /// Copies an object of 1 to 4096 bytes into the pool.
    #[inline]
    pub(crate) fn put(&self, bytes: &[u8], seal: u32) -> Result<Object, NoSpan> {
        let object = self.place_new(bytes, seal)?;
        self.recorder.put(object.as_ref());
        Ok(object)
    }

    #[inline]
    fn place_new(&self, bytes: &[u8], seal: u32) -> Result<Object, NoSpan> {
        let class = class_of(bytes.len());
        let acceptable = if self.spans.is_sharing() {
            // A slot half as large again is better than a page of its own for each of 97 classes.
            Some(half_larger(class))
        } else {
            (self.spans.used_count() < SMALL_POOL_SPANS).then(|| near(class))
        };
        if let Some(classes) = acceptable
            && let Some((class, slot)) = self.alloc_here(classes, true)
        {
            return self.fill(class, slot, bytes, seal);
        }
        // SAFETY: a class's list is always given the class's ground.
        let refusal = match unsafe { self.lists[class].alloc(self.ground(class)) } {
            Ok(slot) => return self.fill(class, slot, bytes, seal),
            Err(refusal) => refusal,
        };
        // A slot too large is better than none. Not one of a whole page: the seals of that class
        // lie aside, and only the object's length tells whether its seal does.
        if class < PAGE_CLASS
            && let Some((class, slot)) = self.alloc_here(class + 1..PAGE_CLASS, false)
        {
            return self.fill(class, slot, bytes, seal);
        }
        Err(refusal)
    }

    /// A free slot of the first of `classes` that has one. `own`: only one whose pages no relative
    /// shares.
    #[inline]
    fn alloc_here(
        &self,
        mut classes: impl Iterator<Item = usize>,
        own: bool,
    ) -> Option<(usize, Slot)> {
        // SAFETY: a class's list is always given the class's ground.
        classes.find_map(|class| unsafe {
            Some((class, self.lists[class].alloc_here(self.ground(class), own)?))
        })
    }

    /// Writes an object into a slot of `class` that is the caller's.
    #[inline]
    fn fill(&self, class: usize, slot: Slot, bytes: &[u8], seal: u32) -> Result<Object, NoSpan> {
        let on = self.ground(class);
        let offset = usize::from(slot.number) * usize::from(on.class.slot_bytes);
        // SAFETY: the slot came from the class's list.
        let start = unsafe {
            self.spans.write(slot.span, offset, bytes.len());
            slots::at(on, slot)
        };
        let payload = if class == PAGE_CLASS {
            if let Err(errno) = self.page_seals.set(slot, seal) {
                // SAFETY: the slot came from this list and nothing refers to it.
                unsafe { self.lists[class].free(on, slot) };
                return Err(NoSpan::NoMemory(errno));
            }
            self.page_count.fetch_add(1, Ordering::Relaxed);
            start
        } else {
            // SAFETY: slots are multiples of 16 bytes, aligned to as much, and larger than a seal.
            unsafe {
                start.cast::<u32>().write(seal);
                start.add(SEAL_BYTES)
            }
        };
        // SAFETY: the class has room for the object behind its seal, and the slot is not shared.
        unsafe { payload.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let location = u64::from(slot.span) * UNITS_PER_SPAN + (offset / UNIT_BYTES) as u64;
        // SAFETY: the slot was taken above and is handed on with the object.
        Ok(unsafe { Object::new(location, bytes.len()) })
    }

    /// The span of an object's slot and the offset in it; `None` if no object can be there.
    #[inline]
    fn place(&self, object: ObjectRef<'_>) -> Option<(u32, usize)> {
        let (span, offset) = Self::split(object.location());
        let len = object.len();
        let end = offset + len + if class_of(len) == PAGE_CLASS { 0 } else { SEAL_BYTES };
        let possible =
            span < self.spans.frontier() && end <= SPAN_BYTES && len <= crate::OBJECT_BYTES_MAX;
        possible.then_some((span, offset))
    }

    fn page_slot(span: u32, offset: usize) -> Slot {
        Slot { span, number: (offset / usize::from(CLASSES[PAGE_CLASS].slot_bytes)) as u16 }
    }

    /// An object's bytes and seal; `None` if it names a place where none can be.
    #[inline]
    pub(crate) fn get<'a>(&'a self, object: ObjectRef<'a>) -> Option<(&'a [u8], u32)> {
        let (span, offset) = self.place(object)?;
        // SAFETY: the slot lies in a span that has been in use, so it is accessible; it is the
        // object's, whose owner neither frees nor changes it while it is borrowed.
        unsafe {
            let start = self.spans.at(span, offset);
            let (payload, seal) = if class_of(object.len()) == PAGE_CLASS {
                (start, self.page_seals.get(Self::page_slot(span, offset))?)
            } else {
                (start.add(SEAL_BYTES), start.cast::<u32>().read())
            };
            Some((core::slice::from_raw_parts(payload, object.len()), seal))
        }
    }

    /// Changes an object's seal by exclusive or.
    pub(crate) fn reseal(&self, object: &mut Object, change: u32) {
        let Some((span, offset)) = self.place(object.as_ref()) else {
            return;
        };
        if class_of(object.as_ref().len()) == PAGE_CLASS {
            let slot = Self::page_slot(span, offset);
            if let Some(seal) = self.page_seals.get(slot) {
                // The seal is there already, so this cannot need memory.
                let _ = self.page_seals.set(slot, seal ^ change);
            }
        } else {
            // SAFETY: the seal of a slot that is the object's, which the caller borrows mutably.
            unsafe {
                let seal = self.spans.at(span, offset).cast::<u32>();
                seal.write(seal.read() ^ change);
            }
        }
    }

    /// The class whose slot an object is in, and the slot.
    #[inline]
    fn slot(&self, object: ObjectRef<'_>) -> Option<(usize, Slot)> {
        let (span, offset) = self.place(object)?;
        self.slot_at(span, offset)
    }

    /// The same of a place in a span that has been in use.
    #[inline]
    fn slot_at(&self, span: u32, offset: usize) -> Option<(usize, Slot)> {
        // SAFETY: checked against the frontier. The class is fixed while a slot is in use.
        let class = unsafe { self.spans.header(span) }.class.load(Ordering::Relaxed);
        let shape = CLASSES.get(usize::from(class))?;
        let (number, rest) = (
            offset as u32 / u32::from(shape.slot_bytes),
            offset as u32 % u32::from(shape.slot_bytes),
        );
        (rest == 0 && number < u32::from(shape.slots))
            .then_some((usize::from(class), Slot { span, number: number as u16 }))
    }

    /// Frees an object's slot.
    #[inline]
    pub(crate) fn free(&self, object: Object) {
        // An object that names no slot (a damaged entry) has nothing to free.
        if let Some((class, slot)) = self.slot(object.as_ref()) {
            if class == PAGE_CLASS {
                self.page_count.fetch_sub(1, Ordering::Relaxed);
            }
            self.recorder.free(object.as_ref());
            let offset = usize::from(slot.number) * usize::from(CLASSES[class].slot_bytes);
            // SAFETY: the slot's span is in use.
            let is_shared = unsafe { self.spans.is_shared(slot.span, offset, size_of::<u16>()) };
            if !is_shared || !self.freed_later.push(object.as_ref().location()) {
                self.free_slot(class, slot, offset);
            }
        }
    }

    /// Frees a slot that nobody can name any more.
    fn free_slot(&self, class: usize, slot: Slot, offset: usize) {
        // SAFETY: in use, and free slots are linked by their first bytes.
        unsafe { self.spans.write(slot.span, offset, size_of::<u16>()) };
        // SAFETY: a class's list is always given the class's ground.
        unsafe { self.lists[class].free(self.ground(class), slot) };
    }

    /// Notes that no page is shared any more, and frees the slots that waited for that.
    pub(crate) fn end_sharing(&self) {
        if !self.spans.end_sharing() {
            return;
        }
        while let Some(place) = self.freed_later.pop() {
            let (span, offset) = Self::split(place);
            if let Some((class, slot)) = self.slot_at(span, offset) {
                self.free_slot(class, slot, offset);
            }
        }
    }

    /// The span of a place in the pool, and the offset in it.
    #[inline]
    fn split(place: u64) -> (u32, usize) {
        let offset = (place % UNITS_PER_SPAN) as usize * UNIT_BYTES;
        ((place / UNITS_PER_SPAN) as u32, offset)
    }

    /// Copies an object to a better place, so that memory becomes free: into a fuller span, or
    /// nearer to the start of the fullest. Returns the copy; the caller frees the original. `None`
    /// where there is nothing to gain.
    pub(crate) fn move_to_better(&self, object: ObjectRef<'_>) -> Option<Object> {
        let (class, slot) = self.slot(object)?;
        let on = self.ground(class);
        // SAFETY: the object's span is in use. A look without the lock: full spans stay.
        let used = unsafe { self.spans.header(slot.span) }.used.load(Ordering::Relaxed);
        if used >= on.class.slots {
            return None;
        }
        let (bytes, seal) = self.get(object)?;
        // SAFETY: the class's ground, and the object is in that slot.
        let better = unsafe { self.lists[class].alloc_better(on, slot)? };
        let copy = self.fill(class, better, bytes, seal).ok()?;
        self.recorder.moved(object, copy.as_ref());
        Some(copy)
    }

    /// Gives back the memory behind free ends of spans, unless only memory of the reserve is used.
    /// To be called when objects have been moved.
    pub(crate) fn trim(&self) {
        if self.spans.is_prepared_only() {
            return;
        }
        for (class, list) in self.lists.iter().enumerate() {
            // SAFETY: the class's ground.
            unsafe { list.trim(self.ground(class)) };
        }
    }

    /// From now on only memory of the reserve is used, and none is given back by who frees.
    pub(crate) fn prepare_only(&self) -> Result<(), Errno> {
        self.page_seals.prepare((self.spans.bytes_max() / SPAN_BYTES) as u32)?;
        self.spans.prepare_only()
    }

    /// Bytes in slots of a whole page.
    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_count.load(Ordering::Relaxed) * PAGE_SIZE
    }

    /// Fills up the reserve.
    pub(crate) fn refill(&self) -> Result<(), Errno> {
        self.spans.refill()
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        let mut counts = PoolCounts::default();
        for (list, class) in self.lists.iter().zip(&CLASSES) {
            let (used_slots, span_count) = list.counts();
            counts.used_slots += used_slots;
            counts.used_bytes += used_slots * u64::from(class.slot_bytes);
            counts.span_count += span_count;
        }
        counts
    }

    /// Bytes of the tables beside the pool.
    pub(crate) fn metadata_bytes(&self) -> usize {
        self.spans.header_bytes()
            + self.page_seals.resident_bytes()
            + self.freed_later.resident_bytes()
    }

    /// Addresses: first the pool's, then those of the tables beside it.
    pub(crate) fn ranges(&self) -> [Range<usize>; 5] {
        let [spans, headers] = self.spans.ranges();
        let [seals, marks] = self.page_seals.ranges();
        [spans, headers, seals, marks, self.freed_later.range()]
    }

    pub(crate) fn pause(&self) -> PausedPool<'_> {
        // Refilling comes before everything; what waits to be freed before classes, and those
        // before free spans.
        PausedPool {
            _freed_later: self.freed_later.pause(),
            _lists: self.lists.each_ref().map(SlotList::pause),
            _spans: self.spans.pause(),
            _page_seals: self.page_seals.pause(),
        }
    }

    /// # Safety
    /// As [`ramfold_sys::sync::Mutex::reset_after_fork`], for all locks of the pool.
    pub(crate) unsafe fn reset_locks_after_fork(&self) {
        // SAFETY: passed on to the caller.
        unsafe {
            self.lists.iter().for_each(|list| list.reset_lock_after_fork());
            self.spans.reset_locks_after_fork();
            self.page_seals.reset_lock_after_fork();
            self.freed_later.reset_lock_after_fork();
        }
    }
}

#[cfg(test)]
impl Pool {
    /// Checks everything the pool knows against the objects there are and against the kernel.
    pub(crate) fn audit<'a>(&self, objects: impl Iterator<Item = ObjectRef<'a>>) {
        use std::collections::{BTreeMap, BTreeSet};

        let mut in_use = vec![BTreeMap::<u32, BTreeSet<u16>>::new(); CLASS_COUNT];
        let mut expected = PoolCounts::default();
        for object in objects {
            let (class, slot) = self.slot(object).expect("a slot");
            let need = class_of(object.len());
            assert!(class >= need && (class == need || class < PAGE_CLASS));
            let spans = in_use[class].entry(slot.span).or_default();
            assert!(spans.insert(slot.number), "two objects in one slot");
            expected.used_slots += 1;
            expected.used_bytes += u64::from(CLASSES[class].slot_bytes);
        }
        let mut waiting_pages = 0;
        for place in self.freed_later.iter() {
            let (span, offset) = Self::split(place);
            let (class, slot) = self.slot_at(span, offset).expect("a slot");
            let is_new = in_use[class].entry(span).or_default().insert(slot.number);
            assert!(is_new, "a slot that waits to be freed is in use");
            expected.used_slots += 1;
            expected.used_bytes += u64::from(CLASSES[class].slot_bytes);
            waiting_pages += usize::from(class == PAGE_CLASS);
        }
        expected.span_count = in_use.iter().map(BTreeMap::len).sum::<usize>() as u32;
        let counts = self.counts();
        assert_eq!(counts, expected);
        let pages: usize = in_use[PAGE_CLASS].values().map(BTreeSet::len).sum();
        assert_eq!(self.page_bytes(), (pages - waiting_pages) * PAGE_SIZE);
        assert!(counts.used_bytes <= self.spans.resident_bytes() as u64);
        for (class, in_use) in in_use.iter().enumerate() {
            self.lists[class].audit(self.ground(class), in_use);
        }
        self.spans.audit(&in_use.iter().flat_map(|spans| spans.keys().copied()).collect());
        let tables = &self.ranges()[1..];
        let present: usize = tables.iter().map(crate::tests::present_bytes).sum();
        assert_eq!(self.metadata_bytes(), present);
    }

    /// Flips a bit of an object's seal (the first 32) or bytes.
    pub(crate) fn flip_bit(&self, object: ObjectRef<'_>, bit: usize) {
        let (span, offset) = self.place(object).expect("a slot");
        let aside = class_of(object.len()) == PAGE_CLASS;
        if aside && bit < 32 {
            let slot = Self::page_slot(span, offset);
            let seal = self.page_seals.get(slot).expect("a seal");
            self.page_seals.set(slot, seal ^ 1 << bit).expect("a place");
            return;
        }
        let bit = if aside { bit - 32 } else { bit };
        // SAFETY: inside the slot of the object, which the test alone uses.
        unsafe { *self.spans.at(span, offset + bit / 8) ^= 1 << (bit % 8) };
    }
}

pub(crate) struct PausedPool<'a> {
    _freed_later: MutexGuard<'a, usize>,
    _lists: [PausedList<'a>; CLASS_COUNT],
    _spans: PausedSpans<'a>,
    _page_seals: PausedSeals<'a>,
}

#[cfg(test)]
mod tests {
    use super::classes::SEALED_BYTES_MAX;
    use super::*;

    #[test]
    fn objects_of_every_length_come_back_whole() {
        let pool = Pool::new(64 << 20, 1 << 20).unwrap();
        pool.refill().unwrap();
        let bytes = |len: usize| (0..len).map(|i| (i * 7 + len) as u8).collect::<Vec<u8>>();
        let objects: Vec<Object> =
            (1..=4096).map(|len| pool.put(&bytes(len), !(len as u32)).unwrap()).collect();
        for (object, len) in objects.iter().zip(1..) {
            let (got, seal) = pool.get(object.as_ref()).unwrap();
            assert_eq!((got, seal), (&bytes(len)[..], !(len as u32)));
        }
        let counts = pool.counts();
        assert_eq!(counts.used_slots, 4096);
        let slots: u64 = (1..=4096).map(|len| u64::from(CLASSES[class_of(len)].slot_bytes)).sum();
        assert_eq!(counts.used_bytes, slots);
        assert_eq!(counts.span_count, pool.spans().used_count());
        objects.into_iter().for_each(|object| pool.free(object));
        assert_eq!(pool.counts().used_bytes, 0);
        assert_eq!(pool.spans().resident_bytes(), 1 << 20);
    }

    #[test]
    fn a_full_pool_uses_larger_slots_before_it_gives_up() {
        let pool = Pool::new(2 * SPAN_BYTES, 0).unwrap();
        let raw: Vec<_> = (0..16).map(|_| pool.put(&[1; 4096], 1).unwrap()).collect();
        let large = pool.put(&[2; 2000], 2).unwrap();
        // No span is left; the span of 2000-byte objects has slots.
        let small = pool.put(&[3; 100], 3).unwrap();
        assert_eq!(pool.get(small.as_ref()).unwrap(), (&[3; 100][..], 3));
        assert_eq!(pool.counts().used_bytes, 16 * 4096 + 2 * 2048);
        // What is larger than that finds none, nor does a small one a place among raw pages.
        assert!(matches!(pool.put(&[4; SEALED_BYTES_MAX], 4), Err(NoSpan::Full)));
        let mut raw = raw.into_iter();
        pool.free(raw.next().unwrap());
        assert!(matches!(pool.put(&[4; 3000], 4), Err(NoSpan::Full)));
        let again = pool.put(&[5; 4096], 5).unwrap();
        for object in raw.chain([again, small, large]) {
            pool.free(object);
        }
        assert_eq!((pool.counts().used_slots, pool.spans().used_count()), (0, 0));
    }

    #[test]
    fn a_seal_changes_in_place() {
        let pool = Pool::new(4 * SPAN_BYTES, 0).unwrap();
        for len in [1, 1000, SEALED_BYTES_MAX, SEALED_BYTES_MAX + 1, 4096] {
            let mut object = pool.put(&vec![9; len], 0xf0f0).unwrap();
            pool.reseal(&mut object, 0x1111);
            assert_eq!(pool.get(object.as_ref()).unwrap(), (&vec![9; len][..], 0xe1e1));
            pool.free(object);
        }
    }

    #[test]
    fn moving_objects_empties_spans_and_their_ends() {
        let pool = Pool::new(64 * SPAN_BYTES, 0).unwrap();
        let objects: Vec<_> = (0..640).map(|i| pool.put(&[i as u8; 1000], i).unwrap()).collect();
        let mut kept = Vec::new();
        for (i, object) in objects.into_iter().enumerate() {
            if i % 20 == 3 { kept.push((i, object)) } else { pool.free(object) }
        }
        assert_eq!(pool.spans().used_count(), 10);
        loop {
            let mut moved = 0;
            for (_, object) in &mut kept {
                if let Some(better) = pool.move_to_better(object.as_ref()) {
                    pool.free(core::mem::replace(object, better));
                    moved += 1;
                }
            }
            if moved == 0 {
                break;
            }
        }
        assert_eq!(pool.spans().used_count(), 1);
        assert_eq!(pool.spans().resident_bytes(), SPAN_BYTES);
        pool.trim();
        // 32 slots of 1008 bytes.
        assert_eq!(pool.spans().resident_bytes(), 8 * PAGE_SIZE);
        pool.audit(kept.iter().map(|(_, object)| object.as_ref()));
        // Again there is nothing to gain, and the slots given back can be used.
        pool.trim();
        kept.extend((640..672).map(|i| (i, pool.put(&[i as u8; 1000], i as u32).unwrap())));
        assert_eq!(pool.spans().used_count(), 1);
        assert_eq!(pool.spans().resident_bytes(), SPAN_BYTES);
        for (i, object) in kept {
            let (bytes, seal) = pool.get(object.as_ref()).unwrap();
            assert_eq!((bytes, seal), (&[i as u8; 1000][..], i as u32));
            pool.free(object);
        }
        assert_eq!(pool.spans().resident_bytes(), 0);
    }
}
