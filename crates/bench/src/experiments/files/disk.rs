//! How fast the disk is to be.

use std::str::FromStr;

use crate::harness::size::Bytes;

/// What the reads of a disk are slowed down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) struct Disk {
    pub(in crate::experiments) bytes_per_s: u64,
    pub(in crate::experiments) reads_per_s: Option<u64>,
}

/// As an option: bytes a second and reads a second, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::experiments) struct Slowdown(pub(in crate::experiments) Option<Disk>);

impl FromStr for Slowdown {
    type Err = String;

    fn from_str(text: &str) -> Result<Slowdown, String> {
        if text == "none" {
            return Ok(Slowdown(None));
        }
        let (bytes, reads) = match text.split_once(':') {
            Some((bytes, reads)) => (bytes, Some(reads)),
            None => (text, None),
        };
        let Bytes(bytes_per_s) = bytes.parse()?;
        let reads = reads.map(str::parse).transpose();
        let reads_per_s = reads.map_err(|_| format!("'{text}': reads a second are a number"))?;
        Ok(Slowdown(Some(Disk { bytes_per_s, reads_per_s })))
    }
}
