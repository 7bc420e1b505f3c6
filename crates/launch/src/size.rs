//! Sizes as people write them: `512M`, `1.5G`, `40%` of RAM.

use std::io;
use std::str::FromStr;

use ramfold_sys::cgroup;

/// An amount of memory or disk space, perhaps as a share of something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// A share of the machine's RAM, or of what else is said where it is asked for: 0 to 1.
    Fraction(f64),
}

/// Why a text is not a size.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("`{0}` is not a size: write for example 512M, 1.5G, 800000K or 40% (of RAM)")]
pub struct SizeError(String);

impl Size {
    /// The amount in bytes, where the whole is so much.
    pub fn bytes(self, whole_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Fraction(fraction) => (whole_bytes as f64 * fraction) as u64,
        }
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: f64 = match digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            true => digits.parse().map_err(|_| error())?,
            false => return Err(error()),
        };
        let unit = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
            "%" if (0.0..=100.0).contains(&number) => return Ok(Size::Fraction(number / 100.0)),
            "" | "B" => 1u64,
            "K" | "KB" | "KIB" => 1 << 10,
            "M" | "MB" | "MIB" => 1 << 20,
            "G" | "GB" | "GIB" => 1 << 30,
            "T" | "TB" | "TIB" => 1 << 40,
            _ => return Err(error()),
        };
        let bytes = number * unit as f64;
        if bytes < (1u64 << 60) as f64 { Ok(Size::Bytes(bytes as u64)) } else { Err(error()) }
    }
}

/// The memory that was asked for, in bytes; or this share of the control group's limit, or of the
/// machine's RAM where that is less or there is no limit.
///
/// # Errors
/// Where /proc/meminfo cannot be read, or does not tell how much RAM there is.
pub fn memory_bytes(asked: Option<Size>, share: f64) -> io::Result<u64> {
    let machine = cgroup::machine_memory_bytes()?;
    Ok(match asked {
        Some(size) => size.bytes(machine),
        None => {
            let limit = cgroup::memory_limit_bytes().map_or(machine, |limit| limit.min(machine));
            (limit as f64 * share) as u64
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_other_tools() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("800000K", 800_000 << 10),
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("1.5G", 3 << 29),
            ("2t", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!("40%".parse::<Size>().map(|size| size.bytes(1000)), Ok(400));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1", "1e3", "12Q", "101%", "1.2.3G", "∞", "9999999999T", "5 5"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
