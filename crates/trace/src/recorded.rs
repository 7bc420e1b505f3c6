//! ramfold's own traces of page accesses. Numbers are little-endian.
//!
//! ```text
//! header  "RFPAGES" and the version (8 bytes)
//!         N: one page in N was looked at (4 bytes)    kind: 0 memory, 1 files (4 bytes)
//!         nanoseconds between two looks (8 bytes)
//! block   length (4 bytes)   records (4 bytes)   XXH3 of what follows (8 bytes)   records
//! record  time since the record before, in microseconds: a varint
//!         page less that of the record before, by zigzag: a varint
//! end     a block of length 0, whose records are the number that was lost
//! ```
//!
//! A varint has seven bits to a byte, the lowest first, and the top bit where another follows.
//! Zigzag makes small numbers of small negative ones. The first record of a block counts from time
//! and page 0, so a block can be read by itself. A page of files is `file << 32 | page of the
//! file`, where files are numbered as they were first seen.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_64;

use crate::{Access, Error, Format, read_some};

/// What a trace begins with, before the version.
pub const MAGIC: &[u8] = b"RFPAGES";
/// The version that this program reads and writes.
pub const VERSION: u8 = 1;

const HEADER_BYTES: usize = 24;
const BLOCK_HEADER_BYTES: usize = 16;
/// A block is written when it has this many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// The longest block that is read: a longer one is none of ours.
const BLOCK_BYTES_MAX: usize = 2 * BLOCK_BYTES;

/// What pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressSpace {
    /// Addresses of a program.
    Memory,
    /// Places in files.
    Files,
}

/// What a trace says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What pages are.
    pub kind: AddressSpace,
    /// One page in this many was looked at, each of its accesses or none. At least 1.
    pub one_in: u32,
    /// Accesses to a page that follow each other within this time are one. Nanoseconds.
    pub look_ns: u64,
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..7].copy_from_slice(MAGIC);
        bytes[7] = VERSION;
        bytes[8..12].copy_from_slice(&self.one_in.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.kind == AddressSpace::Files).to_le_bytes());
        bytes[16..].copy_from_slice(&self.look_ns.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Error> {
        let refused = |offset, why: &str| Error::Record {
            offset,
            format: Format::Recorded,
            why: why.to_owned(),
        };
        if !bytes.starts_with(MAGIC) {
            return Err(refused(0, "it does not begin as one"));
        }
        if bytes[7] != VERSION {
            return Err(Error::Version { found: bytes[7], known: VERSION });
        }
        let one_in = number(&bytes[8..12]) as u32;
        let kind = match number(&bytes[12..16]) {
            0 => AddressSpace::Memory,
            1 => AddressSpace::Files,
            _ => return Err(refused(12, "it is neither of memory nor of files")),
        };
        if one_in == 0 {
            return Err(refused(8, "no page was looked at"));
        }
        Ok(Header { kind, one_in, look_ns: number(&bytes[16..]) })
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Writes a trace.
#[derive(Debug)]
pub struct Writer<W: Write> {
    output: W,
    block: Vec<u8>,
    records: u32,
    last: Access,
}

/// Before the first record of a block.
const START: Access = Access { time: 0, page: 0 };

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(mut output: W, header: Header) -> io::Result<Writer<W>> {
        output.write_all(&header.to_bytes())?;
        Ok(Writer { output, block: Vec::with_capacity(BLOCK_BYTES), records: 0, last: START })
    }

    /// An access; its time is in microseconds.
    ///
    /// # Errors
    /// When a block cannot be written.
    pub fn write(&mut self, access: Access) -> io::Result<()> {
        // One that was recorded late counts as made then.
        let time = access.time.max(self.last.time);
        push_varint(&mut self.block, time - self.last.time);
        push_varint(&mut self.block, zigzag(access.page.wrapping_sub(self.last.page) as i64));
        self.last = Access { time, page: access.page };
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let header = block_header(self.block.len() as u32, self.records, xxh3_64(&self.block));
        self.output.write_all(&header)?;
        self.output.write_all(&self.block)?;
        self.block.clear();
        (self.records, self.last) = (0, START);
        Ok(())
    }

    /// Writes what is left, and the end. `lost`: accesses that could not be recorded.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish(mut self, lost: u32) -> io::Result<W> {
        self.write_block()?;
        self.output.write_all(&block_header(0, lost, xxh3_64(&[])))?;
        self.output.flush()?;
        Ok(self.output)
    }
}

fn block_header(bytes: u32, records: u32, hash: u64) -> [u8; BLOCK_HEADER_BYTES] {
    let mut header = [0; BLOCK_HEADER_BYTES];
    header[..4].copy_from_slice(&bytes.to_le_bytes());
    header[4..8].copy_from_slice(&records.to_le_bytes());
    header[8..].copy_from_slice(&hash.to_le_bytes());
    header
}

fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// `None` where there is no whole one, or one of more than 64 bits.
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7F);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Reads a trace.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    block: Vec<u8>,
    at: usize,
    /// Records of the block that were not given yet.
    records: u32,
    last: Access,
    /// Where the next block begins.
    offset: u64,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When it is none, or another version's.
    pub fn new(mut input: R) -> Result<Reader<R>, Error> {
        let mut header = [0; HEADER_BYTES];
        let len = read_some(&mut input, &mut header)?;
        if len < HEADER_BYTES {
            return Err(Error::Truncated { offset: len as u64 });
        }
        Ok(Reader {
            input,
            header: Header::from_bytes(&header)?,
            block: Vec::new(),
            at: 0,
            records: 0,
            last: START,
            offset: HEADER_BYTES as u64,
            is_over: false,
        })
    }

    /// What the trace says of itself.
    pub fn header(&self) -> Header {
        self.header
    }

    fn refused(&self, why: &str) -> Error {
        let (offset, format) = (self.offset, Format::Recorded);
        Error::Record { offset, format, why: why.to_owned() }
    }

    fn read_block(&mut self) -> Result<(), Error> {
        let mut header = [0; BLOCK_HEADER_BYTES];
        let len = read_some(&mut self.input, &mut header)?;
        if len < BLOCK_HEADER_BYTES {
            return Err(Error::Truncated { offset: self.offset + len as u64 });
        }
        let bytes = number(&header[..4]) as usize;
        if bytes > BLOCK_BYTES_MAX {
            return Err(self.refused("a block is longer than any that ramfold writes"));
        }
        self.block.resize(bytes, 0);
        let len = read_some(&mut self.input, &mut self.block)?;
        if len < bytes {
            return Err(Error::Truncated {
                offset: self.offset + (BLOCK_HEADER_BYTES + len) as u64,
            });
        }
        if number(&header[8..]) != xxh3_64(&self.block) {
            return Err(self.refused("the checksum of a block is not that of its content"));
        }
        self.is_over = bytes == 0;
        self.records = if self.is_over { 0 } else { number(&header[4..8]) as u32 };
        if !self.is_over && self.records == 0 {
            return Err(self.refused("a block has no record"));
        }
        (self.at, self.last) = (0, START);
        Ok(())
    }

    fn record(&mut self) -> Result<Option<Access>, Error> {
        if self.records == 0 && !self.is_over {
            self.read_block()?;
        }
        if self.is_over {
            return Ok(None);
        }
        let later = take_varint(&self.block, &mut self.at);
        let distance = take_varint(&self.block, &mut self.at);
        let (Some(later), Some(distance)) = (later, distance) else {
            return Err(self.refused("a block has fewer records than it says"));
        };
        let time = self.last.time.checked_add(later);
        let time = time.ok_or_else(|| self.refused("a time is beyond all times"))?;
        let page = self.last.page.wrapping_add_signed(unzigzag(distance));
        self.last = Access { time, page };
        self.records -= 1;
        if self.records == 0 {
            if self.at < self.block.len() {
                return Err(self.refused("a block has more records than it says"));
            }
            self.offset += (BLOCK_HEADER_BYTES + self.block.len()) as u64;
        }
        Ok(Some(self.last))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.record().transpose()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = Header { kind: AddressSpace::Files, one_in: 64, look_ns: 100_000_000 };

    fn written(accesses: &[Access]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
        accesses.iter().for_each(|&access| writer.write(access).unwrap());
        writer.finish(3).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Access>, Error> {
        Reader::new(bytes)?.collect()
    }

    fn some(count: u64) -> Vec<Access> {
        (0..count).map(|nth| Access { time: nth * 37, page: (nth * nth % 100_003) << 20 }).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            mut accesses in prop::collection::vec((any::<u64>(), any::<u64>()), 0..2000)
        ) {
            accesses.sort_unstable_by_key(|access| access.0);
            let accesses: Vec<_> =
                accesses.into_iter().map(|(time, page)| Access { time, page }).collect();
            let bytes = written(&accesses);
            prop_assert_eq!(Reader::new(&bytes[..]).unwrap().header(), HEADER);
            prop_assert_eq!(read(&bytes).unwrap(), accesses);
        }

        #[test]
        fn what_was_cut_off_or_changed_is_refused(
            cut in 0..60_000usize, at in 0..60_000usize, bit in 0..8u8,
        ) {
            let bytes = written(&some(20_000));
            let cut = cut % bytes.len();
            prop_assert!(read(&bytes[..cut]).is_err());
            let mut changed = bytes.clone();
            let at = at % bytes.len();
            changed[at] ^= 1 << bit;
            // The header has no checksum, nor has the number that was lost.
            let is_checked = at >= HEADER_BYTES && at < bytes.len() - BLOCK_HEADER_BYTES;
            prop_assert!(!is_checked || read(&changed).is_err());
        }

        #[test]
        fn no_input_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut trace = HEADER.to_bytes().to_vec();
            let _ = read(&bytes);
            trace.extend(&block_header(bytes.len() as u32, 40, xxh3_64(&bytes)));
            trace.extend(bytes);
            let _ = read(&trace);
        }
    }

    #[test]
    fn it_is_compact() {
        // A loop over 1 GiB of which one page in 64 is looked at, an access each 10 us.
        let accesses: Vec<_> = (0..100_000)
            .map(|nth| Access { time: nth * 10, page: (1 << 35) | (nth * 64 % 262_144) })
            .collect();
        let bytes = written(&accesses).len() as f64 / 100_000.0;
        assert!(bytes < 3.1, "{bytes}");
    }

    #[test]
    fn a_time_that_goes_back_is_now() {
        let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
        for time in [5, 3, 9] {
            writer.write(Access { time, page: time }).unwrap();
        }
        let times: Vec<_> =
            read(&writer.finish(0).unwrap()).unwrap().iter().map(|access| access.time).collect();
        assert_eq!(times, [5, 5, 9]);
    }

    #[test]
    fn another_version_says_so() {
        let mut bytes = written(&[]);
        bytes[7] = 9;
        let error = read(&bytes).unwrap_err().to_string();
        assert_eq!(
            error,
            "the trace is of version 9; this ramfold reads version 1: record it again"
        );
    }
}
