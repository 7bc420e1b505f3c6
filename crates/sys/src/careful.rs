//! Reading memory that may not be there: arguments of system calls, for which the kernel answers a
//! bad pointer with `EFAULT`.

use core::ffi::CStr;
use core::slice;

use crate::{PAGE_SIZE, raw};

/// Pages that a reader remembers to be readable, so that the kernel is asked once for each.
const PAGES: usize = 8;

/// Checks each page before it reads there.
#[derive(Debug)]
pub struct CarefulReader {
    /// Addresses of pages, each at its number modulo [`PAGES`]; 1: none.
    readable: [usize; PAGES],
}

impl CarefulReader {
    /// A reader that knows of no page yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> CarefulReader {
        CarefulReader { readable: [1; PAGES] }
    }

    fn can_read(&mut self, address: usize) -> bool {
        let page = address & !(PAGE_SIZE - 1);
        let place = &mut self.readable[address / PAGE_SIZE % PAGES];
        if *place != page {
            if !raw::is_readable(page) {
                return false;
            }
            *place = page;
        }
        true
    }

    fn byte(&mut self, address: usize) -> Option<u8> {
        // SAFETY: the page is readable.
        self.can_read(address).then(|| unsafe { (address as *const u8).read_volatile() })
    }

    /// The word at an address, however it is aligned; `None` where it cannot be read.
    pub fn word(&mut self, address: usize) -> Option<usize> {
        let last = address.checked_add(size_of::<usize>() - 1)?;
        // SAFETY: both pages are readable.
        (self.can_read(address) && self.can_read(last))
            .then(|| unsafe { (address as *const usize).read_unaligned() })
    }

    /// Whether the string at an address begins with `start`; `None` where the bytes that decide
    /// cannot be read.
    pub fn starts_with(&mut self, address: usize, start: &[u8]) -> Option<bool> {
        for (offset, expected) in start.iter().enumerate() {
            if self.byte(address.checked_add(offset)?)? != *expected {
                return Some(false);
            }
        }
        Some(true)
    }

    /// The string at an address; `None` where some of it cannot be read, or it has more than
    /// `bytes_max` bytes.
    ///
    /// # Safety
    /// The memory must stay readable, and as it is, while the string is used.
    pub unsafe fn string<'a>(&mut self, address: usize, bytes_max: usize) -> Option<&'a CStr> {
        let mut length = 0;
        loop {
            let at = address.checked_add(length)?;
            if length > bytes_max || !self.can_read(at) {
                return None;
            }
            let here = PAGE_SIZE - at % PAGE_SIZE;
            // SAFETY: the rest of a page that is readable.
            let part = unsafe { slice::from_raw_parts(at as *const u8, here) };
            if let Some(end) = part.iter().position(|&b| b == 0) {
                length += end;
                break;
            }
            length += here;
        }
        if length > bytes_max {
            return None;
        }
        // SAFETY: all of it was looked at, up to the zero at its end.
        Some(unsafe {
            CStr::from_bytes_with_nul_unchecked(slice::from_raw_parts(
                address as *const u8,
                length + 1,
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Reservation;

    /// Two pages that can be read, before one that cannot.
    fn two_pages() -> (Reservation, usize) {
        let memory = Reservation::new(3 * PAGE_SIZE).unwrap();
        memory.commit(0, 2 * PAGE_SIZE).unwrap();
        let start = memory.as_ptr() as usize;
        (memory, start)
    }

    fn put(address: usize, bytes: &[u8]) {
        // SAFETY: within the two pages.
        unsafe { (address as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    fn string(address: usize, bytes_max: usize) -> Option<&'static [u8]> {
        // SAFETY: nobody changes it.
        unsafe { CarefulReader::new().string(address, bytes_max) }.map(CStr::to_bytes)
    }

    #[test]
    fn strings_are_read_up_to_where_nothing_can_be_read() {
        let (_memory, start) = two_pages();
        let end = start + 2 * PAGE_SIZE;
        put(start + PAGE_SIZE - 3, b"across\0");
        assert_eq!(string(start + PAGE_SIZE - 3, 100), Some(&b"across"[..]));
        assert_eq!(string(start + PAGE_SIZE - 3, 6), Some(&b"across"[..]));
        assert_eq!(string(start + PAGE_SIZE - 3, 5), None);
        put(end - 4, b"last");
        assert_eq!(string(end - 4, 100), None);
        put(end - 1, b"\0");
        assert_eq!(string(end - 4, 100), Some(&b"las"[..]));
        put(start, &[b'x'; 2 * PAGE_SIZE]);
        assert_eq!(string(start, usize::MAX), None);
        for nowhere in [0, 8, end, usize::MAX, usize::MAX - 4096, 1 << 63] {
            assert_eq!(string(nowhere, 100), None, "{nowhere:#x}");
        }
    }

    #[test]
    fn starts_are_read_as_far_as_they_tell() {
        let (_memory, start) = two_pages();
        let end = start + 2 * PAGE_SIZE;
        let mut reader = CarefulReader::new();
        put(end - 3, b"ABC");
        assert_eq!(reader.starts_with(end - 3, b"ABC"), Some(true));
        assert_eq!(reader.starts_with(end - 3, b"ABX="), Some(false));
        assert_eq!(reader.starts_with(end - 3, b"ABC="), None);
        assert_eq!(reader.starts_with(end, b"A"), None);
        assert_eq!(reader.starts_with(usize::MAX, b"A="), None);
    }

    #[test]
    fn words_are_read_where_all_of_them_can_be() {
        let (_memory, start) = two_pages();
        let end = start + 2 * PAGE_SIZE;
        let mut reader = CarefulReader::new();
        put(end - 8, &7usize.to_ne_bytes());
        assert_eq!(reader.word(end - 8), Some(7));
        assert_eq!(reader.word(end - 7), None);
        assert_eq!(reader.word(end), None);
        assert_eq!(reader.word(usize::MAX - 3), None);
        put(start + PAGE_SIZE - 3, &9usize.to_ne_bytes());
        assert_eq!(reader.word(start + PAGE_SIZE - 3), Some(9));
    }
}
