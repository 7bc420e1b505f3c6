//! Codecs of pages, with the memory that they work in.

use ramfold_codec::{
    Choice, Chosen, DecodeError, Decompressor, DoesNotFit, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES,
    Objective, Page, ScratchError,
};
use self_cell::{MutBorrow, self_cell};

struct Scratch {
    compress: Box<[u8]>,
    decompress: Box<[u8]>,
}

struct Codecs<'a> {
    compressor: Chosen<'a>,
    decompressor: Decompressor<'a>,
}

self_cell!(
    struct Cell {
        owner: MutBorrow<Scratch>,
        #[not_covariant]
        dependent: Codecs,
    }
);

/// Compresses pages as was chosen, and decompresses every encoding. It asks for no memory once it
/// is there.
pub struct PageCodecs(Cell);

impl PageCodecs {
    /// Reserves the memory.
    ///
    /// # Errors
    /// When a codec does not start.
    pub fn new(choice: Choice) -> Result<PageCodecs, ScratchError> {
        let scratch = Scratch {
            compress: vec![0; choice.scratch_bytes()].into(),
            decompress: vec![0; MAX_DECOMPRESS_SCRATCH_BYTES].into(),
        };
        let cell = Cell::try_new(MutBorrow::new(scratch), |scratch| {
            let Scratch { compress, decompress } = scratch.borrow_mut();
            Ok(Codecs {
                compressor: Chosen::new(choice, compress)?,
                decompressor: Decompressor::new(decompress)?,
            })
        });
        cell.map(PageCodecs)
    }

    /// The memory, in bytes.
    pub fn bytes(choice: Choice) -> usize {
        choice.scratch_bytes() + MAX_DECOMPRESS_SCRATCH_BYTES
    }

    /// Compresses a page into `object`. Returns the encoding and the object's length.
    ///
    /// # Errors
    /// When it does not fit there.
    pub fn compress(
        &mut self,
        page: &Page,
        objective: Objective,
        object: &mut [u8],
    ) -> Result<(Encoding, usize), DoesNotFit> {
        self.0.with_dependent_mut(|_, codecs| codecs.compressor.compress(page, objective, object))
    }

    /// Decompresses an object.
    ///
    /// # Errors
    /// When it is none of that encoding.
    pub fn decompress(
        &mut self,
        encoding: Encoding,
        object: &[u8],
        page: &mut Page,
    ) -> Result<(), DecodeError> {
        self.0
            .with_dependent_mut(|_, codecs| codecs.decompressor.decompress(encoding, object, page))
    }

    /// Decompresses an object of several pages into `cluster`, which it fills.
    ///
    /// # Errors
    /// When it is none of that encoding and size, or clusters do not have that encoding.
    pub fn decompress_cluster(
        &mut self,
        encoding: Encoding,
        object: &[u8],
        cluster: &mut [u8],
    ) -> Result<(), DecodeError> {
        self.0.with_dependent_mut(|_, codecs| {
            codecs.decompressor.decompress_cluster(encoding, object, cluster)
        })
    }
}
