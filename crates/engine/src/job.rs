//! What is asked of an engine, and what it answers.

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_codec::{Codec, DecodeError, Encoding, Objective, PAGE_SIZE, ScratchError};

use crate::room::Room;

/// What an engine does with the content of a [`Room`]. An engine matches all tasks: one that it
/// does not have is refused ([`TaskError::Unsupported`]), so that a new task cannot be taken for
/// content that does not compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Compresses the page in the room, with the codec that the engine was made for.
    Compress {
        /// What the page is compressed for; only `auto` tells the two apart.
        objective: Objective,
        /// Most bytes that the object may have.
        object_bytes_max: usize,
    },
    /// Decompresses an object into the page of the room.
    Decompress {
        /// The object's format.
        encoding: Encoding,
        /// The object's length: the first bytes of the room's object.
        len: usize,
    },
    /// Compresses the cluster in the room.
    CompressCluster {
        /// With this codec.
        codec: ClusterCodec,
        /// Most bytes that the object may have.
        object_bytes_max: usize,
    },
    /// Decompresses an object into the cluster of the room.
    DecompressCluster {
        /// The object's format.
        encoding: Encoding,
        /// The object's length: the first bytes of the room's object.
        len: usize,
    },
}

/// A task and the memory that it works in.
pub struct Job {
    /// The submitter's name for it, which comes back with the answer.
    pub tag: u64,
    /// What is to be done.
    pub task: Task,
    /// Content and object.
    pub room: Room,
}

impl Job {
    /// Whether somebody waits for it.
    pub(crate) fn is_urgent(&self) -> bool {
        match self.task {
            Task::Decompress { .. } | Task::DecompressCluster { .. } => true,
            Task::Compress { .. } | Task::CompressCluster { .. } => false,
        }
    }
}

/// A finished job.
pub struct Done {
    /// As submitted.
    pub tag: u64,
    /// How the task ended.
    pub outcome: Outcome,
    /// The room of the job, with what the task has written.
    pub room: Room,
    /// CPU time, in nanoseconds, of the thread that compressed a cluster. 0 for other tasks, which
    /// take little longer than a look at the clock.
    pub compress_ns: u64,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The page or cluster is this word of 64 bits repeated; there is no object.
    SameFilled(u64),
    /// The object is in the room.
    Compressed {
        /// Its format.
        encoding: Encoding,
        /// Its length: the first bytes of the room's object.
        len: usize,
    },
    /// The object would have been longer than the task allows, or the codec finds nothing to
    /// compress.
    DoesNotFit,
    /// The page or cluster is in the room.
    Decompressed,
    /// The bytes are no object of that page or cluster size in that format.
    Damaged(DecodeError),
    /// Nothing was done: the task or its room is wrong.
    Refused(TaskError),
}

/// Why an engine does not do a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TaskError {
    /// The room's content is not a page.
    #[error("a page has {PAGE_SIZE} bytes, and the content of the room {bytes}")]
    PageSize {
        /// Bytes of the room's content.
        bytes: usize,
    },
    /// The room's content is not a cluster.
    #[error(
        "a cluster has {}, {} or {} bytes, and the content of the room {bytes}",
        ClusterSize::One.bytes(),
        ClusterSize::Four.bytes(),
        ClusterSize::Sixteen.bytes()
    )]
    ClusterSize {
        /// Bytes of the room's content.
        bytes: usize,
    },
    /// A codec does not start.
    #[error("cannot prepare the codec {codec}: {source}")]
    Codec {
        /// The codec.
        codec: Codec,
        /// Its reason.
        source: ScratchError,
    },
    /// The engine has no such task.
    #[error("the engine cannot do this task")]
    Unsupported,
}
