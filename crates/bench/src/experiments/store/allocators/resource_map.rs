//! Paper 004's pool: a resource map (Vahalia, UNIX Internals, 12.3) over chunks that are had from
//! the system as they are needed.
//!
//! A map lists what is free in a chunk, by address, as pairs of start and length. An object takes
//! the first place that it fits (first fit); what is freed joins its neighbours. A chunk in which
//! nothing is left goes back. The paper's best of those it tried.

use ramfold_codec::Page;
use ramfold_store::{Allocator, Footprint};

const CHUNK_BYTES: u32 = 256 << 10;
/// Objects begin at multiples of this many bytes.
const ALIGNMENT: u32 = 8;

/// Chunks with maps of what is free.
#[derive(Default)]
pub(super) struct ResourceMap {
    chunks: Vec<Option<Chunk>>,
}

struct Chunk {
    bytes: Box<[u8]>,
    /// What is free, by address; no two are neighbours.
    free: Vec<Free>,
    /// No place in it is larger: chunks that cannot serve are not searched.
    largest: u32,
}

#[derive(Clone, Copy)]
struct Free {
    start: u32,
    len: u32,
}

/// An object's place.
#[derive(Debug)]
pub(super) struct Place {
    chunk: u32,
    start: u32,
    len: u16,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk {
            bytes: vec![0; CHUNK_BYTES as usize].into(),
            free: vec![Free { start: 0, len: CHUNK_BYTES }],
            largest: CHUNK_BYTES,
        }
    }

    fn take(&mut self, len: u32) -> Option<u32> {
        let Some(at) = self.free.iter().position(|free| free.len >= len) else {
            self.largest = self.free.iter().map(|free| free.len).max().unwrap_or(0);
            return None;
        };
        let free = &mut self.free[at];
        let start = free.start;
        free.start += len;
        free.len -= len;
        if free.len == 0 {
            self.free.remove(at);
        }
        Some(start)
    }

    fn give(&mut self, start: u32, len: u32) {
        let at = self.free.partition_point(|free| free.start < start);
        let joins_before = at > 0 && self.free[at - 1].start + self.free[at - 1].len == start;
        let joins_behind = self.free.get(at).is_some_and(|free| start + len == free.start);
        let joined = match (joins_before, joins_behind) {
            (true, true) => {
                let behind = self.free.remove(at);
                self.free[at - 1].len += len + behind.len;
                self.free[at - 1].len
            }
            (true, false) => {
                self.free[at - 1].len += len;
                self.free[at - 1].len
            }
            (false, true) => {
                self.free[at] = Free { start, len: self.free[at].len + len };
                self.free[at].len
            }
            (false, false) => {
                self.free.insert(at, Free { start, len });
                len
            }
        };
        self.largest = self.largest.max(joined);
    }

    fn is_empty(&self) -> bool {
        matches!(self.free[..], [Free { len: CHUNK_BYTES, .. }])
    }
}

fn room(len: usize) -> u32 {
    (len as u32).next_multiple_of(ALIGNMENT)
}

impl Allocator for ResourceMap {
    type Handle = Place;

    fn name(&self) -> &'static str {
        "resource-map"
    }

    fn put(&mut self, object: &[u8]) -> Option<Place> {
        let room = room(object.len());
        let found = (0..).zip(&mut self.chunks).find_map(|(number, chunk)| {
            let chunk = chunk.as_mut().filter(|chunk| chunk.largest >= room)?;
            Some((number, chunk.take(room)?))
        });
        let (chunk, start) = found.or_else(|| {
            let vacant = self.chunks.iter().position(Option::is_none);
            let number = vacant.unwrap_or_else(|| {
                self.chunks.push(None);
                self.chunks.len() - 1
            });
            let start = self.chunks[number].insert(Chunk::new()).take(room)?;
            Some((number as u32, start))
        })?;
        let bytes = &mut self.chunks[chunk as usize].as_mut()?.bytes;
        bytes[start as usize..start as usize + object.len()].copy_from_slice(object);
        Some(Place { chunk, start, len: object.len() as u16 })
    }

    fn copy_out(&self, handle: &Place, object: &mut Page) -> usize {
        let chunk = self.chunks[handle.chunk as usize].as_ref().expect("a chunk with an object");
        let (start, len) = (handle.start as usize, usize::from(handle.len));
        object[..len].copy_from_slice(&chunk.bytes[start..start + len]);
        len
    }

    fn free(&mut self, handle: Place) {
        let place = &mut self.chunks[handle.chunk as usize];
        let chunk = place.as_mut().expect("a chunk with an object");
        chunk.give(handle.start, room(usize::from(handle.len)));
        if chunk.is_empty() {
            *place = None;
        }
    }

    fn footprint(&self) -> Footprint {
        let chunks = || self.chunks.iter().flatten();
        let free: usize = chunks().map(|chunk| chunk.free.capacity()).sum();
        Footprint {
            allocated_bytes: chunks().count() as u64 * u64::from(CHUNK_BYTES),
            metadata_bytes: (free * size_of::<Free>()) as u64,
        }
    }
}
