//! Sizes as people write them: `512M`, `1.5G`, `40%`, `0.5`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// The total memory of a measurement: a share of what the program needs, or bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Memory {
    Fraction(f64),
    Bytes(u64),
}

impl Memory {
    /// Bytes for a program that needs `need_bytes`.
    pub(crate) fn of(self, need_bytes: u64) -> u64 {
        match self {
            Self::Fraction(fraction) => (need_bytes as f64 * fraction) as u64,
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(formatter, "{}%", fraction * 100.0),
            Self::Bytes(bytes) => write!(formatter, "{}", Size(*bytes)),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 30 => {
                write!(formatter, "{:.2} GiB", bytes as f64 / f64::from(1u32 << 30))
            }
            bytes if bytes >= 1 << 20 => {
                write!(formatter, "{:.1} MiB", bytes as f64 / f64::from(1u32 << 20))
            }
            bytes => write!(formatter, "{:.1} KiB", bytes as f64 / 1024.0),
        }
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 1u64,
            "k" | "kb" | "kib" => 1 << 10,
            "m" | "mb" | "mib" => 1 << 20,
            "g" | "gb" | "gib" => 1 << 30,
            "t" | "tb" | "tib" => 1 << 40,
            _ => return Err(format!("'{text}': the unit is one of K, M, G, T, as in 256M")),
        };
        let number: f64 =
            digits.parse().map_err(|_| format!("'{text}' is not a size such as 256M or 1.5G"))?;
        let bytes = number * unit as f64;
        if !(1.0..9e18).contains(&bytes) {
            return Err(format!("'{text}' is out of range"));
        }
        Ok(Self(bytes as u64))
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fraction = match text.strip_suffix('%') {
            Some(percent) => percent.parse::<f64>().map(|percent| percent / 100.0).ok(),
            // A bare decimal fraction; an integer without a unit is bytes.
            None if text.contains('.') => text.parse::<f64>().ok(),
            None => return text.parse().map(|Size(bytes)| Self::Bytes(bytes)),
        };
        match fraction {
            Some(fraction) if fraction > 0.0 && fraction <= 100.0 => Ok(Self::Fraction(fraction)),
            Some(_) => Err(format!("'{text}' is out of range")),
            None => text.parse().map(|Size(bytes)| Self::Bytes(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        assert_eq!("256M".parse(), Ok(Size(256 << 20)));
        assert_eq!("1.5G".parse(), Ok(Size(3 << 29)));
        assert_eq!("4096".parse(), Ok(Size(4096)));
        assert_eq!("8KiB".parse(), Ok(Size(8192)));
        for bad in ["", "M", "12Q", "-5M", "1e300G", "0", "5%", "NaN"] {
            assert!(bad.parse::<Size>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn memory_is_a_share_or_bytes() {
        assert_eq!("50%".parse(), Ok(Memory::Fraction(0.5)));
        assert_eq!("0.25".parse(), Ok(Memory::Fraction(0.25)));
        assert_eq!("128M".parse(), Ok(Memory::Bytes(128 << 20)));
        assert_eq!("1.5G".parse(), Ok(Memory::Bytes(3 << 29)));
        for bad in ["0%", "-1%", "x%", "0.0", "", "%"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad} was taken");
        }
        assert_eq!(Memory::Fraction(0.5).of(1000), 500);
    }
}
