//! ramfold's own traces of page accesses. Numbers are little-endian.
//!
//! ```text
//! header  "RFPAGES" and the version (8 bytes)
//!         N: one page in N was looked at (4 bytes)    kind: 0 memory, 1 files (4 bytes)
//!         nanoseconds between two looks (8 bytes)
//!         B: pages that are looked at together (4 bytes)    0 (4 bytes)
//! block   length (4 bytes)   records (4 bytes)   XXH3 of what follows (8 bytes)   records
//! record  microseconds since the record before, times 8, and what happened: a varint
//!         page less that of the record before, by zigzag: a varint
//!         where it is 1 or 4: for how many microseconds the page was watched: a varint
//! notes   a block of 2^32 - 1 records: a text in UTF-8, or the next part of one
//! end     a block of length 0, whose records are the number that was lost
//! ```
//!
//! A varint has seven bits to a byte, the lowest first, and the top bit where another follows.
//! Zigzag makes small numbers of small negative ones. The first record of a block counts from time
//! and page 0, so a block can be read by itself. A page of files is `file << 32 | page of the
//! file`, where files are numbered as they were first seen.
//!
//! What happened is a number: 0 an access, and with watched pages 1 the first access since the page
//! is watched, 2 the page is there, 3 it is gone, 4 it was watched until now and not accessed, 5 the
//! process has ended. [`What`] says more. A page of memory has the number of its process, among
//! those of the run, in the bits from 2^44 on.
//!
//! Where blocks of pages are looked at, N is a power of two, and the sample may have become smaller
//! while the trace was written: events of blocks that are not in the last one are left out
//! ([`ramfold_model::is_block_sampled`]).

use std::io::{self, Read, Seek, SeekFrom, Write};

pub use ramfold_model::simulate::watched::{Event, What};
use ramfold_model::{PageNumber, is_block_sampled};
use xxhash_rust::xxh3::xxh3_64;

use crate::{Access, Error, Format, read_some};

/// What a trace begins with, before the version.
pub const MAGIC: &[u8] = b"RFPAGES";
/// The version that this program reads and writes.
pub const VERSION: u8 = 2;

const HEADER_BYTES: usize = 32;
/// Where the header has what one page of is in the trace.
const ONE_IN_AT: u64 = 8;
const BLOCK_HEADER_BYTES: usize = 16;
/// A block is written when it has this many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// The longest block that is read: a longer one is none of ours.
const BLOCK_BYTES_MAX: usize = 2 * BLOCK_BYTES;

/// Records of a block that holds notes.
const NOTES: u32 = u32::MAX;
/// Bits of a record's first number that say what happened.
const WHAT_BITS: u32 = 3;

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
    /// Pages that are looked at together: with 1 each by its hash, else aligned blocks of so many
    /// of which one in `one_in` is looked at ([`crate::recorded`] does not choose them).
    pub block_pages: u32,
}

/// As other traces have it; `None` for what is no access.
pub(crate) fn access(event: Event) -> Option<Access> {
    event.is_access().then_some(Access { time: event.time_us, page: event.page })
}

impl From<Access> for Event {
    fn from(Access { time, page }: Access) -> Event {
        Event { time_us: time, page, what: What::Accessed }
    }
}

/// The number of what happened, and how long the page was watched where it says so.
fn number_of(what: What) -> (u64, Option<u64>) {
    match what {
        What::Accessed => (0, None),
        What::Touched { watched_us } => (1, Some(watched_us)),
        What::Appeared => (2, None),
        What::Gone => (3, None),
        What::Untouched { watched_us } => (4, Some(watched_us)),
        What::Ended => (5, None),
    }
}

impl Header {
    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..7].copy_from_slice(MAGIC);
        bytes[7] = VERSION;
        bytes[8..12].copy_from_slice(&self.one_in.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.kind == AddressSpace::Files).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.look_ns.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.block_pages.to_le_bytes());
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
        let block_pages = number(&bytes[24..28]) as u32;
        if block_pages > 1 && !one_in.is_power_of_two() {
            return Err(refused(8, "its part of all blocks is no power of two"));
        }
        if block_pages == 0 {
            return Err(refused(24, "its blocks have no page"));
        }
        Ok(Header { kind, one_in, look_ns: number(&bytes[16..24]), block_pages })
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
    last: Place,
}

/// From where a record counts: that before it.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    time_us: u64,
    page: PageNumber,
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn new(mut output: W, header: Header) -> io::Result<Writer<W>> {
        output.write_all(&header.to_bytes())?;
        Ok(Writer {
            output,
            block: Vec::with_capacity(BLOCK_BYTES),
            records: 0,
            last: Place::default(),
        })
    }

    /// An event.
    ///
    /// # Errors
    /// When a block cannot be written.
    pub fn write(&mut self, event: impl Into<Event>) -> io::Result<()> {
        let Event { time_us, page, what } = event.into();
        // One that was recorded late counts as made then.
        let time_us = time_us.max(self.last.time_us);
        let (number, watched_us) = number_of(what);
        let later = (time_us - self.last.time_us).min(u64::MAX >> WHAT_BITS);
        push_varint(&mut self.block, later << WHAT_BITS | number);
        push_varint(&mut self.block, zigzag(page.wrapping_sub(self.last.page) as i64));
        if let Some(watched_us) = watched_us {
            push_varint(&mut self.block, watched_us);
        }
        self.last = Place { time_us: self.last.time_us + later, page };
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    /// A text about the trace. Several are one, in their order.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_notes(&mut self, text: &str) -> io::Result<()> {
        self.write_block()?;
        for part in text.as_bytes().chunks(BLOCK_BYTES) {
            let header = block_header(part.len() as u32, NOTES, xxh3_64(part));
            self.output.write_all(&header)?;
            self.output.write_all(part)?;
        }
        Ok(())
    }

    fn write_block(&mut self) -> io::Result<()> {
        if self.records == 0 {
            return Ok(());
        }
        let header = block_header(self.block.len() as u32, self.records, xxh3_64(&self.block));
        self.output.write_all(&header)?;
        self.output.write_all(&self.block)?;
        self.block.clear();
        (self.records, self.last) = (0, Place::default());
        Ok(())
    }

    /// As [`Writer::finish`], where the sample has become smaller than the header says.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish_sampled(self, lost: u32, one_in: u32) -> io::Result<W>
    where
        W: Seek,
    {
        let mut output = self.finish(lost)?;
        output.seek(SeekFrom::Start(ONE_IN_AT))?;
        output.write_all(&one_in.to_le_bytes())?;
        output.flush()?;
        Ok(output)
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
    last: Place,
    notes: Vec<u8>,
    /// Events that could not be recorded.
    lost: u32,
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
            last: Place::default(),
            notes: Vec::new(),
            lost: 0,
            offset: HEADER_BYTES as u64,
            is_over: false,
        })
    }

    /// What the trace says of itself.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Events that could not be recorded: known at the end.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// The notes, of which all are known at the end.
    ///
    /// # Errors
    /// When they are no text.
    pub fn notes(&self) -> Result<&str, Error> {
        str::from_utf8(&self.notes).map_err(|_| self.refused("its notes are no text"))
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
        (self.at, self.last) = (0, Place::default());
        match number(&header[4..8]) as u32 {
            lost if bytes == 0 => (self.is_over, self.lost) = (true, lost),
            0 => return Err(self.refused("a block has no record")),
            NOTES => {
                self.notes.append(&mut self.block);
                self.end_block(bytes);
            }
            records => self.records = records,
        }
        Ok(())
    }

    fn end_block(&mut self, bytes: usize) {
        self.offset += (BLOCK_HEADER_BYTES + bytes) as u64;
    }

    fn record(&mut self) -> Result<Option<Event>, Error> {
        while self.records == 0 && !self.is_over {
            self.read_block()?;
        }
        if self.is_over {
            return Ok(None);
        }
        let event = self.take_event()?;
        self.last = Place { time_us: event.time_us, page: event.page };
        self.records -= 1;
        if self.records == 0 {
            if self.at < self.block.len() {
                return Err(self.refused("a block has more records than it says"));
            }
            self.end_block(self.block.len());
        }
        Ok(Some(event))
    }

    fn take_event(&mut self) -> Result<Event, Error> {
        let later = self.take_number()?;
        let distance = self.take_number()?;
        let what = match later & ((1 << WHAT_BITS) - 1) {
            0 => What::Accessed,
            1 => What::Touched { watched_us: self.take_number()? },
            2 => What::Appeared,
            3 => What::Gone,
            4 => What::Untouched { watched_us: self.take_number()? },
            5 => What::Ended,
            _ => return Err(self.refused("something happened that is not known")),
        };
        let time_us = self.last.time_us.checked_add(later >> WHAT_BITS);
        let time_us = time_us.ok_or_else(|| self.refused("a time is beyond all times"))?;
        let page = self.last.page.wrapping_add_signed(unzigzag(distance));
        Ok(Event { time_us, page, what })
    }

    fn take_number(&mut self) -> Result<u64, Error> {
        take_varint(&self.block, &mut self.at)
            .ok_or_else(|| self.refused("a block has fewer records than it says"))
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Event, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let event = self.record().transpose()?;
            let Ok(Event { page, what, .. }) = event else { return Some(event) };
            let Header { one_in, block_pages, .. } = self.header;
            let is_in_blocks = block_pages > 1 && what != What::Ended;
            if !is_in_blocks || is_block_sampled(page / u64::from(block_pages), one_in) {
                return Some(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADER: Header =
        Header { kind: AddressSpace::Files, one_in: 64, look_ns: 100_000_000, block_pages: 1 };

    fn written(events: &[Event]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
        events.iter().for_each(|&event| writer.write(event).unwrap());
        writer.finish(3).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<Event>, Error> {
        Reader::new(bytes)?.collect()
    }

    fn event(time_us: u64, page: u64, kind: u64) -> Event {
        let watched_us = page ^ time_us;
        let what = match kind % 6 {
            0 => What::Accessed,
            1 => What::Touched { watched_us },
            2 => What::Appeared,
            3 => What::Gone,
            5 => What::Ended,
            _ => What::Untouched { watched_us },
        };
        Event { time_us, page, what }
    }

    fn some(count: u64) -> Vec<Event> {
        (0..count).map(|nth| event(nth * 37, (nth * nth % 100_003) << 20, nth)).collect()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            mut events in prop::collection::vec((0..1u64 << 60, any::<u64>(), any::<u64>()), 0..2000)
        ) {
            events.sort_unstable_by_key(|event| event.0);
            let events: Vec<_> =
                events.into_iter().map(|(time, page, kind)| event(time, page, kind)).collect();
            let bytes = written(&events);
            prop_assert_eq!(Reader::new(&bytes[..]).unwrap().header(), HEADER);
            prop_assert_eq!(read(&bytes).unwrap(), events);
        }

        #[test]
        fn notes_are_one_text(
            parts in prop::collection::vec((".{0,300}", 0..400usize), 0..5), count in 0..300u64,
        ) {
            let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
            let parts: Vec<String> = parts.into_iter().map(|(part, n)| part.repeat(n)).collect();
            for part in &parts {
                some(count).into_iter().for_each(|event| writer.write(event).unwrap());
                writer.write_notes(part).unwrap();
            }
            let bytes = writer.finish(7).unwrap();
            let mut reader = Reader::new(&bytes[..]).unwrap();
            let events = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
            prop_assert_eq!(events.len() as u64, count * parts.len() as u64);
            prop_assert_eq!((reader.notes().unwrap(), reader.lost()), (&*parts.concat(), 7));
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
    fn a_sample_that_became_smaller_has_only_what_is_in_the_last() {
        let header = Header { one_in: 1, block_pages: 8, ..HEADER };
        let mut writer = Writer::new(io::Cursor::new(Vec::new()), header).unwrap();
        for page in 0..8000 {
            writer.write(event(page, page, 0)).unwrap();
        }
        writer.write(Event { time_us: 9000, page: 5, what: What::Ended }).unwrap();
        let bytes = writer.finish_sampled(0, 8).unwrap().into_inner();
        assert_eq!(Reader::new(&bytes[..]).unwrap().header().one_in, 8);
        let mut events = read(&bytes).unwrap();
        assert_eq!(events.pop().unwrap().what, What::Ended);
        assert_eq!(events.len(), 1000);
        assert!(events.iter().all(|event| is_block_sampled(event.page / 8, 8)));
    }

    #[test]
    fn it_is_compact() {
        // A loop over 1 GiB of which one page in 64 is looked at, an access each 10 us.
        let accesses: Vec<_> =
            (0..100_000).map(|nth| event(nth * 10, (1 << 35) | (nth * 64 % 262_144), 0)).collect();
        let bytes = written(&accesses).len() as f64 / 100_000.0;
        assert!(bytes < 3.1, "{bytes}");
    }

    #[test]
    fn a_time_that_goes_back_is_now() {
        let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
        for time in [5, 3, 9] {
            writer.write(event(time, time, 0)).unwrap();
        }
        let times: Vec<_> =
            read(&writer.finish(0).unwrap()).unwrap().iter().map(|event| event.time_us).collect();
        assert_eq!(times, [5, 5, 9]);
    }

    #[test]
    fn another_version_says_so() {
        let mut bytes = written(&[]);
        bytes[7] = 9;
        let error = read(&bytes).unwrap_err().to_string();
        assert_eq!(
            error,
            "the trace is of version 9; this ramfold reads version 2: record it again"
        );
    }
}
