//! The registry of encodings: every number that says in which form bytes are stored, and its name.
//!
//! A store of compressed pages keeps a number of [`BITS`] bits beside each object. The codecs'
//! formats ([`Encoding`]) have such numbers, and so have forms that the store and its front ends
//! give to what they keep. All of them are here, so that no number has two meanings. A number that
//! was in use once keeps its meaning.
//!
//! | number | form | written by |
//! |---|---|---|
//! | 0 | [`WORD`] | the store |
//! | 1 to 9 | [`Encoding`] | the codecs |
//! | 10, 11, 12 | first piece of 1, 4 or 16 pages ([`of_cluster`]) | file cache, disk |
//! | 13 | [`CLUSTER_REST`] | file cache, disk |
//! | 14 | free | |
//! | 15 | [`RAW`] | the pager, disk |
//!
//! *Disk* is the disk in RAM. What follows the header of a cluster's first piece is in a form of
//! its own number: that of an [`Encoding`], or [`WORD`].

use crate::cluster::ClusterSize;
use crate::decompressor::{Decompressor, TAPE_BYTES};
use crate::error::{DecodeError, UnknownEncoding};
use crate::{Page, lz4, lzo, lzrw, page_lz, pbpm, wk4x4, wkdm, wkv, zstd};

/// Bits of an encoding's number wherever one is stored: in an entry of the store's index, which has
/// no room for more. The header of an object in the spill file and that of a cluster have 8.
pub const BITS: u32 = 4;

/// Eight bytes: a little-endian word of 64 bits that the page or cluster consists of.
pub const WORD: u8 = 0;

/// First piece of a cluster of one page: a header, then an object or a part of it.
pub(crate) const CLUSTER_OF_1: u8 = 10;

/// First piece of a cluster of 4 pages, 16 KiB.
pub(crate) const CLUSTER_OF_4: u8 = 11;

/// First piece of a cluster of 16 pages, 64 KiB.
pub(crate) const CLUSTER_OF_16: u8 = 12;

/// A later piece of a cluster: bytes that continue the piece before.
pub const CLUSTER_REST: u8 = 13;

/// A page as it is: 4,096 bytes. The pager only stores it where it can be written to a spill file.
pub const RAW: u8 = 15;

/// The number of the first piece of a cluster of that size.
pub const fn of_cluster(size: ClusterSize) -> u8 {
    match size {
        ClusterSize::One => CLUSTER_OF_1,
        ClusterSize::Four => CLUSTER_OF_4,
        ClusterSize::Sixteen => CLUSTER_OF_16,
    }
}

/// The format of an object that a codec made. No format has the number 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Encoding {
    /// A raw LZ4 block.
    Lz4 = 1,
    /// The length of one zstd compressed block in two bytes, then its content (RFC 8878, section
    /// 3.1.1.2.3), without frame or block header.
    Zstd = 2,
    /// WKdm.
    Wkdm = 3,
    /// PBPM; see [`pbpm`](crate::pbpm).
    Pbpm = 4,
    /// An LZO1X stream.
    Lzo = 5,
    /// LZRW1-A.
    Lzrw = 6,
    /// WK4x4.
    Wk4x4 = 7,
    /// WKv; see [`wkv`](crate::wkv).
    Wkv = 8,
    /// The page LZ; see [`page_lz`](crate::page_lz).
    PageLz = 9,
}

impl Encoding {
    /// Every encoding, by number.
    pub const ALL: &[Encoding] = &[
        Encoding::Lz4,
        Encoding::Zstd,
        Encoding::Wkdm,
        Encoding::Pbpm,
        Encoding::Lzo,
        Encoding::Lzrw,
        Encoding::Wk4x4,
        Encoding::Wkv,
        Encoding::PageLz,
    ];

    /// The format's name, without a level.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::Lz4 => "lz4",
            Encoding::Zstd => "zstd",
            Encoding::Wkdm => "wkdm",
            Encoding::Pbpm => "pbpm",
            Encoding::Lzo => "lzo",
            Encoding::Lzrw => "lzrw1-a",
            Encoding::Wk4x4 => "wk4x4",
            Encoding::Wkv => "wkv",
            Encoding::PageLz => "page-lz",
        }
    }
}

/// Every format that works in tapes has room for them.
const _: () = assert!(
    wkdm::SCRATCH_BYTES <= TAPE_BYTES
        && page_lz::DECOMPRESS_SCRATCH_BYTES <= TAPE_BYTES
        && wkv::DECOMPRESS_SCRATCH_BYTES <= TAPE_BYTES
);

impl Encoding {
    /// Bytes of scratch that a decompressor needs.
    pub(crate) fn scratch_bytes(self) -> usize {
        match self {
            Encoding::Lz4 | Encoding::Lzo | Encoding::Lzrw => 0,
            Encoding::Wkdm
            | Encoding::Wk4x4
            | Encoding::Pbpm
            | Encoding::Wkv
            | Encoding::PageLz => TAPE_BYTES,
            Encoding::Zstd => TAPE_BYTES + zstd::decompress_scratch_bytes(),
        }
    }

    /// As [`Decompressor::decompress`], in its memory.
    pub(crate) fn decompress(
        self,
        object: &[u8],
        memory: &mut Decompressor<'_>,
        page: &mut Page,
    ) -> Result<(), DecodeError> {
        let (backend, no_scratch) = (memory.backend(), DecodeError::NoScratch { encoding: self });
        match self {
            Encoding::Lz4 => lz4::decompress(object, page),
            Encoding::Lzo => lzo::decompress(object, page),
            Encoding::Lzrw => lzrw::decompress(object, page),
            Encoding::Zstd => memory.zstd().ok_or(no_scratch)?.decompress(object, page),
            Encoding::Wkdm => wkdm::decompress(object, memory.tapes().ok_or(no_scratch)?, page),
            Encoding::Wk4x4 => wk4x4::decompress(object, memory.tapes().ok_or(no_scratch)?, page),
            Encoding::Pbpm => {
                pbpm::decompress(object, backend, memory.tapes().ok_or(no_scratch)?, page)
            }
            Encoding::PageLz => {
                page_lz::decompress(object, backend, memory.tapes().ok_or(no_scratch)?, page)
            }
            Encoding::Wkv => {
                wkv::decompress(object, backend, memory.tapes().ok_or(no_scratch)?, page)
            }
        }
    }
}

impl TryFrom<u8> for Encoding {
    type Error = UnknownEncoding;

    fn try_from(number: u8) -> Result<Self, UnknownEncoding> {
        let known = Encoding::ALL.iter().find(|&&encoding| encoding as u8 == number);
        known.copied().ok_or(UnknownEncoding(number))
    }
}

impl From<Encoding> for u8 {
    fn from(encoding: Encoding) -> u8 {
        encoding as u8
    }
}

/// The forms that are no codec's: number and name.
const OTHERS: [(u8, &str); 6] = [
    (WORD, "word"),
    (CLUSTER_OF_1, "cluster-1"),
    (CLUSTER_OF_4, "cluster-4"),
    (CLUSTER_OF_16, "cluster-16"),
    (CLUSTER_REST, "cluster-rest"),
    (RAW, "raw"),
];

/// All forms: number and name.
const REGISTRY: [(u8, &str); OTHERS.len() + Encoding::ALL.len()] = {
    let mut all = [(0, ""); OTHERS.len() + Encoding::ALL.len()];
    let mut nth = 0;
    while nth < all.len() {
        all[nth] = if nth < OTHERS.len() {
            OTHERS[nth]
        } else {
            let encoding = Encoding::ALL[nth - OTHERS.len()];
            (encoding as u8, encoding.name())
        };
        nth += 1;
    }
    all
};

const fn are_equal(a: &[u8], b: &[u8]) -> bool {
    let mut equal = a.len() == b.len();
    let mut at = 0;
    while equal && at < a.len() {
        equal = a[at] == b[at];
        at += 1;
    }
    equal
}

const _: () = {
    let mut nth = 0;
    while nth < REGISTRY.len() {
        let (number, name) = REGISTRY[nth];
        assert!(number < 1 << BITS, "an entry of the index has no room for a larger number");
        let mut other = 0;
        while other < nth {
            assert!(REGISTRY[other].0 != number, "a number has one meaning");
            assert!(!are_equal(REGISTRY[other].1.as_bytes(), name.as_bytes()), "so has a name");
            other += 1;
        }
        nth += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_keep_their_numbers() {
        let numbers: std::vec::Vec<_> = Encoding::ALL.iter().map(|&e| u8::from(e)).collect();
        // Later formats have what was free: 14.
        assert_eq!(numbers[..9], [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        for number in 0..=255u8 {
            match Encoding::try_from(number) {
                Ok(encoding) => assert_eq!(u8::from(encoding), number),
                Err(error) => assert_eq!(error, UnknownEncoding(number)),
            }
        }
        assert!(Encoding::try_from(0).is_err() && Encoding::try_from(10).is_err());
    }

    #[test]
    fn the_registry_has_every_form_once() {
        for size in ClusterSize::ALL {
            let number = of_cluster(size);
            let (_, name) = REGISTRY.iter().find(|(other, _)| *other == number).unwrap();
            assert_eq!(*name, std::format!("cluster-{}", size.pages()));
        }
    }
}
