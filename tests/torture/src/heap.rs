//! Blocks of malloc(3), kept for long and compared before they go.

use crate::content::{Recipe, fill_bytes};
use crate::errno::Errno;
use crate::memory::{PAGE, Span};
use crate::rng::{Rng, mix};
use crate::{current, fail};

struct Block {
    pointer: *mut libc::c_void,
    bytes: usize,
    key: u64,
}

/// The blocks of one thread.
pub(crate) struct Blocks {
    recipe: Recipe,
    seed: u64,
    next: u64,
    blocks: Vec<Block>,
    used_bytes: usize,
    budget_bytes: usize,
}

impl Blocks {
    pub(crate) fn new(recipe: Recipe, seed: u64, budget_pages: usize) -> Self {
        Self {
            recipe,
            seed,
            next: 0,
            blocks: Vec::new(),
            used_bytes: 0,
            budget_bytes: budget_pages * PAGE,
        }
    }

    fn key(&mut self) -> u64 {
        self.next += 1;
        mix(&[self.recipe.seed, self.seed, self.next])
    }

    fn random_bytes(&self, rng: &mut Rng) -> usize {
        let most = match rng.below(16) {
            0..=8 => 256,
            9..=12 => 8 << 10,
            13..=14 => 100 << 10,
            // Beyond malloc's threshold for a mapping of its own.
            _ => 600 << 10,
        };
        rng.between(1, most.min(self.budget_bytes / 4))
    }

    /// Gets, resizes, compares and frees a number of blocks.
    pub(crate) fn churn(&mut self, rng: &mut Rng, steps: usize) -> Result<(), Errno> {
        for _ in 0..steps {
            current::beat();
            let bytes = self.random_bytes(rng);
            let full = self.used_bytes + bytes > self.budget_bytes;
            match rng.below(8) {
                _ if self.blocks.is_empty() => self.get(rng, bytes)?,
                0..=2 if full => self.free(rng),
                0..=3 => self.get(rng, bytes)?,
                4 => self.resize(rng, bytes)?,
                5 => self.compare(rng.below(self.blocks.len())),
                _ => self.free(rng),
            }
        }
        Ok(())
    }

    fn get(&mut self, rng: &mut Rng, bytes: usize) -> Result<(), Errno> {
        let mut pointer = std::ptr::null_mut();
        let way = rng.below(4);
        // SAFETY: plain allocation calls; the alignment is a power of two.
        unsafe {
            match way {
                0 => pointer = libc::calloc(bytes, 1),
                1 => {
                    let alignment = 1 << rng.between(4, 16);
                    let result = libc::posix_memalign(&mut pointer, alignment, bytes);
                    if result != 0 {
                        return Err(Errno(result));
                    }
                }
                _ => pointer = libc::malloc(bytes),
            }
        }
        if pointer.is_null() {
            return Err(Errno::last());
        }
        let key = self.key();
        let block = Block { pointer, bytes, key };
        if way == 0 {
            let mut found = vec![0xff; bytes];
            block.span(bytes).load(&mut found);
            if let Some(at) = found.iter().position(|&byte| byte != 0) {
                fail!("byte {at} of {bytes} bytes from calloc at {pointer:?} is {}", found[at]);
            }
        }
        block.fill();
        self.used_bytes += bytes;
        self.blocks.push(block);
        Ok(())
    }

    fn resize(&mut self, rng: &mut Rng, bytes: usize) -> Result<(), Errno> {
        let index = rng.below(self.blocks.len());
        let key = self.key();
        let block = &mut self.blocks[index];
        // SAFETY: the block came from malloc and has not been freed; its old address is dropped.
        let pointer = unsafe { libc::realloc(block.pointer, bytes) };
        if pointer.is_null() {
            return Err(Errno::last());
        }
        let kept = block.bytes.min(bytes);
        let before = block.bytes;
        block.pointer = pointer;
        block.check(before, kept);
        block.bytes = bytes;
        block.key = key;
        block.fill();
        self.used_bytes = self.used_bytes - before + bytes;
        Ok(())
    }

    fn compare(&self, index: usize) {
        let block = &self.blocks[index];
        block.check(block.bytes, block.bytes);
    }

    fn free(&mut self, rng: &mut Rng) {
        let index = rng.below(self.blocks.len());
        self.compare(index);
        let block = self.blocks.swap_remove(index);
        self.used_bytes -= block.bytes;
        // SAFETY: the block came from malloc and is known to nobody any more.
        unsafe { libc::free(block.pointer) };
    }

    /// Compares all blocks.
    pub(crate) fn check(&self) {
        for index in 0..self.blocks.len() {
            self.compare(index);
        }
    }
}

impl Block {
    fn span(&self, bytes: usize) -> Span<'_> {
        // SAFETY: the block has at least `bytes` bytes and belongs to this thread.
        unsafe { Span::new(self.pointer.expose_provenance(), bytes) }
    }

    fn fill(&self) {
        let mut bytes = vec![0; self.bytes];
        fill_bytes(self.key, &mut bytes);
        self.span(self.bytes).store(&bytes);
    }

    /// Compares the first `kept` bytes of a block that was filled with `filled` bytes.
    fn check(&self, filled: usize, kept: usize) {
        let mut expected = vec![0; filled];
        fill_bytes(self.key, &mut expected);
        let mut found = vec![0; kept];
        self.span(kept).load(&mut found);
        current::beat();
        if let Some(at) = (0..kept).find(|&at| expected[at] != found[at]) {
            fail!(
                "byte {at} of a block of {filled} bytes from malloc at {:?}: expected {:#04x}, \
                 found {:#04x}",
                self.pointer,
                expected[at],
                found[at]
            );
        }
    }
}
