//! CSV: a line for each access, `time, page[, size]`, numbers without quotes.
//!
//! The time is a number in any unit, or empty. The page is a number, `0x` before a hexadecimal one,
//! or any other text, which names an object. A size of more than one page, in bytes, is an access
//! to each of its pages; it is for numbers alone. The first line may be a heading; empty lines and
//! what begins with `#` are passed over.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use crate::{Access, Error, Format, PAGE_SIZE};

/// Pages that one line stands for at most: 1 TiB.
const PAGES_MAX: u64 = 1 << 28;
/// A line is shorter.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Numbers of objects that are named begin here.
const NAMES_START: u64 = 1 << 63;

/// Could this be the first line of such a trace?
pub(crate) fn is_line(line: &str) -> bool {
    line.starts_with('#') || matches!(line.split(',').count(), 2..=6)
}

/// Reads accesses.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    line: Vec<u8>,
    /// Lines read.
    number: u64,
    /// Nothing was read but empty lines and remarks.
    at_start: bool,
    names: HashMap<String, u64>,
    /// The next pages of the last line.
    time: u64,
    pages: std::ops::Range<u64>,
}

impl<R: BufRead> Reader<R> {
    /// Of a text.
    pub fn new(input: R) -> Reader<R> {
        Reader {
            input,
            line: Vec::new(),
            number: 0,
            at_start: true,
            names: HashMap::new(),
            time: 0,
            pages: 0..0,
        }
    }

    /// Reads a line. `false` at the end.
    fn read_line(&mut self) -> Result<bool, Error> {
        self.line.clear();
        if self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(false);
        }
        self.number += 1;
        let error = |why: String| Error::Line { number: self.number, format: Format::Csv, why };
        let line = match std::str::from_utf8(&self.line) {
            Ok(line) if self.line.len() < LINE_BYTES_MAX as usize => line.trim(),
            _ => return Err(error("it is no text".to_owned())),
        };
        if line.is_empty() || line.starts_with('#') {
            return Ok(true);
        }
        let is_first = std::mem::take(&mut self.at_start);
        let mut fields = line.split(',').map(str::trim);
        let (time, page) = (fields.next().unwrap_or(""), fields.next());
        let Some(page) = page.filter(|page| !page.is_empty()) else {
            return Err(error("there is no page".to_owned()));
        };
        let Some(time) = time_of(time) else {
            return if is_first {
                // A heading.
                Ok(true)
            } else {
                Err(error(format!("{time:?} is no time")))
            };
        };
        let bytes = match fields.next().filter(|size| !size.is_empty()) {
            Some(size) => {
                size.parse().map_err(|_| error(format!("{size:?} is no size in bytes")))?
            }
            None => PAGE_SIZE,
        };
        let pages = bytes.div_ceil(PAGE_SIZE).max(1);
        if pages > PAGES_MAX {
            return Err(error(format!("a size of {bytes} bytes is more than 1 TiB")));
        }
        self.time = time;
        self.pages = match number_of(page) {
            Some(page) => page..page.saturating_add(pages),
            None => {
                let next = NAMES_START + self.names.len() as u64;
                let number = *self.names.entry(page.to_owned()).or_insert(next);
                number..number + 1
            }
        };
        Ok(true)
    }
}

fn number_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Fractions are cut off; none is 0.
fn time_of(text: &str) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    text.parse().ok().or_else(|| {
        let time: f64 = text.parse().ok()?;
        (time.is_finite() && time >= 0.0).then_some(time as u64)
    })
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(page) = self.pages.next() {
                return Some(Ok(Access { time: self.time, page }));
            }
            match self.read_line() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(u64, u64)>, String> {
        let accesses = Reader::new(text.as_bytes());
        accesses
            .map(|access| access.map(|Access { time, page }| (time, page)))
            .collect::<Result<_, _>>()
            .map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_accesses() {
        let text = "# a remark\ntime,page,size\n1,100\n2.7, 0x65 ,4096\n\n,7,8193\n";
        let text = text.replace("\\\n", "\n");
        assert_eq!(read(&text), Ok(vec![(1, 100), (2, 0x65), (0, 7), (0, 8), (0, 9)]));
    }

    #[test]
    fn objects_may_have_names() {
        let pages = read("1,a/b\n2,c\n3,a/b\n").unwrap();
        assert_eq!(pages[0].1, pages[2].1);
        assert_ne!(pages[0].1, pages[1].1);
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        for (text, why) in [
            ("1,2\nx,3\n", "line 2 of the trace is not as csv has it: \"x\" is no time"),
            ("1,2\n1,\n", "line 2 of the trace is not as csv has it: there is no page"),
            ("7\n", "line 1 of the trace is not as csv has it: there is no page"),
            (
                "1,2,many\n",
                "line 1 of the trace is not as csv has it: \"many\" is no size in bytes",
            ),
        ] {
            assert_eq!(read(text), Err(why.to_owned()));
        }
        let long = "1,".repeat(40_000);
        for text in [&b"1,2\n\xFF\xFE,3\n"[..], &[&b"1,2\n"[..], long.as_bytes()].concat()] {
            let error = Reader::new(text).find_map(Result::err).unwrap().to_string();
            assert_eq!(error, "line 2 of the trace is not as csv has it: it is no text");
        }
        assert!(read("1,2,999999999999999\n").unwrap_err().contains("more than 1 TiB"));
    }
}
