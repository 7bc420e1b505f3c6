//! Amounts of memory as users write them: `512M`, `1.5G`, `40%` of the machine's RAM or of another
//! whole.

use std::fmt;
use std::str::FromStr;

/// An amount of memory, perhaps relative to a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// This share of the whole; 1 is all of it.
    Fraction(f64),
}

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError(String);

impl Size {
    /// The amount in bytes, of a whole of `whole_bytes`.
    pub fn bytes(self, whole_bytes: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Fraction(fraction) => (whole_bytes as f64 * fraction) as u64,
        }
    }

    /// Reads a size. A percentage is at most `fraction_max` of the whole.
    ///
    /// # Errors
    /// When the text is no size, or is one of 2^60 bytes or more.
    pub fn parse(text: &str, fraction_max: f64) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let number: f64 = match digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            true => digits.parse().map_err(|_| error())?,
            false => return Err(error()),
        };
        let unit = match text[digits.len()..].trim().to_ascii_uppercase().as_str() {
            "%" if number / 100.0 <= fraction_max => return Ok(Size::Fraction(number / 100.0)),
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

impl FromStr for Size {
    type Err = SizeError;

    /// Reads a size of at most 100 %.
    fn from_str(text: &str) -> Result<Self, SizeError> {
        Size::parse(text, 1.0)
    }
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.0;
        write!(f, "`{text}` is not a size: write for example 512M, 1.5G, 800000K or 40% (of RAM)")
    }
}

impl std::error::Error for SizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_other_tools() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8KiB", 8192),
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
        for text in [
            "",
            "M",
            "-1",
            "-5M",
            "1e3",
            "1e300G",
            "NaN",
            "12Q",
            "101%",
            "-1%",
            "%",
            "1.2.3G",
            "∞",
            "9999999999T",
            "5 5",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(
            "12Q".parse::<Size>().unwrap_err().to_string(),
            "`12Q` is not a size: write for example 512M, 1.5G, 800000K or 40% (of RAM)"
        );
    }

    #[test]
    fn more_than_the_whole_can_be_allowed() {
        assert_eq!(Size::parse("1000%", 100.0), Ok(Size::Fraction(10.0)));
        assert!(Size::parse("10001%", 100.0).is_err());
    }
}
