//! A compressor and a decompressor with the memory they work in.

use ramfold_codec::{
    Choice, Chosen, DecodeError, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES, Objective,
    Page, ScratchError, same_filled,
};
use ramfold_sys::time::thread_cpu_ns;
use self_cell::{MutBorrow, self_cell};

use crate::clusters::Clusters;
use crate::job::{Done, Job, Outcome, Task, TaskError};
use crate::room::Room;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The codec does not start.
    #[error("cannot prepare the codec {codec}: {source}")]
    Codec {
        /// The codec, or `auto`.
        codec: Choice,
        /// Its reason.
        source: ScratchError,
    },
    /// The system starts no thread.
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

/// Does one job at a time, on the thread that calls it: what engines are made of.
pub struct Coder {
    pages: Cell,
    clusters: Clusters,
}

impl Coder {
    /// A coder that compresses pages as `choice` says. It decompresses every encoding.
    ///
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

    /// Does a job.
    pub fn run(&mut self, job: Job) -> Done {
        let Job { tag, task, mut room } = job;
        let mut compress_ns = 0;
        let outcome = match task {
            Task::Compress { objective, object_bytes_max } => {
                self.pages.with_dependent_mut(|_, codecs| {
                    codecs.compress(objective, object_bytes_max, &mut room)
                })
            }
            Task::Decompress { encoding, len } => self
                .pages
                .with_dependent_mut(|_, codecs| codecs.decompress(encoding, len, &mut room)),
            Task::CompressCluster { codec, object_bytes_max } => {
                let before = thread_cpu_ns();
                let outcome = self.clusters.compress(codec, object_bytes_max, &mut room);
                compress_ns = thread_cpu_ns() - before;
                outcome
            }
            Task::DecompressCluster { encoding, len } => {
                self.clusters.decompress(encoding, len, &mut room)
            }
        };
        Done { tag, outcome, room, compress_ns }
    }
}

impl Codecs<'_> {
    fn compress(
        &mut self,
        objective: Objective,
        object_bytes_max: usize,
        room: &mut Room,
    ) -> Outcome {
        let Room { content, object } = room;
        let Ok(page) = <&Page>::try_from(&**content) else {
            return Outcome::Refused(TaskError::PageSize { bytes: content.len() });
        };
        if let Some(word) = same_filled(page) {
            return Outcome::SameFilled(word);
        }
        let most = object_bytes_max.min(object.len());
        match self.compressor.compress(page, objective, &mut object[..most]) {
            Ok((encoding, len)) => Outcome::Compressed { encoding, len },
            Err(_) => Outcome::DoesNotFit,
        }
    }

    fn decompress(&mut self, encoding: Encoding, len: usize, room: &mut Room) -> Outcome {
        let Room { content, object } = room;
        let Ok(page) = <&mut Page>::try_from(&mut **content) else {
            return Outcome::Damaged(DecodeError::Malformed("page size"));
        };
        // Longer than the room is longer than any object.
        let object = object.get(..len).unwrap_or(&[]);
        match self.decompressor.decompress(encoding, object, page) {
            Ok(()) => Outcome::Decompressed,
            Err(error) => Outcome::Damaged(error),
        }
    }
}
