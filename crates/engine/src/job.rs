//! What is asked of an engine, and what it answers.

use ramfold_codec::{Aim, DecodeError, Encoding, PAGE_SIZE, Page};

/// Room for an object: a codec may write this much before it knows that a page does not fit.
pub const OBJECT_ROOM_BYTES: usize = PAGE_SIZE + 64;

/// Memory for a page and its object. It travels with the job, so that an engine allocates nothing.
#[derive(Clone)]
pub struct Room {
    pub page: Page,
    pub object: [u8; OBJECT_ROOM_BYTES],
}

impl Room {
    pub fn new() -> Box<Room> {
        Box::new(Room { page: [0; PAGE_SIZE], object: [0; OBJECT_ROOM_BYTES] })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Compresses the page into the object, of at most so many bytes.
    Compress { aim: Aim, object_bytes_max: usize },
    /// Decompresses the first bytes of the object into the page.
    Decompress { encoding: Encoding, len: usize },
}

pub struct Job {
    /// The submitter's name for it.
    pub tag: u64,
    pub task: Task,
    pub room: Box<Room>,
}

impl Job {
    /// Whether somebody waits for it.
    pub fn is_urgent(&self) -> bool {
        matches!(self.task, Task::Decompress { .. })
    }
}

/// What has become of a job.
pub struct Done {
    pub tag: u64,
    pub outcome: Outcome,
    pub room: Box<Room>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The page is this word 512 times; there is no object.
    SameFilled(u64),
    Compressed {
        encoding: Encoding,
        len: usize,
    },
    /// The object would have been longer than was asked for.
    DoesNotFit,
    /// The page is in the room.
    Decompressed,
    /// The object is no page in its encoding.
    Damaged(DecodeError),
}
