//! One page-aligned buffer a thread, for reads, and for what is read or written past other caches.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use ramfold_sys::PAGE_SIZE;

static BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static BUFFER: RefCell<Buffer> = const { RefCell::new(Buffer(Vec::new())) };
}

struct Buffer(Vec<u8>);

impl Buffer {
    /// So many bytes, which begin at a page.
    fn aligned(&mut self, len: usize) -> &mut [u8] {
        let before = self.0.len();
        if before < len + PAGE_SIZE {
            // Not grown by copying: its content is of no use.
            self.0 = vec![0; len + PAGE_SIZE];
            BYTES.fetch_add(self.0.len() - before, Ordering::Relaxed);
        }
        let before = self.0.as_ptr().addr().wrapping_neg() % PAGE_SIZE;
        &mut self.0[before..before + len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// What the buffers of all threads take.
pub(crate) fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// Calls `f` with a buffer of `len` bytes, which begins at a page, as reads past a page cache want
/// it. What it holds is left from the last time.
pub fn with_buffer<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => f(buffer.aligned(len)),
        // Within another's `f`.
        Err(_) => f(Buffer(Vec::new()).aligned(len)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page_and_has_the_length_asked_for() {
        for len in [1, 100, 5000, 0, 1 << 20, 77] {
            with_buffer(len, |bytes| {
                assert_eq!(bytes.len(), len);
                assert!(bytes.as_ptr().addr().is_multiple_of(PAGE_SIZE));
                with_buffer(len, |other| assert_ne!(other.as_ptr(), bytes.as_ptr()));
            });
        }
    }
}
