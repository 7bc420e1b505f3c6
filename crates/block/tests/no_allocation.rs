//! Requests allocate nothing on the heap: a disk that is swap must not wait for memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ramfold_block::{BlockDevice, Disk, DiskConfig, Durability};

thread_local! {
    // Constant and without a destructor, so that using it allocates nothing.
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: each call goes on to the system's allocator with the caller's arguments, so every promise
// of the caller and to the caller is that one's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.with(|calls| calls.set(calls.get() + 1));
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const PAGE: u64 = 4096;
const PAGES: u64 = 1024;

/// A page of numbers that compresses, the same for the same seed.
fn content(seed: u64, page: &mut [u8]) {
    for (nth, chunk) in (0u64..).zip(page.chunks_mut(8)) {
        let word = if seed.is_multiple_of(5) {
            (nth + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        } else {
            seed * 1000 + nth % 29
        };
        chunk.copy_from_slice(&word.to_le_bytes());
    }
}

#[test]
fn requests_allocate_nothing() {
    let mut config = DiskConfig::new(PAGES * PAGE, 32 << 20);
    config.threads = 1;
    config.for_swap = true;
    let disk = Disk::new(config).unwrap();
    let mut page = [0; PAGE as usize];
    let mut found = [0; 2 * PAGE as usize];
    let before = CALLS.with(Cell::get);
    for round in 0..3u64 {
        for block in 0..PAGES {
            // Of several kinds, and each content in several pages.
            content((block + round) % 300, &mut page);
            disk.write(block * PAGE, &page, Durability::AtFlush).unwrap();
        }
        for block in 0..PAGES - 1 {
            disk.write(block * PAGE + 100, &[round as u8; 500], Durability::AtOnce).unwrap();
            disk.read(block * PAGE, &mut found).unwrap();
            disk.read(block * PAGE + 50, &mut found[..1000]).unwrap();
        }
        disk.trim(3 * PAGE + 5, 100 * PAGE, Durability::AtFlush).unwrap();
        disk.extents(0, PAGES * PAGE, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        disk.flush().unwrap();
    }
    assert_eq!(CALLS.with(Cell::get) - before, 0);
    assert!(disk.statistics().deduplicated_writes > 0);
}
