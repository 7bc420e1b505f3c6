//! A trace of what happens to the objects of a pool, so that other allocators can be given the same.
//!
//! The pool's threads write it into a ring in shared memory, another process takes it from there. It
//! consists of 64-bit words in the machine's order, one or two for each event. Threads draw places in
//! the ring in turn, so it needs no lock; a place in the pool is free in the trace before it is free in
//! the pool, and taken after, so that one place has one object at a time.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::pool::{Object, ObjectRef};

/// 4 MiB: seconds of the fastest traces.
const RING_WORDS: u64 = 1 << 19;
/// The first word of a trace in a file; the events follow.
pub const TRACE_MAGIC: u64 = u64::from_le_bytes(*b"rfobject");
pub(crate) const KIND_PUT: u64 = 1 << Object::BITS;
const KIND_FREE: u64 = 2 << Object::BITS;
/// The next word is where to.
pub(crate) const KIND_MOVE: u64 = 3 << Object::BITS;
pub(crate) const KIND_COMPACT: u64 = 4 << Object::BITS;
const KIND_END: u64 = 5 << Object::BITS;

/// What happened. Places are where objects lie in the pool, in units of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Put {
        place: u64,
        /// Bytes.
        len: usize,
    },
    /// Whatever was there is free: an object, or one of its two copies.
    Free { place: u64 },
    /// The object has a copy now; the original is freed, or the copy if somebody was faster.
    Move { from: u64, to: u64 },
    /// Objects are moved from here on, so that memory comes free.
    Compact,
    /// Nothing comes after this, though more may have happened.
    End { whole: bool },
}

impl Event {
    /// The last word of a trace, of which this says whether it has all that happened.
    pub fn end_word(whole: bool) -> u64 {
        KIND_END | u64::from(whole)
    }
}

/// Why words are no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {0} of its events is none that ramfold writes")]
pub struct TraceError(pub u64);

/// What is on its way from the pool of one process, of all that share this memory, to who keeps the
/// trace. Zeroed memory: nobody wants one.
#[repr(C)]
pub struct ObjectRing {
    wanted: AtomicU32,
    /// Counts processes that might record.
    recorders: AtomicU32,
    /// Which of them does: the first that has had an object. 0: none yet.
    recorder: AtomicU32,
    /// Places given out, and places emptied, ever.
    drawn: AtomicU64,
    taken: AtomicU64,
    /// 0 where nothing is, or not yet.
    words: [AtomicU64; RING_WORDS as usize],
}

impl ObjectRing {
    /// All zeros.
    #[expect(clippy::new_without_default, reason = "4 MiB have no place on a stack")]
    pub const fn new() -> ObjectRing {
        ObjectRing {
            wanted: AtomicU32::new(0),
            recorders: AtomicU32::new(0),
            recorder: AtomicU32::new(0),
            drawn: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; RING_WORDS as usize],
        }
    }

    /// From here on a process that begins may record.
    pub fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// A process has recorded something.
    pub fn is_used(&self) -> bool {
        self.recorder.load(Ordering::Relaxed) != 0
    }

    /// Something was recorded that has not been taken, and may never come: the ring was full.
    pub fn has_more(&self) -> bool {
        self.drawn.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed)
    }

    /// Takes what is there, in order, and makes room. There is one who calls this.
    pub fn take(&self) -> impl Iterator<Item = u64> {
        core::iter::from_fn(|| {
            let at = self.taken.load(Ordering::Relaxed);
            let word = self.word(at).load(Ordering::Relaxed);
            if word == 0 {
                return None;
            }
            self.word(at).store(0, Ordering::Relaxed);
            self.taken.store(at + 1, Ordering::Release);
            Some(word)
        })
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[(at % RING_WORDS) as usize]
    }

    /// Whether all of the event was written.
    fn put<const N: usize>(&self, event: [u64; N]) -> bool {
        let first = self.drawn.fetch_add(N as u64, Ordering::Relaxed);
        // What was taken was emptied before.
        if (first + N as u64).wrapping_sub(self.taken.load(Ordering::Acquire)) > RING_WORDS {
            // The places stay empty: whoever takes gets no further.
            return false;
        }
        for (at, word) in (first..).zip(event) {
            self.word(at).store(word, Ordering::Relaxed);
        }
        true
    }
}

/// Writes a trace; or none, at the cost of a look.
#[derive(Default)]
pub struct Recorder {
    ring: Option<&'static ObjectRing>,
    number: u32,
    is_on: AtomicBool,
}

impl Recorder {
    /// Of this process, if a trace is wanted, and no other has had an object before.
    pub fn of(ring: &'static ObjectRing) -> Recorder {
        if ring.wanted.load(Ordering::Relaxed) == 0 {
            return Recorder::default();
        }
        let number = ring.recorders.fetch_add(1, Ordering::Relaxed) + 1;
        Recorder { ring: Some(ring), number, is_on: AtomicBool::new(true) }
    }

    /// From here on nothing is recorded.
    pub(crate) fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn put(&self, object: ObjectRef<'_>) {
        self.record([KIND_PUT | object.bits()]);
    }

    #[inline]
    pub(crate) fn free(&self, object: ObjectRef<'_>) {
        self.record([KIND_FREE | object.bits()]);
    }

    #[inline]
    pub(crate) fn moved(&self, from: ObjectRef<'_>, to: ObjectRef<'_>) {
        self.record([KIND_MOVE | from.bits(), to.bits()]);
    }

    #[inline]
    pub(crate) fn compact(&self) {
        self.record([KIND_COMPACT]);
    }

    #[inline]
    fn record<const N: usize>(&self, event: [u64; N]) {
        if self.is_on.load(Ordering::Relaxed) {
            self.write(event);
        }
    }

    #[cold]
    fn write<const N: usize>(&self, event: [u64; N]) {
        if !self.ring.is_some_and(|ring| self.is_mine(ring) && ring.put(event)) {
            self.stop();
        }
    }

    /// Whether this process is the one that records, which it may become here.
    fn is_mine(&self, ring: &ObjectRing) -> bool {
        let recorder = &ring.recorder;
        if recorder.load(Ordering::Relaxed) == 0 {
            // Whoever was faster may be another thread of this process.
            let _ = recorder.compare_exchange(0, self.number, Ordering::Relaxed, Ordering::Relaxed);
        }
        recorder.load(Ordering::Relaxed) == self.number
    }
}

/// What a trace's words say, without the first, in order.
pub fn events(
    words: impl IntoIterator<Item = u64>,
) -> impl Iterator<Item = Result<Event, TraceError>> {
    const KIND: u64 = !0 << Object::BITS;
    let mut words = words.into_iter();
    let mut at = 0;
    core::iter::from_fn(move || {
        let word = words.next()?;
        let object = |bits: u64| Object::parts(bits & !KIND);
        let place = |bits| object(bits).map(|(place, _)| place);
        let event = match word & KIND {
            KIND_PUT => object(word)
                .filter(|&(_, len)| len <= crate::OBJECT_BYTES_MAX)
                .map(|(place, len)| Event::Put { place, len }),
            KIND_FREE => place(word).map(|place| Event::Free { place }),
            KIND_MOVE => {
                let to = words.next()?;
                place(word)
                    .zip(place(to).filter(|_| to & KIND == 0))
                    .map(|(from, to)| Event::Move { from, to })
            }
            KIND_COMPACT if word == KIND_COMPACT => Some(Event::Compact),
            KIND_END if word & !KIND <= 1 => Some(Event::End { whole: word & 1 != 0 }),
            _ => None,
        };
        let found = event.ok_or(TraceError(at));
        at += if let Ok(Event::Move { .. }) = found { 2 } else { 1 };
        Some(found)
    })
}
