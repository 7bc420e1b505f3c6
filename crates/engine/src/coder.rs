//! A compressor and a decompressor with the memory they work in.

use ramfold_codec::cluster::{self, ClusterCodec, ClusterSize};
use ramfold_codec::{
    Choice, Chosen, DecodeError, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES, Page,
    ScratchError, same_filled,
};
use ramfold_sys::time::thread_cpu_ns;
use self_cell::{MutBorrow, self_cell};

use crate::job::{Done, Job, Outcome, Room, Task};

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("cannot prepare the codec {codec}: {source}")]
    Codec { codec: Choice, source: ScratchError },
    #[error("cannot start a thread that compresses: {0}")]
    Thread(std::io::Error),
}

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

/// Does one job at a time.
pub struct Coder {
    pages: Cell,
    clusters: Clusters,
}

impl Coder {
    /// # Errors
    /// [`EngineError::Codec`].
    pub fn new(choice: Choice) -> Result<Coder, EngineError> {
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
        let pages = cell.map_err(|source| EngineError::Codec { codec: choice, source })?;
        Ok(Coder { pages, clusters: Clusters::default() })
    }

    pub fn run(&mut self, job: Job) -> Done {
        let Job { tag, task, mut room } = job;
        let mut compress_ns = 0;
        let outcome = match task {
            Task::CompressCluster { codec, object_bytes_max } => {
                let before = thread_cpu_ns();
                let outcome = self.clusters.compress(codec, object_bytes_max, &mut room);
                compress_ns = thread_cpu_ns() - before;
                outcome
            }
            Task::DecompressCluster { encoding, len } => {
                self.clusters.decompress(encoding, len, &mut room)
            }
            _ => self.pages.with_dependent_mut(|_, codecs| codecs.run(task, &mut room)),
        };
        Done { tag, outcome, room, compress_ns }
    }
}

/// Codes clusters of any size with any codec: what is needed is made for each, in scratch that stays.
#[derive(Default)]
struct Clusters {
    scratch: Vec<u8>,
}

impl Clusters {
    fn scratch(&mut self, bytes: usize) -> &mut [u8] {
        if self.scratch.len() < bytes {
            self.scratch.resize(bytes, 0);
        }
        &mut self.scratch
    }

    fn compress(
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
        let scratch = self.scratch(cluster::compress_scratch_bytes(codec, size));
        // Too little scratch is no case; that libzstd refuses it would be one of a page that stays as it is.
        let Ok(mut compressor) = cluster::Compressor::new(codec, size, scratch) else {
            return Outcome::DoesNotFit;
        };
        let most = object_bytes_max.min(object.len());
        match compressor.compress(content, &mut object[..most]) {
            Ok(len) => Outcome::Compressed { encoding: codec.encoding(), len },
            Err(_) => Outcome::DoesNotFit,
        }
    }

    fn decompress(&mut self, encoding: Encoding, len: usize, room: &mut Room) -> Outcome {
        let scratch = self.scratch(cluster::decompress_scratch_bytes());
        let Ok(mut decompressor) = cluster::Decompressor::new(scratch) else {
            return Outcome::Damaged(DecodeError::NoScratch { encoding });
        };
        let object = room.object.get(..len).unwrap_or(&[]);
        match decompressor.decompress(encoding, object, &mut room.content) {
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

impl Codecs<'_> {
    fn run(&mut self, task: Task, room: &mut Room) -> Outcome {
        let Room { content, object } = room;
        let page = <&mut Page>::try_from(&mut **content);
        match (task, page) {
            (Task::Compress { aim, object_bytes_max }, Ok(page)) => {
                if let Some(word) = same_filled(page) {
                    return Outcome::SameFilled(word);
                }
                let most = object_bytes_max.min(object.len());
                match self.compressor.compress(page, aim, &mut object[..most]) {
                    Ok((encoding, len)) => Outcome::Compressed { encoding, len },
                    Err(_) => Outcome::DoesNotFit,
                }
            }
            (Task::Decompress { encoding, len }, Ok(page)) => {
                // Longer than the room is longer than any object.
                let object = object.get(..len).unwrap_or(&[]);
                match self.decompressor.decompress(encoding, object, page) {
                    Ok(()) => Outcome::Decompressed,
                    Err(error) => Outcome::Damaged(error),
                }
            }
            (Task::Decompress { .. }, Err(_)) => {
                Outcome::Damaged(DecodeError::Malformed("page size"))
            }
            // Clusters' tasks are done elsewhere.
            _ => Outcome::DoesNotFit,
        }
    }
}
