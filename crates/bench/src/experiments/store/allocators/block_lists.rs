//! Paper 003's pool: memory in blocks of 128 bytes, an object in a list of them.
//!
//! No object needs neighbouring blocks, so memory is never lost between objects, only at the end of
//! their last blocks: 64 bytes of each on average, and 4 for every block, which name the next one.

use ramfold_codec::Page;
use ramfold_store::{Allocator, Footprint};

const BLOCK_BYTES: usize = 128;
/// Blocks that are had from the system together, and go back together when all are free.
const CHUNK_BLOCKS: usize = 512;
const NONE: u32 = u32::MAX;

/// Blocks in lists.
#[derive(Default)]
pub(super) struct BlockLists {
    chunks: Vec<Option<Chunk>>,
    /// Chunks that have a free block, the one to take from last.
    open: Vec<u32>,
    /// Places of chunks that went back.
    vacant: Vec<u32>,
}

struct Chunk {
    blocks: Box<[[u8; BLOCK_BYTES]; CHUNK_BLOCKS]>,
    /// Of each block: the next one of its object, or of the free ones.
    next: Box<[u32; CHUNK_BLOCKS]>,
    free: u32,
    free_count: usize,
    is_open: bool,
}

/// An object: its first block, and its length.
#[derive(Debug)]
pub(super) struct List {
    first: u32,
    len: u16,
}

impl BlockLists {
    fn chunk(&mut self, number: u32) -> &mut Chunk {
        self.chunks[number as usize].as_mut().expect("a chunk with a block in use")
    }

    fn take_block(&mut self) -> u32 {
        let number = match self.open.last() {
            Some(&number) => number,
            None => self.add_chunk(),
        };
        let chunk = self.chunk(number);
        let block = chunk.free;
        chunk.free = chunk.next[block as usize];
        chunk.free_count -= 1;
        if chunk.free_count == 0 {
            chunk.is_open = false;
            self.open.pop();
        }
        number * CHUNK_BLOCKS as u32 + block
    }

    fn add_chunk(&mut self) -> u32 {
        let next = std::array::from_fn(|block| match block + 1 {
            CHUNK_BLOCKS => NONE,
            next => next as u32,
        });
        let chunk = Chunk {
            blocks: Box::new([[0; BLOCK_BYTES]; CHUNK_BLOCKS]),
            next: Box::new(next),
            free: 0,
            free_count: CHUNK_BLOCKS,
            is_open: true,
        };
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() as u32 - 1
        });
        self.chunks[number as usize] = Some(chunk);
        self.open.push(number);
        number
    }

    fn free_block(&mut self, block: u32) {
        let (number, block) = place_of(block);
        let chunk = self.chunk(number);
        chunk.next[block] = chunk.free;
        chunk.free = block as u32;
        chunk.free_count += 1;
        let opens = !std::mem::replace(&mut chunk.is_open, true);
        let is_empty = chunk.free_count == CHUNK_BLOCKS;
        if opens {
            // Behind the one that is being filled, so that others can empty.
            let at = self.open.len().saturating_sub(1);
            self.open.insert(at, number);
        }
        // One that is empty is kept, or filling and emptying by turns would cost a chunk each time.
        if is_empty && self.open.len() > 1 {
            self.open.retain(|&open| open != number);
            self.chunks[number as usize] = None;
            self.vacant.push(number);
        }
    }
}

fn place_of(block: u32) -> (u32, usize) {
    (block / CHUNK_BLOCKS as u32, block as usize % CHUNK_BLOCKS)
}

impl Allocator for BlockLists {
    type Handle = List;

    fn name(&self) -> &'static str {
        "block-lists"
    }

    fn put(&mut self, object: &[u8]) -> Option<List> {
        let mut first = NONE;
        // From the last block on, because each names the one behind it.
        for part in object.chunks(BLOCK_BYTES).rev() {
            let block = self.take_block();
            let (number, index) = place_of(block);
            let chunk = self.chunk(number);
            chunk.blocks[index][..part.len()].copy_from_slice(part);
            chunk.next[index] = first;
            first = block;
        }
        Some(List { first, len: object.len() as u16 })
    }

    fn copy_out(&self, handle: &List, object: &mut Page) -> usize {
        let mut block = handle.first;
        for part in object[..usize::from(handle.len)].chunks_mut(BLOCK_BYTES) {
            let (number, index) = place_of(block);
            let chunk = self.chunks[number as usize].as_ref().expect("a chunk with a block in use");
            part.copy_from_slice(&chunk.blocks[index][..part.len()]);
            block = chunk.next[index];
        }
        usize::from(handle.len)
    }

    fn free(&mut self, handle: List) {
        let mut block = handle.first;
        while block != NONE {
            let (number, index) = place_of(block);
            let next = self.chunk(number).next[index];
            self.free_block(block);
            block = next;
        }
    }

    fn footprint(&self) -> Footprint {
        let chunks = self.chunks.iter().flatten().count() as u64;
        let blocks = chunks * CHUNK_BLOCKS as u64;
        Footprint {
            allocated_bytes: blocks * BLOCK_BYTES as u64,
            // The names of the next blocks; a handle is the owner's.
            metadata_bytes: blocks * size_of::<u32>() as u64,
        }
    }
}
