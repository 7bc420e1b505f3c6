//! Requests allocate nothing on the heap: a disk that is swap must not wait for memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_block::nbd::{Options, Server};
use ramfold_block::{BlockDevice, DeviceError, Disk, DiskConfig, Durability};

#[path = "support/hooked.rs"]
mod hooked;

use hooked::{Access, Hooked};

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

fn disk_for_swap(bytes: u32) -> Disk {
    let mut config = DiskConfig::new(bytes.into(), 32 << 20);
    config.threads = 1;
    config.for_swap = true;
    Disk::new(config).unwrap()
}

/// Where nothing can be written.
const FULL: u64 = 120 << 20;

#[test]
fn a_server_of_swap_allocates_nothing_for_requests() {
    const BYTES: usize = 32 << 10;
    const SIZE: u32 = 128 << 20;
    const READ: u16 = 0;
    const WRITE: u16 = 1;
    const TRIM: u16 = 4;
    // How much the thread that reads from the device had allocated then.
    let calls = Arc::new(AtomicUsize::default());
    let noted = Arc::clone(&calls);
    let before = move |access, offset, _: &dyn Fn() -> bool| match access {
        Access::Read => {
            noted.store(CALLS.with(Cell::get), Ordering::SeqCst);
            Ok(())
        }
        Access::Write => {
            // Such a device's requests are left to other threads, where there is a choice.
            std::thread::sleep(std::time::Duration::from_micros(300));
            if offset == FULL { Err(DeviceError::NoRoom) } else { Ok(()) }
        }
        Access::Prefetch => Ok(()),
    };
    let device = Arc::new(Hooked::new(disk_for_swap(SIZE), before));
    let server = Server::start(device, &Options::default(), Vec::new()).unwrap();
    let (mut client, served) = UnixStream::pair().unwrap();
    server.serve_swap(served.into()).unwrap();
    let mut ask = |command: u16, offset: u64, length: u32, data: &mut [u8]| -> [u8; 4] {
        let mut head = [0; 28];
        head[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        head[6..8].copy_from_slice(&command.to_be_bytes());
        head[16..24].copy_from_slice(&offset.to_be_bytes());
        head[24..].copy_from_slice(&length.to_be_bytes());
        client.write_all(&head).unwrap();
        if command == WRITE {
            client.write_all(data).unwrap();
        }
        let mut reply = [0; 16];
        client.read_exact(&mut reply).unwrap();
        if command == READ {
            client.read_exact(data).unwrap();
        }
        reply[4..8].try_into().unwrap()
    };
    let mut round = |number: u64| {
        let mut data = [number as u8; BYTES];
        assert_eq!(ask(TRIM, 0, SIZE, &mut []), [0; 4]);
        for (nth, bytes) in (0u64..).zip([4096, 8192, BYTES, 12288, 4096]) {
            let offset = (number * 8 + nth) << 15;
            assert_eq!(ask(WRITE, offset, bytes as u32, &mut data[..bytes]), [0; 4]);
        }
        let no_space = ask(WRITE, FULL, 4096, &mut data[..4096]);
        assert_eq!(no_space, 28u32.to_be_bytes());
        let mut found = [0; 4096];
        assert_eq!(ask(READ, number << 18, 4096, &mut found), [0; 4]);
        assert_eq!(found, data[..4096]);
        assert_eq!(ask(READ, number << 18, BYTES as u32, &mut data), [0; 4]);
        calls.load(Ordering::SeqCst)
    };
    // What turning swap on asks for is the first of it.
    let before = round(0);
    for number in 1..300 {
        assert_eq!(round(number), before);
    }
    assert_eq!(server.stop().requests_handed_over, 0);
}

#[test]
fn requests_allocate_nothing() {
    let disk = disk_for_swap(PAGES as u32 * PAGE as u32);
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
