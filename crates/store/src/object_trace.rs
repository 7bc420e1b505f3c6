//! A trace of what happens to the objects of a pool, so that other allocators can be given the same.
//!
//! It is a file that a process maps: 64-bit words in the machine's order, a head of eight, then one or
//! two for each event. Threads take words in turn, so the file needs no lock; a place is free in it
//! before it is free in the pool, and taken after, so that one place has one object at a time.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pool::{Object, ObjectRef};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"rfobject");
/// Words of the head: the magic number, how many words were asked for behind the head, and six more,
/// zero.
pub(crate) const HEAD_WORDS: usize = 8;
pub const TRACE_HEAD_BYTES: usize = HEAD_WORDS * size_of::<u64>();
pub(crate) const KIND_PUT: u64 = 1 << Object::BITS;
const KIND_FREE: u64 = 2 << Object::BITS;
/// The next word is where to.
pub(crate) const KIND_MOVE: u64 = 3 << Object::BITS;
pub(crate) const KIND_COMPACT: u64 = 4 << Object::BITS;

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
}

/// Why words are no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    #[error("it is no trace of objects, or one of another version or machine")]
    NoTrace,
    #[error("word {0} behind its head is none that ramfold writes")]
    Damaged(u64),
}

/// Writes a trace; or none, at the cost of a look.
#[derive(Default)]
pub struct Recorder {
    /// With the head.
    words: &'static [AtomicU64],
    is_on: AtomicBool,
}

impl Recorder {
    /// Takes a trace that has not begun, a file of zeros; `None` if it has, or is too small for anything.
    pub fn begin(words: &'static [AtomicU64]) -> Option<Recorder> {
        let magic = words.get(..HEAD_WORDS)?.first()?;
        magic.compare_exchange(0, MAGIC, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        Some(Recorder { words, is_on: AtomicBool::new(true) })
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

    /// When the file is full, words are only counted.
    #[cold]
    fn write<const N: usize>(&self, event: [u64; N]) {
        let Some((head, words)) = self.words.split_at_checked(HEAD_WORDS) else { return };
        let first = head[1].fetch_add(N as u64, Ordering::Relaxed) as usize;
        let room = first.checked_add(N).and_then(|end| words.get(first..end));
        for (word, at) in event.into_iter().zip(room.into_iter().flatten()) {
            at.store(word, Ordering::Relaxed);
        }
    }
}

/// How many words behind the head were asked for: none where nobody recorded anything; where it is more
/// than there is room for, the file was full.
///
/// # Errors
/// [`TraceError::NoTrace`] if this is no trace's head.
pub fn words_asked(head: &[u8; TRACE_HEAD_BYTES]) -> Result<u64, TraceError> {
    let mut words = head.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word));
    match (words.next(), words.next()) {
        (Some(MAGIC), Some(asked)) if words.all(|word| word == 0) => Ok(asked),
        _ if *head == [0; TRACE_HEAD_BYTES] => Ok(0),
        _ => Err(TraceError::NoTrace),
    }
}

/// What a trace's words say, those behind the head, in order. A word that somebody was killed before
/// writing ends it.
pub fn events(
    words: impl IntoIterator<Item = u64>,
) -> impl Iterator<Item = Result<Event, TraceError>> {
    const KIND: u64 = !0 << Object::BITS;
    let mut words = words.into_iter().take_while(|&word| word != 0);
    let mut at = 0;
    core::iter::from_fn(move || {
        let word = words.next()?;
        // SAFETY: looked at only, never for what it names.
        let object = |bits: u64| unsafe { ObjectRef::from_bits(bits & !KIND) };
        let place = |bits| object(bits).map(ObjectRef::location);
        let event = match word & KIND {
            KIND_PUT => object(word)
                .filter(|object| object.len() <= crate::OBJECT_BYTES_MAX)
                .map(|object| Event::Put { place: object.location(), len: object.len() }),
            KIND_FREE => place(word).map(|place| Event::Free { place }),
            KIND_MOVE => {
                let to = words.next()?;
                place(word)
                    .zip(place(to).filter(|_| to & KIND == 0))
                    .map(|(from, to)| Event::Move { from, to })
            }
            KIND_COMPACT if word == KIND_COMPACT => Some(Event::Compact),
            _ => None,
        };
        let found = event.ok_or(TraceError::Damaged(at));
        at += if let Ok(Event::Move { .. }) = found { 2 } else { 1 };
        Some(found)
    })
}
