//! Standard output and standard error of a program, as they are read.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use xxhash_rust::xxh3::Xxh3;

/// How much of standard output is kept: room for the report of a synthetic workload.
const OUTPUT_KEPT: usize = 64 << 10;
/// How much of standard error is kept.
const ERRORS_KEPT: usize = 4 << 10;

/// The hash of a stream, and its start. Sets `has_printed` at the first byte.
pub(super) fn hash_stream(
    mut stream: impl Read,
    has_printed: &AtomicBool,
) -> Result<(String, Vec<u8>)> {
    let mut hasher = Xxh3::new();
    let mut kept = Vec::new();
    copy_stream(&mut stream, |part| {
        has_printed.store(true, Ordering::Relaxed);
        hasher.update(part);
        let room = OUTPUT_KEPT - kept.len();
        kept.extend_from_slice(&part[..part.len().min(room)]);
    })
    .context("cannot read the program's output")?;
    Ok((format!("{:032x}", hasher.digest128()), kept))
}

/// The end of a stream.
pub(super) fn tail_of_stream(mut stream: impl Read) -> Result<String> {
    let mut kept = Vec::new();
    copy_stream(&mut stream, |part| {
        kept.extend_from_slice(part);
        let surplus = kept.len().saturating_sub(ERRORS_KEPT);
        kept.drain(..surplus);
    })
    .context("cannot read the program's standard error")?;
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

fn copy_stream(stream: &mut impl Read, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => take(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_hashed_and_cut() {
        let data = vec![b'x'; OUTPUT_KEPT + 5];
        let has_printed = AtomicBool::new(false);
        hash_stream([].as_slice(), &has_printed).unwrap();
        assert!(!has_printed.load(Ordering::Relaxed));
        let (hash, kept) = hash_stream(data.as_slice(), &has_printed).unwrap();
        assert!(has_printed.load(Ordering::Relaxed));
        assert_eq!(hash, format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&data)));
        assert_eq!(kept.len(), OUTPUT_KEPT);
        let mut text = vec![b'a'; ERRORS_KEPT];
        text.extend_from_slice(b"end");
        let tail = tail_of_stream(text.as_slice()).unwrap();
        assert!(tail.len() == ERRORS_KEPT && tail.ends_with("aend"));
    }
}
