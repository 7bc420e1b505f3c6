//! Compressing and decompressing clusters in memory of one's own.
//!
//! What is needed for one cluster is kept for the next: libzstd asks the processor what it is whenever a context is
//! made, and on a virtual machine the hypervisor answers, three times 1.4 us.

use ramfold_codec::cluster::{self, ClusterCodec, ClusterSize};
use ramfold_codec::{DecodeError, Encoding, Page, same_filled};
use self_cell::{MutBorrow, self_cell};

use crate::job::{Outcome, Room};

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

/// Decompresses clusters of any size and encoding.
pub struct ClusterDecompressor(DecompressorCell);

impl ClusterDecompressor {
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
    compressor: Option<(ClusterCodec, ClusterSize, CompressorCell)>,
    decompressor: Option<ClusterDecompressor>,
}

impl Clusters {
    pub fn compress(
        &mut self,
        codec: ClusterCodec,
        object_bytes_max: usize,
        room: &mut Room,
    ) -> Outcome {
        let Room { content, object } = room;
        if let Some(word) = same_filled_cluster(content) {
            return Outcome::SameFilled(word);
        }
        let Some(size) = ClusterSize::of_bytes(content.len()) else { return Outcome::DoesNotFit };
        // Too little scratch is no case; that libzstd refuses it would be one of a page that stays as it is.
        let Some(cell) = self.compressor(codec, size) else { return Outcome::DoesNotFit };
        let most = object_bytes_max.min(object.len());
        let out = &mut object[..most];
        match cell.with_dependent_mut(|_, compressor| compressor.compress(content, out)) {
            Ok(len) => Outcome::Compressed { encoding: codec.encoding(), len },
            Err(_) => Outcome::DoesNotFit,
        }
    }

    /// The one for this codec and size. It is made anew only when they are others than the last time.
    fn compressor(
        &mut self,
        codec: ClusterCodec,
        size: ClusterSize,
    ) -> Option<&mut CompressorCell> {
        let fits = |kept: &(ClusterCodec, ClusterSize, _)| (kept.0, kept.1) == (codec, size);
        if !self.compressor.as_ref().is_some_and(fits) {
            let scratch = scratch(cluster::compress_scratch_bytes(codec, size));
            let cell = CompressorCell::try_new(scratch, |scratch| {
                cluster::Compressor::new(codec, size, scratch.borrow_mut())
            });
            self.compressor = Some((codec, size, cell.ok()?));
        }
        self.compressor.as_mut().map(|(.., cell)| cell)
    }

    pub fn decompress(&mut self, encoding: Encoding, len: usize, room: &mut Room) -> Outcome {
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
