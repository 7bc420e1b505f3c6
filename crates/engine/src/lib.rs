//! Compression and decompression of pages and clusters as work that is submitted and completed.
//!
//! A front end submits [`Job`]s to an [`Engine`] and collects the finished ones from its
//! [`Mailbox`]. Nobody waits for compression, which is done in bulk; somebody waits for
//! decompression, which comes first. Paper 000 compared an engine that does the work at once, on
//! the thread that asks, with one that has threads of its own; paper 002 gave both kinds of work to
//! coprocessors. So there are
//!
//! | engine | who does the work |
//! |---|---|
//! | [`Synchronous`] | the thread that submits, before `submit` returns: for one core |
//! | [`Workers`] | threads, as many as the work that waits is worth |
//!
//! and an accelerator is one more implementation of the trait. It takes jobs as it has room for
//! them and delivers them in any order; it refuses the tasks that it does not have
//! ([`TaskError::Unsupported`]); and it can have its submitters put pages and objects where its
//! device reads them ([`Engine::room`]). `tests/engines.rs` has one.
//!
//! The agent in a program's process does not use this crate: there a page is decompressed in less
//! time than it takes to wake another thread, and no thread may come from the C library.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod clusters;
mod coder;
mod job;
mod mailbox;
mod pages;
mod room;
mod synchronous;
mod workers;

use std::collections::VecDeque;
use std::sync::Arc;

pub use clusters::{ClusterCompressor, ClusterDecompressor};
pub use coder::{Coder, EngineError};
pub use job::{Done, Job, Outcome, Task, TaskError};
pub use mailbox::Mailbox;
pub use pages::PageCodecs;
pub use room::{Buffer, Room};
pub use synchronous::Synchronous;
pub use workers::{Workers, WorkersConfig};

/// Does jobs.
pub trait Engine: Send + Sync {
    /// A name for reports.
    fn name(&self) -> &'static str;

    /// Takes jobs from the front of `jobs`, in order, as many as the engine has room for now, and
    /// returns their number; the others stay. Each is delivered to `mailbox` when it is finished,
    /// once, in any order.
    ///
    /// An engine tells the mailbox of the jobs that it takes ([`Mailbox::expect`]) before it can
    /// finish any of them.
    fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize;

    /// What waits now.
    fn depths(&self) -> Depths;

    /// Room for `content_bytes` of content and their object, in the memory that the engine works
    /// in: one whose device reads pinned memory lends it ([`Buffer::lent`]), and content is not
    /// copied in between. Every engine takes jobs in any room; a submitter that uses its rooms
    /// again gains most.
    fn room(&self, content_bytes: usize) -> Room {
        Room::of(content_bytes, Buffer::on_heap)
    }
}

/// What an engine has before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Pages that wait to be compressed.
    pub compress: usize,
    /// Objects that wait to be decompressed.
    pub decompress: usize,
    /// Threads there are, asleep or not; 0 where the work is done elsewhere.
    pub workers: usize,
}
