//! Counts of references to shared objects.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use ramfold_sys::sync::Mutex;

/// Counts that memory is allocated for at once: 16 KiB.
const SEGMENT: u32 = 4096;
/// Of a number that is not in use: the rest is the next such number.
const FREE: u32 = 1 << 31;
/// The end of the list of those.
const NONE: u32 = FREE - 1;

/// Numbers of shared objects, and how many pages refer to each.
pub(in crate::disk) struct Shares {
    segments: Box<[OnceLock<Box<[AtomicU32]>>]>,
    free: Mutex<Free>,
}

struct Free {
    head: u32,
    /// Numbers from here on have never been used.
    frontier: u32,
    /// Below this there is memory for a count.
    capacity: u32,
    in_use: u32,
}

impl Shares {
    /// Bytes that [`Shares::refill`] takes at most.
    pub(super) const STEP_BYTES: usize = SEGMENT as usize * size_of::<AtomicU32>();

    /// Numbers from 0 to below `most`.
    pub(super) fn new(most: u32) -> Shares {
        let shares = Shares {
            segments: (0..Shares::segment_count(most)).map(|_| OnceLock::new()).collect(),
            free: Mutex::new(Free { head: NONE, frontier: 0, capacity: 0, in_use: 0 }),
        };
        shares.refill();
        shares
    }

    fn segment_count(most: u32) -> usize {
        most.min(NONE - SEGMENT).div_ceil(SEGMENT) as usize
    }

    /// Bytes that it begins with.
    pub(super) fn least_bytes(most: u32) -> usize {
        let list = Shares::segment_count(most) * size_of::<OnceLock<Box<[AtomicU32]>>>();
        SEGMENT as usize * size_of::<AtomicU32>() + list
    }

    /// Allocates more counts, where few are left.
    pub(super) fn refill(&self) {
        let (capacity, in_use) = {
            let free = self.free.lock();
            (free.capacity, free.in_use)
        };
        if capacity - in_use >= SEGMENT / 2 {
            return;
        }
        if let Some(segment) = self.segments.get((capacity / SEGMENT) as usize) {
            segment.get_or_init(|| (0..SEGMENT).map(|_| AtomicU32::new(0)).collect());
            self.free.lock().capacity = capacity + SEGMENT;
        }
    }

    /// Allocates all counts. Before numbers are claimed.
    pub(super) fn prepare(&self) {
        for segment in &self.segments {
            segment.get_or_init(|| (0..SEGMENT).map(|_| AtomicU32::new(0)).collect());
        }
        self.free.lock().capacity = self.segments.len() as u32 * SEGMENT;
    }

    /// Bytes that it takes with all counts.
    pub(super) fn most_bytes(most: u32) -> usize {
        let segment = Shares::STEP_BYTES + size_of::<OnceLock<Box<[AtomicU32]>>>();
        Shares::segment_count(most) * segment
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let capacity = self.free.lock().capacity as usize;
        capacity * size_of::<AtomicU32>() + size_of_val(&*self.segments)
    }

    /// Shared objects.
    pub(in crate::disk) fn in_use(&self) -> u32 {
        self.free.lock().in_use
    }

    fn count(&self, number: u32) -> Option<&AtomicU32> {
        let segment = self.segments.get((number / SEGMENT) as usize)?.get()?;
        segment.get((number % SEGMENT) as usize)
    }

    /// Takes a number that nobody refers to; `None` where no memory is ready for one.
    pub(in crate::disk) fn claim(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let number = if free.head != NONE {
            let number = free.head;
            let next = self.count(number)?.swap(0, Ordering::Relaxed);
            free.head = next & !FREE;
            number
        } else if free.frontier < free.capacity {
            free.frontier += 1;
            free.frontier - 1
        } else {
            return None;
        };
        free.in_use += 1;
        Some(number)
    }

    /// Gives back a number that nobody refers to.
    pub(in crate::disk) fn give_back(&self, number: u32) {
        let mut free = self.free.lock();
        if let Some(count) = self.count(number) {
            count.store(FREE | free.head, Ordering::Relaxed);
            free.head = number;
            free.in_use -= 1;
        }
    }

    /// Sets how many pages refer to a number that was claimed.
    pub(in crate::disk) fn publish(&self, number: u32, references: u32) {
        if let Some(count) = self.count(number) {
            count.store(references, Ordering::Release);
        }
    }

    /// Adds a reference, if there is any: then the object stays at least until that one is
    /// released.
    pub(in crate::disk) fn acquire(&self, number: u32) -> bool {
        let more = |count: u32| (1..NONE).contains(&count).then(|| count + 1);
        self.count(number).is_some_and(|count| {
            count.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
        })
    }

    /// Removes a reference. `true` if it was the last: the object is to be removed and the number
    /// given back.
    pub(in crate::disk) fn release(&self, number: u32) -> bool {
        let fewer = |count: u32| (1..FREE).contains(&count).then(|| count - 1);
        self.count(number).is_some_and(|count| {
            count.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fewer) == Ok(1)
        })
    }

    #[cfg(test)]
    pub(in crate::disk) fn references(&self, number: u32) -> u32 {
        self.count(number).map_or(0, |count| match count.load(Ordering::Relaxed) {
            free if free >= FREE => 0,
            count => count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_when_the_last_reference_goes() {
        let shares = Shares::new(10_000);
        let first = shares.claim().unwrap();
        assert!(!shares.acquire(first), "nobody refers to it yet");
        shares.publish(first, 2);
        assert!(shares.acquire(first));
        assert_eq!([(); 3].map(|()| shares.release(first)), [false, false, true]);
        assert!(!shares.acquire(first));
        shares.give_back(first);
        assert!(!shares.acquire(first), "a free number has no count");
        assert_eq!(shares.claim(), Some(first));
        assert_eq!(shares.in_use(), 1);
    }

    #[test]
    fn numbers_come_as_far_as_there_is_memory_for_counts() {
        let shares = Shares::new(5000);
        let mut taken: Vec<u32> = std::iter::from_fn(|| shares.claim()).collect();
        assert_eq!(taken.len(), SEGMENT as usize);
        shares.refill();
        taken.extend(std::iter::from_fn(|| shares.claim()));
        assert_eq!(taken.len(), 2 * SEGMENT as usize);
        shares.refill();
        assert_eq!(shares.claim(), None);
        taken.iter().for_each(|&number| shares.give_back(number));
        assert_eq!(shares.in_use(), 0);
        assert_eq!(std::iter::from_fn(|| shares.claim()).count(), taken.len());
    }
}
