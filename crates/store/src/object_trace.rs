//! A trace of what happens to the objects of a pool, so that other allocators can replay it.
//!
//! The pool's threads write it into a ring in shared memory, from which another process takes it.
//! It consists of 64-bit words in the machine's byte order, one or two for each event. Threads draw
//! places in the ring in turn, so it needs no lock. A place in the pool becomes free in the trace
//! before it is free in the pool, and taken after it is, so that one place has one object at a
//! time.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::pool::{Object, ObjectRef};

/// 4 MiB: enough for some seconds of the fastest traces.
const RING_WORDS: u64 = 1 << 19;
/// The first word of a trace in a file; the events follow.
pub const TRACE_MAGIC: u64 = u64::from_le_bytes(*b"rfobject");
pub(crate) const KIND_PUT: u64 = 1 << Object::BITS;
const KIND_FREE: u64 = 2 << Object::BITS;
/// The next word is where to.
pub(crate) const KIND_MOVE: u64 = 3 << Object::BITS;
pub(crate) const KIND_COMPACT: u64 = 4 << Object::BITS;
const KIND_END: u64 = 5 << Object::BITS;

/// What happened. Places are those of objects in the pool, in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object was stored.
    Put {
        /// Its place.
        place: u64,
        /// Its length, in bytes.
        len: usize,
    },
    /// A place was freed: of an object, or of one of its two copies.
    Free {
        /// The place.
        place: u64,
    },
    /// The object has a copy. Afterwards the original is freed; or the copy, if the object was
    /// freed or replaced meanwhile.
    Move {
        /// Place of the original.
        from: u64,
        /// Place of the copy.
        to: u64,
    },
    /// A compaction begins: objects are moved so that spans become free.
    Compact,
    /// The trace ends here.
    End {
        /// Whether it has all that happened.
        whole: bool,
    },
}

impl Event {
    /// The last word of a trace. `whole`: it has all that happened.
    pub fn end_word(whole: bool) -> u64 {
        KIND_END | u64::from(whole)
    }
}

/// A word that is not part of a trace, by its number among the words of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("word {0} of its events is none that ramfold writes")]
pub struct TraceError(
    /// The word's number, from 0.
    pub u64,
);

/// A ring of words on their way from the pool of one process to the process that keeps the trace.
/// It is in memory that several processes share, one of which records. Zeroed memory is a ring
/// whose trace nobody wants.
#[repr(C)]
pub struct ObjectRing {
    wanted: AtomicU32,
    /// Counts processes that might record.
    recorders: AtomicU32,
    /// The number of the process that records: the first to store an object. 0: none yet.
    recorder: AtomicU32,
    /// Places given to writers so far, and places emptied so far.
    drawn: AtomicU64,
    taken: AtomicU64,
    /// 0 at a place that is empty, or not written yet.
    words: [AtomicU64; RING_WORDS as usize],
}

impl ObjectRing {
    /// A ring of zeros.
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

    /// Asks for a trace: a process that starts from now on may record.
    pub fn want(&self) {
        self.wanted.store(1, Ordering::Relaxed);
    }

    /// Whether a process records.
    pub fn is_used(&self) -> bool {
        self.recorder.load(Ordering::Relaxed) != 0
    }

    /// Whether events have not been taken. They never come if the ring was full when they happened.
    pub fn has_more(&self) -> bool {
        self.drawn.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed)
    }

    /// Takes the words that are there, in order, and makes room. One process at a time may call
    /// this.
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
            // The places stay empty, and `take` stops there.
            return false;
        }
        for (at, word) in (first..).zip(event) {
            self.word(at).store(word, Ordering::Relaxed);
        }
        true
    }
}

/// Writes a trace, if one is wanted. Otherwise it costs the test of a flag.
#[derive(Default)]
pub struct Recorder {
    ring: Option<&'static ObjectRing>,
    number: u32,
    is_on: AtomicBool,
}

impl Recorder {
    /// The recorder of this process. It records if a trace is wanted and no other process records.
    pub fn of(ring: &'static ObjectRing) -> Recorder {
        if ring.wanted.load(Ordering::Relaxed) == 0 {
            return Recorder::default();
        }
        let number = ring.recorders.fetch_add(1, Ordering::Relaxed) + 1;
        Recorder { ring: Some(ring), number, is_on: AtomicBool::new(true) }
    }

    /// Ends recording.
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

    /// Whether this process is the one that records; it becomes that if none is.
    fn is_mine(&self, ring: &ObjectRing) -> bool {
        let recorder = &ring.recorder;
        if recorder.load(Ordering::Relaxed) == 0 {
            // The winner of a race may be another thread of this process.
            let _ = recorder.compare_exchange(0, self.number, Ordering::Relaxed, Ordering::Relaxed);
        }
        recorder.load(Ordering::Relaxed) == self.number
    }
}

/// The events of a trace, in order, from its words without the first ([`TRACE_MAGIC`]).
pub fn events(
    words: impl IntoIterator<Item = u64>,
) -> impl Iterator<Item = Result<Event, TraceError>> {
    const KIND: u64 = !0 << Object::BITS;
    const { assert!(Object::BITS + 3 <= u64::BITS, "the kinds have room above an object's bits") };
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
