//! Arguments that are sizes: of memory, and of files.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Context;
pub(crate) use ramfold_launch::{Size, SizeError};

/// The memory that was asked for; or this share of the control group's limit, or of the machine's
/// RAM.
///
/// # Errors
/// When it cannot be found out how much RAM there is.
pub(crate) fn memory_bytes(asked: Option<Size>, share: f64) -> anyhow::Result<u64> {
    ramfold_launch::memory_bytes(asked, share).context("finding out how much RAM there is")
}

/// A file or folder and how large something there may be: `PATH` or `PATH:SIZE`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SizedPath {
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
