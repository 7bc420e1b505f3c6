//! Amounts of memory, as options of experiments name them.

use std::fmt;
use std::str::FromStr;

use ramfold_sys::size::Size;

/// The most that a program may be given, as a multiple of its need.
const FRACTION_MAX: f64 = 100.0;

/// A number of bytes above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

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
            Self::Fraction(fraction) => Size::Fraction(fraction).bytes(need_bytes),
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(fraction) => write!(formatter, "{}%", fraction * 100.0),
            Self::Bytes(bytes) => write!(formatter, "{}", Bytes(*bytes)),
        }
    }
}

impl fmt::Display for Bytes {
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

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Size::Bytes(bytes)) if bytes > 0 => Ok(Self(bytes)),
            _ => Err(format!("'{text}' is not a size such as 256M or 1.5G")),
        }
    }
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A number with a point and no unit is a share; one without a point is bytes.
        let share = text.parse::<f64>().ok().filter(|_| text.contains('.'));
        let size = share
            .map_or_else(|| Size::parse(text, FRACTION_MAX), |share| Ok(Size::Fraction(share)));
        match size {
            Ok(Size::Fraction(share)) if share > 0.0 && share <= FRACTION_MAX => {
                Ok(Self::Fraction(share))
            }
            Ok(Size::Bytes(bytes)) if bytes > 0 => Ok(Self::Bytes(bytes)),
            Ok(_) => Err(format!("'{text}' is out of range")),
            Err(_) => {
                Err(format!("'{text}' is not a size such as 256M or 1.5G, nor a share of 40%"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_parse() {
        assert_eq!("256M".parse(), Ok(Bytes(256 << 20)));
        assert_eq!("1.5G".parse(), Ok(Bytes(3 << 29)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert_eq!("8KiB".parse(), Ok(Bytes(8192)));
        for bad in ["", "M", "12Q", "-5M", "1e300G", "0", "5%", "NaN"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn memory_is_a_share_or_bytes() {
        assert_eq!("50%".parse(), Ok(Memory::Fraction(0.5)));
        assert_eq!("1000%".parse(), Ok(Memory::Fraction(10.0)));
        assert_eq!("0.25".parse(), Ok(Memory::Fraction(0.25)));
        assert_eq!("128M".parse(), Ok(Memory::Bytes(128 << 20)));
        assert_eq!("1.5G".parse(), Ok(Memory::Bytes(3 << 29)));
        for bad in ["0%", "-1%", "x%", "0.0", "", "%", "10001%", "101.0"] {
            assert!(bad.parse::<Memory>().is_err(), "{bad} was taken");
        }
        assert_eq!(Memory::Fraction(0.5).of(1000), 500);
    }
}
