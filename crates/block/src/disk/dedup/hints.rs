//! Hints: where a page of this hash was stored. A table of 4 bytes a page that may forget and may
//! be wrong, since what it names is compared before it is believed. So it needs no lock, and what
//! is overwritten or trimmed is not looked for in it.
//!
//! The table doubles bucket by bucket, so that no write waits for that. A hint has the number of
//! the page and, in the bits that are left, a tag: the part of the hash that places it in a larger
//! table.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Hints of a bucket, a cache line.
pub(super) const WAYS: usize = 16;
/// Buckets that memory is allocated for at once: 64 KiB.
const SEGMENT_BUCKETS: usize = 1024;
/// Bits of a tag that tell hints of one bucket apart when the table is at its largest.
const TELLING_BITS: u32 = 4;
/// The tag and the rest of the hash that goes into a mark do not overlap.
const TAG_BITS_MAX: u32 = 28;

#[repr(align(64))]
#[derive(Default)]
struct Bucket([AtomicU32; WAYS]);

/// Pages of a hash that may be equal.
#[derive(Default)]
pub(in crate::disk) struct Candidates {
    ids: [u32; Candidates::MOST],
    count: usize,
}

impl Candidates {
    const MOST: usize = WAYS;

    pub(in crate::disk) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ids[..self.count].iter().copied()
    }

    pub(in crate::disk) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

pub(super) struct Hints {
    segments: Box<[OnceLock<Box<[Bucket]>>]>,
    /// Buckets in use.
    count: AtomicU32,
    shape: Shape,
    /// Which hint of a full bucket goes next.
    victim: AtomicU32,
}

/// How the 32 bits of a hint, and those of a hash, are used.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Buckets at the beginning, and at most.
    first: u32,
    count_max: u32,
    /// Bits of a bucket's number that are not in the tag.
    base_bits: u32,
    tag_bits: u32,
    id_bits: u32,
}

impl Shape {
    /// Of hints for ids from 1 to `id_max`, at most `hints_max` of them.
    pub(super) fn new(id_max: u32, hints_max: u64) -> Shape {
        let count_max = hints_max.div_ceil(WAYS as u64).clamp(1, 1 << 27) as u32;
        let id_bits = u32::BITS - id_max.leading_zeros();
        let tag_bits = (u32::BITS - id_bits).min(TAG_BITS_MAX);
        let count_bits = u32::BITS - (count_max - 1).leading_zeros();
        // The table may become as many times larger as tags leave bits for.
        let growing_bits = tag_bits.saturating_sub(TELLING_BITS);
        let base_bits =
            count_bits.saturating_sub(growing_bits).max(SEGMENT_BUCKETS.ilog2()).min(count_bits);
        let first = count_max.min(1 << base_bits);
        Shape { first, count_max, base_bits, tag_bits, id_bits }
    }

    fn segment_count(self) -> usize {
        (self.count_max as usize).div_ceil(SEGMENT_BUCKETS)
    }

    /// Bytes that a table begins with.
    pub(super) fn least_bytes(self) -> usize {
        let segments = (self.first as usize).div_ceil(SEGMENT_BUCKETS);
        segments * SEGMENT_BUCKETS * size_of::<Bucket>()
            + self.segment_count() * size_of::<OnceLock<Box<[Bucket]>>>()
    }

    /// Bytes of a table at its largest.
    pub(super) fn most_bytes(self) -> usize {
        let segment = SEGMENT_BUCKETS * size_of::<Bucket>() + size_of::<OnceLock<Box<[Bucket]>>>();
        self.segment_count() * segment
    }
}

impl Hints {
    pub(super) fn new(shape: Shape) -> Hints {
        let hints = Hints {
            segments: (0..shape.segment_count()).map(|_| OnceLock::new()).collect(),
            count: AtomicU32::new(0),
            shape,
            victim: AtomicU32::new(0),
        };
        hints.ensure(shape.first);
        hints.count.store(shape.first, Ordering::Release);
        hints
    }

    /// Hints that there is room for.
    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.count.load(Ordering::Relaxed)) * WAYS as u64
    }

    /// Whether it is not at its largest.
    pub(super) fn may_double(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.shape.count_max
    }

    /// Bytes of memory that it has.
    pub(super) fn bytes(&self) -> usize {
        let segments = self.segments.iter().filter(|segment| segment.get().is_some()).count();
        segments * SEGMENT_BUCKETS * size_of::<Bucket>() + size_of_val(&*self.segments)
    }

    /// Allocates the memory of the first `count` buckets.
    fn ensure(&self, count: u32) {
        for segment in &self.segments[..(count as usize).div_ceil(SEGMENT_BUCKETS)] {
            segment.get_or_init(|| (0..SEGMENT_BUCKETS).map(|_| Bucket::default()).collect());
        }
    }

    /// The tag of a hash, moved to its place above an id.
    fn tag(&self, hash: u64) -> u32 {
        let tag = (hash >> 32) as u32 & self.tag_mask();
        tag.checked_shl(self.shape.id_bits).unwrap_or(0)
    }

    fn tag_mask(&self) -> u32 {
        (1 << self.shape.tag_bits) - 1
    }

    fn tag_of(&self, hint: u32) -> u32 {
        hint.checked_shr(self.shape.id_bits).unwrap_or(0) & self.tag_mask()
    }

    fn id_of(&self, hint: u32) -> u32 {
        if self.shape.id_bits == u32::BITS { hint } else { hint & ((1 << self.shape.id_bits) - 1) }
    }

    /// What the store keeps beside an object of this hash: its upper half is the upper end of the
    /// tag, which tells a hint that is out of date; its lower half is in no hint.
    pub(super) fn mark(&self, hash: u64) -> u8 {
        self.upper_mark(self.tag(hash)) << 4 | (hash >> 60) as u8
    }

    fn upper_mark(&self, hint: u32) -> u8 {
        (self.tag_of(hint) >> self.shape.tag_bits.saturating_sub(4)) as u8 & 0xf
    }

    /// Whether a hint may be of an object that has this mark.
    fn fits(&self, hint: u32, mark: u8) -> bool {
        mark >> 4 == self.upper_mark(hint)
    }

    fn bucket_number(&self, hash: u64) -> u32 {
        let base = hash as u32 & ((1 << self.shape.base_bits) - 1);
        let tag = (hash >> 32) as u32 & self.tag_mask();
        let address = u64::from(base) | u64::from(tag) << self.shape.base_bits;
        let count = self.count.load(Ordering::Acquire);
        let level = count.ilog2();
        let number = (address & ((2 << level) - 1)) as u32;
        if number < count { number } else { number & ((1 << level) - 1) }
    }

    fn bucket_at(&self, number: u32) -> Option<&Bucket> {
        let segment = self.segments.get(number as usize / SEGMENT_BUCKETS)?.get()?;
        segment.get(number as usize % SEGMENT_BUCKETS)
    }

    fn bucket(&self, hash: u64) -> Option<&Bucket> {
        self.bucket_at(self.bucket_number(hash))
    }

    /// What pages of this hash may be equal to.
    pub(super) fn find(&self, hash: u64) -> Candidates {
        let mut found = Candidates::default();
        let tag = self.tag(hash);
        for hint in self.bucket(hash).iter().flat_map(|bucket| &bucket.0) {
            let hint = hint.load(Ordering::Relaxed);
            if hint != 0 && hint ^ self.id_of(hint) == tag && found.count < Candidates::MOST {
                found.ids[found.count] = self.id_of(hint);
                found.count += 1;
            }
        }
        found
    }

    /// Notes that `id` has a page of this hash. Where the bucket is full a hint goes for it: one
    /// whose object has another mark by now, if a few looks find one.
    pub(super) fn insert(&self, hash: u64, id: u32, mark_of: impl Fn(u32) -> Option<u8>) {
        const LOOKS: usize = 4;
        let Some(Bucket(hints)) = self.bucket(hash) else { return };
        let new = self.tag(hash) | id;
        let mut free = None;
        for place in hints {
            match place.load(Ordering::Relaxed) {
                0 => free = free.or(Some(place)),
                hint if hint == new => return,
                _ => {}
            }
        }
        let place = free.unwrap_or_else(|| {
            let first = self.victim.load(Ordering::Relaxed).wrapping_add(1);
            self.victim.store(first, Ordering::Relaxed);
            let nth = |nth: usize| &hints[(first as usize).wrapping_add(nth) % WAYS];
            let is_old = |place: &&AtomicU32| {
                let hint = place.load(Ordering::Relaxed);
                mark_of(self.id_of(hint)).is_none_or(|mark| !self.fits(hint, mark))
            };
            (0..LOOKS).map(nth).find(is_old).unwrap_or(nth(0))
        });
        place.store(new, Ordering::Relaxed);
    }

    /// Changes a hint to another id; removes it with `to` 0.
    pub(super) fn replace(&self, hash: u64, from: u32, to: u32) {
        let tag = self.tag(hash);
        let new = if to == 0 { 0 } else { tag | to };
        for place in self.bucket(hash).iter().flat_map(|bucket| &bucket.0) {
            // Where it fails the hint is another by now.
            let _ = place.compare_exchange(tag | from, new, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Doubles the number of buckets, or makes it what it is at most. For one thread at a time;
    /// hints that others write meanwhile may be lost.
    pub(super) fn double(&self) {
        let mut count = self.count.load(Ordering::Relaxed);
        let wanted = (1 << (count.ilog2() + 1)).min(self.shape.count_max);
        while count < wanted {
            self.ensure(count + 1);
            let level = count.ilog2();
            let (Some(old), Some(new)) =
                (self.bucket_at(count - (1 << level)), self.bucket_at(count))
            else {
                return;
            };
            let bit = level.saturating_sub(self.shape.base_bits);
            let moves = |hint: u32| hint != 0 && self.tag_of(hint) >> bit & 1 != 0;
            for (from, to) in old.0.iter().zip(&new.0) {
                let hint = from.load(Ordering::Relaxed);
                to.store(if moves(hint) { hint } else { 0 }, Ordering::Relaxed);
            }
            count += 1;
            self.count.store(count, Ordering::Release);
            for from in &old.0 {
                let hint = from.load(Ordering::Relaxed);
                if moves(hint) {
                    let _ = from.compare_exchange(hint, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spreads numbers over 64 bits.
    fn hash(number: u64) -> u64 {
        let h = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let h = (h ^ h >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        h ^ h >> 29
    }

    #[test]
    fn hints_stay_while_the_table_grows() {
        for id_max in [5000, 1 << 20, 1 << 24, 1 << 30] {
            let hints = Hints::new(Shape::new(id_max, 64 << 10));
            let last = 40_000u32.min(id_max);
            for id in 1..=last {
                hints.insert(hash(id.into()), id, |_| Some(0));
                if hints.capacity() < u64::from(id) * 9 / 8 {
                    hints.double();
                }
            }
            let is_there = |&id: &u32| hints.find(hash(id.into())).iter().any(|found| found == id);
            let there = (1..=last).filter(is_there).count();
            assert!(there * 100 >= last as usize * 94, "{id_max}: {there} of {last}");
            assert!(hints.capacity() <= 64 << 10);
        }
    }

    #[test]
    fn a_full_bucket_gives_up_what_is_out_of_date() {
        let hints = Hints::new(Shape::new(1 << 20, 16));
        let ids = 1..=16u32;
        for id in ids.clone() {
            hints.insert(hash(id.into()), id, |_| panic!("there is room"));
        }
        // Three of four that are looked at are as they were.
        let mark_of = |id: u32| (!id.is_multiple_of(4)).then(|| hints.mark(hash(id.into())));
        hints.insert(hash(77), 77, mark_of);
        let is_there = |id: u32| hints.find(hash(id.into())).iter().any(|found| found == id);
        assert!(is_there(77));
        let gone: Vec<u32> = ids.filter(|&id| !is_there(id)).collect();
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0] % 4, 0);
    }

    #[test]
    fn hints_are_changed_and_removed() {
        let hints = Hints::new(Shape::new(1 << 20, 1024));
        hints.insert(hash(5), 5, |_| None);
        hints.insert(hash(5), 5, |_| None);
        hints.replace(hash(5), 5, 9);
        assert_eq!(hints.find(hash(5)).iter().collect::<Vec<_>>(), [9]);
        hints.replace(hash(5), 9, 0);
        assert!(hints.find(hash(5)).is_empty());
    }
}
