//! What valgrind's lackey prints with `--trace-mem=yes`: each load, store and change of memory, on
//! standard error, with its address and size.
//!
//! ```text
//! I  04012a0b,3        an instruction; passed over: programs' code is no memory that ramfold keeps
//!  L 1ffeffe7e,8       a load
//!  S 1ffeffe70,4       a store
//!  M 0421c7cc,4        a load and a store
//! ==12345== ...        valgrind's own messages, and what the program prints: passed over
//! ```
//!
//! There are no times: the number of the access stands for one.

use std::io::{BufRead, Read};

use crate::{Access, Error, PAGE_SIZE};

/// What the program prints is taken in pieces of this length at most.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Is this a line of a trace, or of valgrind's?
pub(crate) fn is_line(line: &str) -> bool {
    let is_message = line.strip_prefix("==").is_some_and(|rest| {
        rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).starts_with("==")
    });
    is_message
        || (line.starts_with("I  ") && range_of(&line[3..]).is_some())
        || access(line).is_some()
}

/// The first address and the last.
fn access(line: &str) -> Option<(u64, u64)> {
    let rest = [" L ", " S ", " M "].iter().find_map(|kind| line.strip_prefix(kind))?;
    range_of(rest)
}

fn range_of(text: &str) -> Option<(u64, u64)> {
    let (address, size) = text.trim_end().split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size: u64 = size.parse().ok()?;
    // What one instruction accesses is no more than some vectors.
    (1..=PAGE_SIZE).contains(&size).then(|| (address, address.saturating_add(size - 1)))
}

/// Reads accesses to data. A line of anything else is passed over: the program prints among them.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: Vec<u8>,
    accesses: u64,
    /// The next page of the last line.
    next: Option<u64>,
}

impl<R: BufRead> Reader<R> {
    /// Of a text.
    pub fn new(input: R) -> Reader<R> {
        Reader { input, line: Vec::new(), accesses: 0, next: None }
    }

    fn access_to(&mut self, page: u64) -> Access {
        self.accesses += 1;
        Access { time: self.accesses, page }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(page) = self.next.take() {
            return Some(Ok(self.access_to(page)));
        }
        loop {
            self.line.clear();
            match self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(error) => return Some(Err(error.into())),
            }
            let Some((first, last)) = std::str::from_utf8(&self.line).ok().and_then(access) else {
                continue;
            };
            let (first, last) = (first / PAGE_SIZE, last / PAGE_SIZE);
            self.next = (last > first).then_some(last);
            return Some(Ok(self.access_to(first)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_counts_and_code_does_not() {
        let text = b"==7== Lackey, an example Valgrind tool\nI  04012a0b,3\n L 00001fff,1\n \
            S 00001fff,2\nhello from the program\n M 0421c7cc,4\n\xFF L 5\n L zz,1\n==7== end\n";
        let text = text.as_slice().split(|&byte| byte == b'\n').collect::<Vec<_>>().join(&b'\n');
        let pages: Vec<u64> = Reader::new(&text[..]).map(|access| access.unwrap().page).collect();
        assert_eq!(pages, [1, 1, 2, 0x421c]);
    }

    #[test]
    fn its_lines_are_known() {
        for line in ["==123== Command: ls", "I  0023C790,2", " L 1FFE,8", " M 1,1"] {
            assert!(is_line(line), "{line}");
        }
        for line in ["==x", "1,2", " L 1FFE", " S xyz,1", "I 5,6", " L 1,0"] {
            assert!(!is_line(line), "{line}");
        }
    }
}
