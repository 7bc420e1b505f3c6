//! Which codecs a session compresses with.

use core::fmt;
use core::str::FromStr;

use ramfold_codec::wkv::Prediction;
use ramfold_codec::{Backend, Codec, UnknownCodec, ZstdLevel};

/// The codec for most pages, and the one for when the pool itself takes most of the cap: then
/// every byte it shrinks by spares faults, which cost more than compressing harder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecChoice {
    pub usual: Codec,
    pub tight: Codec,
}

impl CodecChoice {
    /// The name of what is used unless somebody asks for a codec.
    pub const AUTO: &str = "auto";

    /// WKv where there are vector instructions for it,
    /// without which it is slower than
    /// LZ4, and zstd when the pool takes most of the cap.
    pub fn auto() -> Self {
        let vectors = Backend::best() != Backend::SCALAR;
        let usual = if vectors { Codec::Wkv(Prediction::Strides) } else { Codec::Lz4 };
        CodecChoice { usual, tight: Codec::Zstd(ZstdLevel::FASTEST) }
    }

    /// One codec for everything.
    pub fn only(codec: Codec) -> Self {
        CodecChoice { usual: codec, tight: codec }
    }

    pub fn name(self) -> &'static str {
        if self == Self::auto() { Self::AUTO } else { self.usual.name() }
    }

    /// How it is written into a session.
    pub fn number(self) -> u32 {
        u32::from(self.usual.number()) | u32::from(self.tight.number()) << 16
    }

    pub fn of_number(number: u32) -> Self {
        let codec = |number: u32| Codec::from_number(number as u16).unwrap_or(Codec::Lz4);
        CodecChoice { usual: codec(number), tight: codec(number >> 16) }
    }
}

impl FromStr for CodecChoice {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        if name == Self::AUTO { Ok(Self::auto()) } else { name.parse().map(Self::only) }
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_survives_its_name_and_its_number() {
        let choices = Codec::ALL.iter().map(|&codec| CodecChoice::only(codec));
        for choice in choices.chain([CodecChoice::auto()]) {
            assert_eq!(choice.name().parse(), Ok(choice));
            assert_eq!(CodecChoice::of_number(choice.number()), choice);
        }
        assert!("best".parse::<CodecChoice>().is_err());
    }
}
