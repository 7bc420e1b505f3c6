//! The memory that a job works in.

use std::fmt;
use std::ops::{Deref, DerefMut};

use ramfold_codec::PAGE_SIZE;
use ramfold_codec::cluster::ClusterSize;

/// Bytes for the object of `bytes` of content: a codec may write this much before it knows that the
/// object does not fit.
const fn object_room_bytes(bytes: usize) -> usize {
    bytes + 64
}

/// Memory for a page or a cluster and for its object. It travels with the job, so that an engine
/// allocates nothing.
#[derive(Clone, Debug)]
pub struct Room {
    /// The page or cluster, uncompressed.
    pub content: Buffer,
    /// The object, from its first byte on.
    pub object: Buffer,
}

impl Room {
    /// Room for a page, in memory of the heap. [`Engine::room`](crate::Engine::room) makes it in
    /// memory of the engine's choice.
    pub fn for_page() -> Room {
        Room::of(PAGE_SIZE, Buffer::on_heap)
    }

    /// Room for a cluster, in memory of the heap.
    pub fn for_cluster(size: ClusterSize) -> Room {
        Room::of(size.bytes(), Buffer::on_heap)
    }

    /// Room for `content_bytes` of content, in buffers of the lengths in bytes that `buffer` is
    /// given.
    pub fn of(content_bytes: usize, mut buffer: impl FnMut(usize) -> Buffer) -> Room {
        Room { content: buffer(content_bytes), object: buffer(object_room_bytes(content_bytes)) }
    }
}

/// Bytes that one job at a time owns: of the heap, or lent by an engine whose device works in
/// memory of its own kind.
pub struct Buffer(Memory);

enum Memory {
    Heap(Box<[u8]>),
    Lent(Box<dyn Lent>),
}

/// Memory that an engine lends.
trait Lent: AsRef<[u8]> + AsMut<[u8]> + Send {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + Send> Lent for T {}

impl Buffer {
    /// `bytes` bytes of the heap, zeroed.
    pub fn on_heap(bytes: usize) -> Buffer {
        Buffer(Memory::Heap(vec![0; bytes].into()))
    }

    /// Memory of an engine's own: pinned (page-locked), so that a device reads and writes it
    /// without a copy in between. It keeps its length and its address, and goes back to the engine
    /// when it is dropped.
    pub fn lent(memory: impl AsRef<[u8]> + AsMut<[u8]> + Send + 'static) -> Buffer {
        Buffer(Memory::Lent(Box::new(memory)))
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Lent(memory) => (**memory).as_ref(),
        }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Lent(memory) => (**memory).as_mut(),
        }
    }
}

impl Clone for Buffer {
    /// A copy, on the heap.
    fn clone(&self) -> Buffer {
        Buffer(Memory::Heap((**self).into()))
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if matches!(self.0, Memory::Heap(_)) { "on the heap" } else { "lent" };
        write!(f, "Buffer({} bytes {whose})", self.len())
    }
}
