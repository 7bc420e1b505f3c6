//! libCacheSim's oracleGeneral: records of 24 bytes, little-endian, one behind the other.
//!
//! | bytes | what |
//! |---|---|
//! | 0 to 3 | time, in seconds |
//! | 4 to 11 | object |
//! | 12 to 15 | the object's size, in bytes |
//! | 16 to 23 | which access is the next to it, counted from 0; -1 and the largest number are none |
//!
//! An object counts as one page, whatever its size: in most of these traces it is a block or a page
//! of a disk, or an object of a cache whose room is counted in objects.

use std::io::Read;

use crate::{Access, Error, Format, read_some};

const RECORD_BYTES: usize = 24;
/// Records read at a time.
const RECORDS: usize = 4096;

/// Reads accesses.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    buffer: Vec<u8>,
    /// What of the buffer was read and not given yet.
    rest: std::ops::Range<usize>,
    /// Bytes of the records so far.
    offset: u64,
    last_time: u32,
}

impl<R: Read> Reader<R> {
    /// Of the records.
    pub fn new(input: R) -> Reader<R> {
        let buffer = vec![0; RECORD_BYTES * RECORDS];
        Reader { input, buffer, rest: 0..0, offset: 0, last_time: 0 }
    }

    fn record(&mut self) -> Result<Option<Access>, Error> {
        if self.rest.is_empty() {
            self.rest = 0..read_some(&mut self.input, &mut self.buffer)?;
            if self.rest.is_empty() {
                return Ok(None);
            }
        }
        let Some((record, _)) = self.buffer[self.rest.clone()].split_first_chunk::<RECORD_BYTES>()
        else {
            return Err(Error::Truncated { offset: self.offset + self.rest.len() as u64 });
        };
        let [time, object, _size, next] = fields(record);
        // Its own writers never go back, so anything else is not of this format.
        let time = time as u32;
        if time < self.last_time {
            let why = format!("the time goes back from {} to {time}", self.last_time);
            let (offset, format) = (self.offset, Format::OracleGeneral);
            return Err(Error::Record { offset, format, why });
        }
        let number = self.offset / RECORD_BYTES as u64;
        let next = next as i64;
        if (0..i64::MAX).contains(&next) && next as u64 <= number {
            let why = format!("access {number} says that the next to its object was {next}");
            let (offset, format) = (self.offset, Format::OracleGeneral);
            return Err(Error::Record { offset, format, why });
        }
        self.last_time = time;
        self.rest.start += RECORD_BYTES;
        self.offset += RECORD_BYTES as u64;
        Ok(Some(Access { time: time.into(), page: object }))
    }
}

/// Time, object, size, next access.
fn fields(record: &[u8; RECORD_BYTES]) -> [u64; 4] {
    let number = |range: std::ops::Range<usize>| {
        record[range].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    };
    [number(0..4), number(4..12), number(12..16), number(16..24)]
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Access, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.record().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time: u32, object: u64, next: i64) -> Vec<u8> {
        let mut record = time.to_le_bytes().to_vec();
        record.extend(object.to_le_bytes());
        record.extend(4096u32.to_le_bytes());
        record.extend(next.to_le_bytes());
        record
    }

    #[test]
    fn records_are_accesses() {
        let many = RECORDS as u64 + 7;
        let bytes: Vec<u8> =
            (0..many).flat_map(|nth| record(nth as u32 / 10, nth * 3, -1)).collect();
        let accesses: Vec<Access> = Reader::new(&bytes[..]).collect::<Result<_, _>>().unwrap();
        let expected = (0..many).map(|nth| Access { time: nth / 10, page: nth * 3 });
        assert_eq!(accesses, expected.collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_such_trace_is_refused() {
        let bytes = [record(5, 1, 2), record(4, 2, -1)].concat();
        let errors =
            |bytes: &[u8]| Reader::new(bytes).find_map(Result::err).map(|error| error.to_string());
        assert!(errors(&bytes).unwrap().contains("at byte 24: the time goes back from 5 to 4"));
        let bytes = [record(5, 1, 7), record(5, 2, 1)].concat();
        assert!(errors(&bytes).unwrap().contains("access 1 says that the next"));
        assert!(errors(&bytes[..47]).unwrap().contains("ends at byte 47 in the middle"));
        assert_eq!(errors(&bytes[..24]), None);
    }
}
