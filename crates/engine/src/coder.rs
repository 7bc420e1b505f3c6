//! A compressor and a decompressor with the memory they work in.

use ramfold_codec::{
    Choice, Chosen, Decompressor, MAX_DECOMPRESS_SCRATCH_BYTES, ScratchError, same_filled,
};
use self_cell::{MutBorrow, self_cell};

use crate::job::{Done, Job, OBJECT_ROOM_BYTES, Outcome, Room, Task};

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
pub struct Coder(Cell);

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
        cell.map(Coder).map_err(|source| EngineError::Codec { codec: choice, source })
    }

    pub fn run(&mut self, job: Job) -> Done {
        let Job { tag, task, mut room } = job;
        let outcome = self.0.with_dependent_mut(|_, codecs| codecs.run(task, &mut room));
        Done { tag, outcome, room }
    }
}

impl Codecs<'_> {
    fn run(&mut self, task: Task, room: &mut Room) -> Outcome {
        match task {
            Task::Compress { aim, object_bytes_max } => {
                if let Some(word) = same_filled(&room.page) {
                    return Outcome::SameFilled(word);
                }
                let out = &mut room.object[..object_bytes_max.min(OBJECT_ROOM_BYTES)];
                match self.compressor.compress(&room.page, aim, out) {
                    Ok((encoding, len)) => Outcome::Compressed { encoding, len },
                    Err(_) => Outcome::DoesNotFit,
                }
            }
            Task::Decompress { encoding, len } => {
                // Longer than the room is longer than any object.
                let object = room.object.get(..len).unwrap_or(&[]);
                match self.decompressor.decompress(encoding, object, &mut room.page) {
                    Ok(()) => Outcome::Decompressed,
                    Err(error) => Outcome::Damaged(error),
                }
            }
        }
    }
}
