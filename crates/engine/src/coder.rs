//! Jobs are done here, one at a time.

use ramfold_codec::{Choice, DecodeError, Encoding, Objective, Page, ScratchError, same_filled};
use ramfold_sys::time::thread_cpu_ns;

use crate::clusters::Clusters;
use crate::job::{Done, Job, Outcome, Task, TaskError};
use crate::pages::PageCodecs;
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

/// Does one job at a time, on the thread that calls it: what engines are made of.
pub struct Coder {
    pages: PageCodecs,
    clusters: Clusters,
}

impl Coder {
    /// A coder that compresses pages as `choice` says. It decompresses every encoding.
    ///
    /// # Errors
    /// [`EngineError::Codec`].
    pub fn new(choice: Choice) -> Result<Coder, EngineError> {
        let pages = PageCodecs::new(choice)
            .map_err(|source| EngineError::Codec { codec: choice, source })?;
        Ok(Coder { pages, clusters: Clusters::default() })
    }

    /// Does a job.
    pub fn run(&mut self, job: Job) -> Done {
        let Job { tag, task, mut room } = job;
        let mut compress_ns = 0;
        let outcome = match task {
            Task::Compress { objective, object_bytes_max } => {
                compress(&mut self.pages, objective, object_bytes_max, &mut room)
            }
            Task::Decompress { encoding, len } => {
                decompress(&mut self.pages, encoding, len, &mut room)
            }
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

fn compress(
    codecs: &mut PageCodecs,
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
    match codecs.compress(page, objective, &mut object[..most]) {
        Ok((encoding, len)) => Outcome::Compressed { encoding, len },
        Err(_) => Outcome::DoesNotFit,
    }
}

fn decompress(codecs: &mut PageCodecs, encoding: Encoding, len: usize, room: &mut Room) -> Outcome {
    let Room { content, object } = room;
    let Ok(page) = <&mut Page>::try_from(&mut **content) else {
        return Outcome::Damaged(DecodeError::Malformed("page size"));
    };
    // Longer than the room is longer than any object.
    let object = object.get(..len).unwrap_or(&[]);
    match codecs.decompress(encoding, object, page) {
        Ok(()) => Outcome::Decompressed,
        Err(error) => Outcome::Damaged(error),
    }
}
