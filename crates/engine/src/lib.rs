//! Compression and decompression of pages and clusters as work that is submitted and completed.
//!
//! A front end submits [`Job`]s to an [`Engine`] and collects what has become of them from its
//! [`Mailbox`]. Compression is work in bulk that nobody waits for; decompression is what somebody waits
//! for, and comes first. Paper 000 compared an engine that does the work at once, on the thread that asks,
//! with one of threads of its own; paper 002 gave both kinds of work to coprocessors. So there are
//!
//! | engine | who does the work |
//! |---|---|
//! | [`Synchronous`] | the thread that submits, before `submit` returns: for one core |
//! | [`Workers`] | threads, as many as the work that waits is worth |
//!
//! and an accelerator is one more implementation of the trait: it takes jobs as it has room for them, and
//! delivers them in any order. `tests/engines.rs` has one.
//!
//! The agent in a program's process does not use this crate: there a page is decompressed in less time
//! than it takes to wake another thread, and no thread may come from the C library.

#![forbid(unsafe_code)]

mod clusters;
mod coder;
mod job;
mod mailbox;
mod synchronous;
mod workers;

use std::collections::VecDeque;
use std::sync::Arc;

pub use clusters::ClusterDecompressor;
pub use coder::{Coder, EngineError};
pub use job::{Done, Job, Outcome, Room, Task, object_room_bytes};
pub use mailbox::Mailbox;
pub use synchronous::Synchronous;
pub use workers::{Workers, WorkersConfig};

/// Does jobs.
pub trait Engine: Send + Sync {
    fn name(&self) -> &'static str;

    /// Takes jobs from the front of `jobs`, in order, as far as there is room for them now, and returns how
    /// many; the rest stay. What becomes of each is delivered to `mailbox`, once, in any order.
    fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize;

    fn depths(&self) -> Depths;
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
