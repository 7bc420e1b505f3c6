//! Sizes as people write them: `512M`, `1.5G`, `40%` of RAM.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
use ramfold_sys::cgroup;

/// An amount of memory, perhaps relative to the machine's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    Bytes(u64),
    /// Of the machine's RAM (or what else it is of), 0 to 1.
    Fraction(f64),
}

/// Why a text is not a size.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("`{0}` is not a size: write for example 512M, 1.5G, 800000K or 40% (of RAM)")]
pub struct SizeError(String);

impl Size {
    /// The amount, where the whole is so much.
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

/// The memory that was asked for; or this share of the control group's limit, or of the machine's RAM.
///
/// # Errors
/// When it cannot be found out how much RAM there is.
pub fn memory_bytes(asked: Option<Size>, share: f64) -> anyhow::Result<u64> {
    let machine = cgroup::machine_memory_bytes().context("finding out how much RAM there is")?;
    Ok(match asked {
        Some(size) => size.bytes(machine),
        None => {
            let limit = cgroup::memory_limit_bytes().map_or(machine, |limit| limit.min(machine));
            (limit as f64 * share) as u64
        }
    })
}

/// A file or folder and how large something there may be: `PATH` or `PATH:SIZE`.
#[derive(Clone, Debug, PartialEq)]
pub struct SizedPath {
    pub path: PathBuf,
    pub size: Option<Size>,
}

impl FromStr for SizedPath {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        // A path may have a colon in it.
        let parts = text.rsplit_once(':').and_then(|(path, size)| {
            Some((path, size.parse().ok()?)).filter(|(path, _)| !path.is_empty())
        });
        Ok(match parts {
            Some((path, size)) => SizedPath { path: path.into(), size: Some(size) },
            None => SizedPath { path: text.into(), size: None },
        })
    }
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

    #[test]
    fn a_size_may_follow_a_path() {
        let parsed = |text: &str| {
            let SizedPath { path, size } = text.parse().unwrap();
            (path.display().to_string(), size)
        };
        assert_eq!(parsed("/var/tmp"), ("/var/tmp".into(), None));
        assert_eq!(parsed("/var/tmp:2G"), ("/var/tmp".into(), Some(Size::Bytes(2 << 30))));
        assert_eq!(parsed(".:40%"), (".".into(), Some(Size::Fraction(0.4))));
        assert_eq!(parsed("/a:b"), ("/a:b".into(), None));
        assert_eq!(parsed("/a:b:1M"), ("/a:b".into(), Some(Size::Bytes(1 << 20))));
        assert_eq!(parsed(":1M"), (":1M".into(), None));
    }
}
