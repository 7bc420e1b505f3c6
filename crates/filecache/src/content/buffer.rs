//! One buffer a thread, for what is read from SOURCE or written past its page cache.

use std::cell::RefCell;

use ramfold_sys::PAGE_SIZE;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Hands `f` so many bytes that begin at a page, as reads past the page cache want them. What they hold is
/// left from the last time.
pub fn with_buffer<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => f(aligned(&mut buffer, len)),
        // Within another's `f`.
        Err(_) => f(aligned(&mut Vec::new(), len)),
    })
}

fn aligned(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len + PAGE_SIZE {
        // Not grown by copying: what is in it is of no use.
        *buffer = vec![0; len + PAGE_SIZE];
    }
    let before = buffer.as_ptr().addr().wrapping_neg() % PAGE_SIZE;
    &mut buffer[before..before + len]
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
