//! Growth that announces itself: how much the program may touch unasked, what it has made, and who
//! waits for a look at that. [`crate::announce`] says why.
//!
//! | word | written by | read by | orders |
//! |---|---|---|---|
//! | `allowance` | the monitor (sets it), callers and the handler (take) | all | nothing: a look that a caller waits for sees the mapping itself |
//! | `announced` | callers (add) | the monitor (takes) | nothing: it only tells calls that are not seen |
//! | `released` | the handler (adds), with the agent's lock; the monitor (clears), before it looks at the mappings | the monitor | nothing: what is added meanwhile counts as new once more |
//! | `fresh` | callers | the monitor (takes) | see [`Ranges`] |
//! | `asked` | callers, Release | the monitor, Acquire, before it looks | the mapping before the look |
//! | `answered` | the monitor, Release, after it has registered | callers, Acquire | the registration before the caller's first touch |
//!
//! The monitor sleeps on another word, which whoever asks raises after that; it reads that word
//! before it asks [`Announcements::is_waited_for`] for the last time.

use core::ops::Range;

use super::sync::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Futex, Ordering};

/// Ranges that were made, so that the monitor need not look at all mappings for them. Any thread
/// puts them here, in handlers of signals too; the monitor takes them out. Memory of zeros is none.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `put` | callers, in one step each | callers, the monitor | nothing: it gives each caller a place of its own |
/// | `end` of a place | its caller, Release; the monitor (clears), when it has seen that | the monitor, Acquire | `start` before it |
/// | `taken` | the monitor, Release, after it has cleared `end` | callers, Acquire | a place is empty before it is given again |
#[repr(C)]
pub(crate) struct Ranges<const PLACES: usize> {
    places: [AnnouncedRange; PLACES],
    /// How many were put here, and taken out.
    put: AtomicUsize,
    taken: AtomicUsize,
}

#[derive(Default)]
#[repr(C)]
struct AnnouncedRange {
    start: AtomicUsize,
    /// Zero: nothing is here yet.
    end: AtomicUsize,
}

impl<const PLACES: usize> Default for Ranges<PLACES> {
    fn default() -> Self {
        let places = core::array::from_fn(|_| AnnouncedRange::default());
        Ranges { places, put: AtomicUsize::default(), taken: AtomicUsize::default() }
    }
}

impl<const PLACES: usize> Ranges<PLACES> {
    /// Where there is no room for it, it is left out.
    pub(crate) fn put(&self, range: &Range<usize>) {
        let mut put = self.put.load(Ordering::Relaxed);
        loop {
            if put.wrapping_sub(self.taken.load(Ordering::Acquire)) >= PLACES {
                return;
            }
            let next = put.wrapping_add(1);
            match self.put.compare_exchange_weak(put, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => put = other,
            }
        }
        let place = &self.places[put % PLACES];
        place.start.store(range.start, Ordering::Relaxed);
        place.end.store(range.end, Ordering::Release);
    }

    /// For the monitor: the next, in the order in which they were put.
    pub(crate) fn take(&self) -> Option<Range<usize>> {
        let taken = self.taken.load(Ordering::Relaxed);
        if taken == self.put.load(Ordering::Relaxed) {
            return None;
        }
        let place = &self.places[taken % PLACES];
        let end = place.end.load(Ordering::Acquire);
        if end == 0 {
            // Its thread is about to write it, and does not wait yet.
            return None;
        }
        let start = place.start.load(Ordering::Relaxed);
        place.end.store(0, Ordering::Relaxed);
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(start..end)
    }

    /// In a forked child, which has one thread: the parent's may have been about to write them.
    fn begin_child(&self) {
        for place in &self.places {
            place.end.store(0, Ordering::Relaxed);
        }
        self.taken.store(self.put.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Memory of zeros: nothing is allowed unasked.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Announcements<const PLACES: usize> {
    fresh: Ranges<PLACES>,
    allowance: AtomicI64,
    /// Bytes announced since the monitor looked.
    announced: AtomicU64,
    /// Bytes that the fault handler has let go, or the program unmapped, since the monitor looked
    /// at the mappings: so much of what the program has may be new.
    released: AtomicU64,
    asked: AtomicU32,
    answered: Futex,
}

impl<const PLACES: usize> Announcements<PLACES> {
    /// For a thread of the program: it has just made this memory, or made it writable. `true`: that
    /// was allowed. Otherwise it asks, and waits for an answer.
    pub(crate) fn grow(&self, range: &Range<usize>) -> bool {
        let bytes = i64::try_from(range.len()).unwrap_or(i64::MAX);
        self.announced.fetch_add(bytes as u64, Ordering::Relaxed);
        if bytes > 0 {
            self.fresh.put(range);
        }
        let before = self.allowance.fetch_sub(bytes, Ordering::Relaxed);
        bytes > 0 && before >= bytes
    }

    /// For a thread that was not allowed what it has made: asks for a look. It wakes the monitor
    /// then, and waits for the answer to the number that this returns.
    pub(crate) fn ask(&self) -> u32 {
        self.asked.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// What was answered so far, for [`Announcements::is_answered`] and [`Announcements::wait`].
    pub(crate) fn answered(&self) -> u32 {
        self.answered.seen()
    }

    /// Is `asked` among what was `answered`? The numbers go round.
    pub(crate) fn is_answered(asked: u32, answered: u32) -> bool {
        answered.wrapping_sub(asked) < u32::MAX / 2
    }

    /// Waits until more was answered, for `ns` at most.
    pub(crate) fn wait(&self, answered: u32, ns: u64) {
        self.answered.wait(answered, ns);
    }

    /// Would so much be too much to be touched at once?
    pub(crate) fn exceeds(&self, bytes: usize) -> bool {
        i64::try_from(bytes).map_or(true, |bytes| self.allowance.load(Ordering::Relaxed) < bytes)
    }

    /// For the fault handler, which lets memory go that was registered: takes so much of what may
    /// be touched unasked, `share` of it at most.
    pub(crate) fn take(&self, share: i64, least: i64, most: i64) -> Option<i64> {
        let mut taken = 0;
        let took = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allowance| {
            taken = (allowance / share).min(most);
            (taken >= least).then(|| allowance - taken)
        });
        took.ok().map(|_| taken)
    }

    /// For the fault handler: so much is registered no more.
    pub(crate) fn note_released(&self, bytes: u64) {
        self.released.fetch_add(bytes, Ordering::Relaxed);
    }

    /// For the monitor: what was released since it looked at all mappings.
    pub(crate) fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// For the monitor, which is about to look at all mappings: what is made meanwhile counts as
    /// unknown.
    pub(crate) fn begin_scan(&self) {
        self.released.store(0, Ordering::Relaxed);
        while self.fresh.take().is_some() {}
    }

    /// For the monitor, before it looks: what it will have answered.
    pub(crate) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    /// For the monitor: does somebody wait for it to look?
    pub(crate) fn is_waited_for(&self) -> bool {
        self.asked.load(Ordering::Acquire) != self.answered.seen()
    }

    /// The next range that was announced, in the order in which they were. Where there was no room
    /// for it, it counts in [`Announcements::take_announced`] alone.
    pub(crate) fn take_fresh(&self) -> Option<Range<usize>> {
        self.fresh.take()
    }

    /// What was announced since this was asked last.
    pub(crate) fn take_announced(&self) -> u64 {
        self.announced.swap(0, Ordering::Relaxed)
    }

    /// What may be touched unasked from now on.
    pub(crate) fn allow(&self, bytes: u64) {
        self.allowance.store(i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    /// For the monitor, after it has looked.
    pub(crate) fn answer(&self, asked: u32) {
        self.answered.replace(asked);
    }

    /// In a forked child, before it has an agent: nobody waits.
    pub(crate) fn begin_child(&self) {
        self.answered.replace(self.asked.load(Ordering::Relaxed));
        self.fresh.begin_child();
        self.allow(0);
    }
}
