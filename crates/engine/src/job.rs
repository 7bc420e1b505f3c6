//! What is asked of an engine, and what it answers.

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_codec::{Aim, DecodeError, Encoding, PAGE_SIZE};

/// Room for the object of `bytes`: a codec may write this much before it knows that it does not fit.
pub const fn object_room_bytes(bytes: usize) -> usize {
    bytes + 64
}

/// Memory for a page or a cluster and its object. It travels with the job, so that an engine allocates
/// nothing.
#[derive(Clone)]
pub struct Room {
    pub content: Box<[u8]>,
    pub object: Box<[u8]>,
}

impl Room {
    pub fn for_page() -> Room {
        Room::of(PAGE_SIZE)
    }

    pub fn for_cluster(size: ClusterSize) -> Room {
        Room::of(size.bytes())
    }

    fn of(bytes: usize) -> Room {
        Room { content: vec![0; bytes].into(), object: vec![0; object_room_bytes(bytes)].into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Compresses the page into the object, of at most so many bytes, as the engine was told.
    Compress { aim: Aim, object_bytes_max: usize },
    /// Decompresses the first bytes of the object into the page.
    Decompress { encoding: Encoding, len: usize },
    /// Compresses the cluster into the object, of at most so many bytes, with this codec.
    CompressCluster { codec: ClusterCodec, object_bytes_max: usize },
    /// Decompresses the first bytes of the object into the cluster.
    DecompressCluster { encoding: Encoding, len: usize },
}

pub struct Job {
    /// The submitter's name for it.
    pub tag: u64,
    pub task: Task,
    pub room: Room,
}

impl Job {
    /// Whether somebody waits for it.
    pub fn is_urgent(&self) -> bool {
        matches!(self.task, Task::Decompress { .. } | Task::DecompressCluster { .. })
    }
}

/// What has become of a job.
pub struct Done {
    pub tag: u64,
    pub outcome: Outcome,
    pub room: Room,
    /// CPU time of the thread that compressed a cluster; 0 of other tasks, which take hardly longer than
    /// finding it out.
    pub compress_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The page or cluster is this word again and again; there is no object.
    SameFilled(u64),
    Compressed {
        encoding: Encoding,
        len: usize,
    },
    /// The object would have been longer than was asked for.
    DoesNotFit,
    /// The page or cluster is in the room.
    Decompressed,
    /// The object is none of that size in its encoding.
    Damaged(DecodeError),
}
