//! What a user chooses by name: one codec for all pages, or `auto`.

use core::fmt;
use core::str::FromStr;

use crate::Page;
use crate::auto::{self, Auto, Objective};
use crate::backend::Backend;
use crate::codec::Codec;
use crate::compressor::{Compressor, compress_scratch_bytes};
use crate::encodings::Encoding;
use crate::error::{DoesNotFit, ScratchError, UnknownCodec};

/// How pages are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Choice {
    /// `auto`: a codec for each page.
    #[default]
    Auto,
    /// This codec for all pages.
    Only(Codec),
}

impl Choice {
    const AUTO: &str = "auto";

    /// The names, to list in help texts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        core::iter::once(Choice::AUTO).chain(Codec::ALL.iter().map(|codec| codec.name()))
    }

    /// The name, which [`FromStr`] reads back.
    pub fn name(self) -> &'static str {
        match self {
            Choice::Auto => Choice::AUTO,
            Choice::Only(codec) => codec.name(),
        }
    }

    /// A number for each choice, which [`Choice::from_number`] reads back.
    pub const fn number(self) -> u16 {
        match self {
            Choice::Auto => 0,
            Choice::Only(codec) => codec.number(),
        }
    }

    /// The choice with that number, or `None`.
    pub fn from_number(number: u16) -> Option<Choice> {
        if number == Choice::Auto.number() {
            return Some(Choice::Auto);
        }
        Codec::from_number(number).map(Choice::Only)
    }

    /// Bytes of scratch that [`Chosen::new`] needs. Contents do not matter.
    pub fn scratch_bytes(self) -> usize {
        match self {
            Choice::Auto => auto::scratch_bytes(),
            Choice::Only(codec) => compress_scratch_bytes(codec),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Choice {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        if name == Choice::AUTO { Ok(Choice::Auto) } else { name.parse().map(Choice::Only) }
    }
}

/// Compresses pages as chosen.
pub enum Chosen<'a> {
    /// By [`Choice::Auto`].
    Auto(Auto<'a>),
    /// By [`Choice::Only`].
    Only(Compressor<'a>),
}

impl<'a> Chosen<'a> {
    /// An encoder that works in the first [`Choice::scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter than that.
    pub fn new(choice: Choice, scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        Ok(match choice {
            Choice::Auto => Chosen::Auto(Auto::new(scratch)?),
            Choice::Only(codec) => Chosen::Only(Compressor::new(codec, scratch)?),
        })
    }

    /// The same with other instructions than the best available.
    pub fn with_backend(self, backend: Backend) -> Self {
        match self {
            Chosen::Auto(auto) => Chosen::Auto(auto.with_backend(backend)),
            Chosen::Only(compressor) => Chosen::Only(compressor.with_backend(backend)),
        }
    }

    /// Whether the objective of [`Self::compress`] makes a difference: it does not for a single
    /// codec.
    pub fn has_objectives(&self) -> bool {
        matches!(self, Chosen::Auto(_))
    }

    /// Compresses `page` into the front of `out`: returns the object's encoding and length.
    ///
    /// # Errors
    /// [`DoesNotFit`], as [`Compressor::compress`] and [`Auto::compress`].
    pub fn compress(
        &mut self,
        page: &Page,
        objective: Objective,
        out: &mut [u8],
    ) -> Result<(Encoding, usize), DoesNotFit> {
        match self {
            Chosen::Auto(auto) => auto.compress(page, objective, out),
            Chosen::Only(compressor) => {
                compressor.compress(page, out).map(|len| (compressor.codec().encoding(), len))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_survives_its_name_and_its_number() {
        for name in Choice::names() {
            let choice: Choice = name.parse().unwrap();
            assert_eq!(choice.name(), name);
            assert_eq!(Choice::from_number(choice.number()), Some(choice));
        }
        assert_eq!(Choice::names().count(), 1 + Codec::ALL.len());
        assert_eq!("best".parse::<Choice>(), Err(UnknownCodec));
        assert_eq!(Choice::from_number(0xffff), None);
    }
}
