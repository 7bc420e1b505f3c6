//! Compression and decompression of clusters, each with the memory it works in.
//!
//! A context of libzstd is kept for the next cluster: whenever one is made libzstd asks the
//! processor what it is, and on a virtual machine the hypervisor answers, three times 1.4 us.

use ramfold_codec::cluster::{self, ClusterCodec, ClusterSize};
use ramfold_codec::{DecodeError, DoesNotFit, Encoding, Page, ScratchError, same_filled};
use self_cell::{MutBorrow, self_cell};

use crate::job::{Outcome, TaskError};
use crate::room::Room;

type Scratch = MutBorrow<Box<[u8]>>;
type Compressor<'a> = cluster::Compressor<'a>;
type Decompressor<'a> = Option<cluster::Decompressor<'a>>;

self_cell!(
    struct CompressorCell {
        owner: Scratch,
        #[not_covariant]
        dependent: Compressor,
    }
);

self_cell!(
    struct DecompressorCell {
        owner: Scratch,
        #[not_covariant]
        dependent: Decompressor,
    }
);

fn scratch(bytes: usize) -> Scratch {
    MutBorrow::new(vec![0; bytes].into())
}

/// Compresses clusters of one size with one codec.
pub struct ClusterCompressor(CompressorCell);

impl ClusterCompressor {
    /// A compressor with memory of its own.
    ///
    /// # Errors
    /// As [`cluster::Compressor::new`].
    pub fn new(codec: ClusterCodec, size: ClusterSize) -> Result<ClusterCompressor, ScratchError> {
        let cell = CompressorCell::try_new(scratch(Self::bytes(codec, size)), |scratch| {
            cluster::Compressor::new(codec, size, scratch.borrow_mut())
        });
        cell.map(ClusterCompressor)
    }

    /// Bytes of that memory.
    pub fn bytes(codec: ClusterCodec, size: ClusterSize) -> usize {
        cluster::compress_scratch_bytes(codec, size)
    }

    /// Compresses `cluster` into the front of `object`, and returns the object's length in bytes.
    ///
    /// # Errors
    /// As [`cluster::Compressor::compress`].
    pub fn compress(&mut self, cluster: &[u8], object: &mut [u8]) -> Result<usize, DoesNotFit> {
        self.0.with_dependent_mut(|_, compressor| compressor.compress(cluster, object))
    }
}

/// Decompresses clusters of any size and encoding.
pub struct ClusterDecompressor(DecompressorCell);

impl ClusterDecompressor {
    /// A decompressor with memory of its own.
    pub fn new() -> ClusterDecompressor {
        let scratch = scratch(cluster::decompress_scratch_bytes());
        ClusterDecompressor(DecompressorCell::new(scratch, |scratch| {
            cluster::Decompressor::new(scratch.borrow_mut()).ok()
        }))
    }

    /// Decompresses `object` into `cluster`, which it fills.
    ///
    /// # Errors
    /// As [`cluster::Decompressor::decompress`].
    pub fn decompress(
        &mut self,
        encoding: Encoding,
        object: &[u8],
        cluster: &mut [u8],
    ) -> Result<(), DecodeError> {
        self.0.with_dependent_mut(|_, decompressor| {
            let decompressor = decompressor.as_mut().ok_or(DecodeError::NoScratch { encoding })?;
            decompressor.decompress(encoding, object, cluster)
        })
    }
}

impl Default for ClusterDecompressor {
    fn default() -> ClusterDecompressor {
        ClusterDecompressor::new()
    }
}

/// Does the clusters' tasks.
#[derive(Default)]
pub(crate) struct Clusters {
    compressor: Option<(ClusterCodec, ClusterSize, ClusterCompressor)>,
    decompressor: Option<ClusterDecompressor>,
}

impl Clusters {
    pub(crate) fn compress(
        &mut self,
        codec: ClusterCodec,
        object_bytes_max: usize,
        room: &mut Room,
    ) -> Outcome {
        let Room { content, object } = room;
        if let Some(word) = same_filled_cluster(content) {
            return Outcome::SameFilled(word);
        }
        let Some(size) = ClusterSize::of_bytes(content.len()) else {
            return Outcome::Refused(TaskError::ClusterSize { bytes: content.len() });
        };
        let compressor = match self.compressor(codec, size) {
            Ok(compressor) => compressor,
            Err(source) => {
                return Outcome::Refused(TaskError::Codec { codec: codec.into(), source });
            }
        };
        let most = object_bytes_max.min(object.len());
        let out = &mut object[..most];
        match compressor.compress(content, out) {
            Ok(len) => Outcome::Compressed { encoding: codec.encoding(), len },
            Err(_) => Outcome::DoesNotFit,
        }
    }

    /// The compressor for this codec and size, kept from the last cluster if that had the same.
    fn compressor(
        &mut self,
        codec: ClusterCodec,
        size: ClusterSize,
    ) -> Result<&mut ClusterCompressor, ScratchError> {
        let fits = |kept: &(ClusterCodec, ClusterSize, _)| (kept.0, kept.1) == (codec, size);
        let kept = match self.compressor.take().filter(fits) {
            Some(kept) => kept,
            None => (codec, size, ClusterCompressor::new(codec, size)?),
        };
        let (.., compressor) = self.compressor.insert(kept);
        Ok(compressor)
    }

    pub(crate) fn decompress(
        &mut self,
        encoding: Encoding,
        len: usize,
        room: &mut Room,
    ) -> Outcome {
        let Room { content, object } = room;
        let object = object.get(..len).unwrap_or(&[]);
        let decompressor = self.decompressor.get_or_insert_default();
        match decompressor.decompress(encoding, object, content) {
            Ok(()) => Outcome::Decompressed,
            Err(error) => Outcome::Damaged(error),
        }
    }
}

/// The word, if all pages are the same one repeated.
fn same_filled_cluster(content: &[u8]) -> Option<u64> {
    let (pages, rest) = content.as_chunks();
    let word = same_filled(pages.first()?)?;
    let same =
        rest.is_empty() && pages[1..].iter().all(|page: &Page| same_filled(page) == Some(word));
    same.then_some(word)
}
