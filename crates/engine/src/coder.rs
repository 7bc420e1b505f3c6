//! A compressor and a decompressor with the memory they work in.

use ramfold_codec::{
    Choice, Chosen, DecodeError, Decompressor, MAX_DECOMPRESS_SCRATCH_BYTES, Page, ScratchError,
    same_filled,
};
use ramfold_sys::time::thread_cpu_ns;
use self_cell::{MutBorrow, self_cell};

use crate::clusters::Clusters;
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
