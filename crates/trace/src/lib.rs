//! Traces of page accesses, from a reader to accesses one after the other.
//!
//! | format | what writes it |
//! |---|---|
//! | [`recorded`] | `ramfold simulate --save` |
//! | [`oracle_general`] | libCacheSim; many public traces are in it |
//! | [`csv`] | anything: `time, page[, size]` |
//! | [`lackey`] | `valgrind --tool=lackey --trace-mem=yes` |
//!
//! Any of them may be compressed with zstd. The format is told from the first bytes, but for
//! oracleGeneral, which has none of its own: that is told from the file's name
//! ([`Format::of_name`]).

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

pub mod csv;
pub mod lackey;
pub mod oracle_general;
pub mod recorded;

use std::io::{self, BufRead, BufReader, Read};

use ramfold_model::PageNumber;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// Bytes in a page of a trace of addresses.
pub const PAGE_SIZE: u64 = 4096;

/// A page is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// When, in the unit of the trace; 0 where it has no times.
    pub time: u64,
    /// The page.
    pub page: PageNumber,
}

/// Accesses of a trace, in its order. After an error there is nothing more.
pub type Accesses<'a> = Box<dyn Iterator<Item = Result<Access, Error>> + 'a>;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file.
    #[error("cannot read the trace")]
    Io(#[from] io::Error),
    /// A line of a text.
    #[error("line {number} of the trace is not as {format} has it: {why}")]
    Line {
        /// Counted from 1.
        number: u64,
        /// Of which format the trace is.
        format: Format,
        /// What is wrong with it.
        why: String,
    },
    /// A record of a binary format.
    #[error("the trace is damaged or no {format} trace, at byte {offset}: {why}")]
    Record {
        /// Where.
        offset: u64,
        /// Of which format the trace is.
        format: Format,
        /// What is wrong with it.
        why: String,
    },
    /// It ends in the middle.
    #[error(
        "the trace ends at byte {offset} in the middle of a record: it was cut off, or whoever wrote it \
         was killed"
    )]
    Truncated {
        /// Where.
        offset: u64,
    },
    /// Another version's.
    #[error("the trace is of version {found}; this ramfold reads version {known}: record it again")]
    Version {
        /// The trace's.
        found: u8,
        /// This program's.
        known: u8,
    },
    /// Nothing tells what it is.
    #[error(
        "the trace is of no known format: it begins like neither ramfold's own, CSV nor lackey's \
         (oracleGeneral has to be named)"
    )]
    Unknown,
}

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// ramfold's own.
    Recorded,
    /// libCacheSim's.
    OracleGeneral,
    /// `time, page[, size]`.
    Csv,
    /// valgrind's tool.
    Lackey,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Format::Recorded => "ramfold",
            Format::OracleGeneral => "oracleGeneral",
            Format::Csv => "csv",
            Format::Lackey => "lackey",
        })
    }
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 4] =
        [Format::Recorded, Format::OracleGeneral, Format::Csv, Format::Lackey];

    /// The one that a file's name says: libCacheSim's own files end in `.oracleGeneral`, with
    /// `.bin` or `.zst` behind it or not.
    pub fn of_name(name: &str) -> Option<Format> {
        name.to_ascii_lowercase().contains(".oraclegeneral").then_some(Format::OracleGeneral)
    }

    /// The one that the first bytes of a trace say.
    pub fn of_start(start: &[u8]) -> Option<Format> {
        if start.starts_with(recorded::MAGIC) {
            return Some(Format::Recorded);
        }
        let text = std::str::from_utf8(start).or_else(|error| {
            // A character may be cut through.
            std::str::from_utf8(&start[..error.valid_up_to()])
        });
        let mut lines = text.ok()?.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next()?;
        if lackey::is_line(first) {
            Some(Format::Lackey)
        } else {
            csv::is_line(first).then_some(Format::Csv)
        }
    }
}

/// Magic number of a zstd frame (RFC 8878).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// As much as is looked at to tell the format.
const START_BYTES: usize = 4096;

/// A trace whose format is known.
pub struct Trace<'a> {
    /// The format.
    pub format: Format,
    /// What ramfold's own says of itself at its beginning.
    pub header: Option<recorded::Header>,
    /// The accesses.
    pub accesses: Accesses<'a>,
}

impl std::fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("format", &self.format).finish_non_exhaustive()
    }
}

/// Opens a trace. `format`: where it is known, else the first bytes say it.
///
/// # Errors
/// When it cannot be read or is of no known format.
pub fn open<'a>(input: impl BufRead + 'a, format: Option<Format>) -> Result<Trace<'a>, Error> {
    let (start, input) = peek(input)?;
    if start.starts_with(&ZSTD_MAGIC) {
        let frames = Frames { input: Some(input), frame: None };
        let (start, input) = peek(BufReader::new(frames))?;
        return open_plain(&start, input, format);
    }
    open_plain(&start, input, format)
}

fn open_plain<'a>(
    start: &[u8],
    input: impl BufRead + 'a,
    format: Option<Format>,
) -> Result<Trace<'a>, Error> {
    let format = format.or_else(|| Format::of_start(start)).ok_or(Error::Unknown)?;
    let mut header = None;
    let accesses: Accesses<'a> = match format {
        Format::Recorded => {
            let reader = recorded::Reader::new(input)?;
            header = Some(reader.header());
            Box::new(reader.filter_map(|event| event.map(recorded::access).transpose()))
        }
        Format::OracleGeneral => Box::new(oracle_general::Reader::new(input)),
        Format::Csv => Box::new(csv::Reader::new(input)),
        Format::Lackey => Box::new(lackey::Reader::new(input)),
    };
    Ok(Trace { format, header, accesses: Box::new(UntilError(Some(accesses))) })
}

/// The first bytes, and the input with those before it.
fn peek(mut input: impl BufRead) -> io::Result<(Vec<u8>, impl BufRead)> {
    let mut start = Vec::new();
    input.by_ref().take(START_BYTES as u64).read_to_end(&mut start)?;
    Ok((start.clone(), io::Cursor::new(start).chain(input)))
}

/// zstd frames one behind the other, as `zstd -T0` and `cat` make them.
struct Frames<R: Read> {
    /// Between two frames.
    input: Option<R>,
    /// Within one.
    frame: Option<Box<StreamingDecoder<R, FrameDecoder>>>,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let len = frame.read(buffer)?;
                if len > 0 || buffer.is_empty() {
                    return Ok(len);
                }
                self.input = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(mut input) = self.input.take() else { return Ok(0) };
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            self.frame = Some(Box::new(StreamingDecoder::new(input).map_err(io::Error::other)?));
        }
    }
}

struct UntilError<'a>(Option<Accesses<'a>>);

impl Iterator for UntilError<'_> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.0.as_mut()?.next();
        if !matches!(next, Some(Ok(_))) {
            self.0 = None;
        }
        next
    }
}

/// Reads as much as there is, up to the buffer's length.
fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
