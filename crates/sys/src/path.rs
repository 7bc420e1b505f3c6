//! Paths put together in a fixed place, for where nothing can be allocated.

use core::ffi::CStr;
use core::fmt::{self, Write};

use crate::Errno;

/// Two numbers of ten digits, and what stands around them in `/proc`.
const BYTES: usize = 64;

/// A path, ended by zero.
#[derive(Debug)]
pub struct Path {
    bytes: [u8; BYTES],
    length: usize,
}

impl Path {
    /// A path of this text.
    ///
    /// # Errors
    /// `ENAMETOOLONG` beyond 63 bytes.
    pub fn new(text: fmt::Arguments<'_>) -> Result<Path, Errno> {
        let mut path = Path { bytes: [0; BYTES], length: 0 };
        path.write_fmt(text).map_err(|_| Errno::NAMETOOLONG)?;
        Ok(path)
    }

    /// The path.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        // The last byte stays zero.
        let room = self.bytes.get_mut(self.length..end).filter(|_| end < BYTES);
        room.ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_a_path_and_what_does_not_is_an_error() {
        let longest = "x".repeat(BYTES - 1);
        assert_eq!(Path::new(format_args!("/proc/{}/fd", 7)).unwrap().as_c_str(), c"/proc/7/fd");
        assert_eq!(Path::new(format_args!("{longest}")).unwrap().as_c_str().count_bytes(), 63);
        assert_eq!(Path::new(format_args!("{longest}x")).unwrap_err(), Errno::NAMETOOLONG);
    }
}
