//! What a server did.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::request::Command;

/// What a server did since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Clients that are connected.
    pub connections_now: u64,
    /// Clients that were connected.
    pub connections: u64,
    /// Clients that came when there were as many as there may be.
    pub connections_refused: u64,
    /// Clients whose bytes were no NBD or no TLS, whose certificate was not trusted, or that were
    /// in the handshake for too long.
    pub connections_dropped: u64,
    /// READ requests.
    pub reads: u64,
    /// Bytes that they asked for.
    pub read_bytes: u64,
    /// WRITE requests.
    pub writes: u64,
    /// Bytes that they carried.
    pub written_bytes: u64,
    /// TRIM requests.
    pub trims: u64,
    /// WRITE_ZEROES requests.
    pub zeroes: u64,
    /// FLUSH requests.
    pub flushes: u64,
    /// CACHE requests.
    pub caches: u64,
    /// BLOCK_STATUS requests.
    pub statuses: u64,
    /// Requests that were refused: out of range, unknown, or with wrong flags.
    pub requests_refused: u64,
    /// Requests that the device could not do.
    pub requests_failed: u64,
    /// Requests that other threads did than the one that read them.
    pub requests_handed_over: u64,
}

/// The same while it is counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) dropped: AtomicU64,
    by_command: [(AtomicU64, AtomicU64); 7],
    pub(super) requests_refused: AtomicU64,
    pub(super) requests_failed: AtomicU64,
    pub(super) handed_over: AtomicU64,
}

/// One more. Relaxed: nothing is read by it.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn request(&self, command: Command, bytes: u64) {
        let nth = match command {
            Command::Read { .. } => 0,
            Command::Write(_) => 1,
            Command::Trim(_) => 2,
            Command::Zero(..) => 3,
            Command::Flush => 4,
            Command::Cache => 5,
            Command::Status { .. } => 6,
        };
        count(&self.by_command[nth].0);
        self.by_command[nth].1.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn statistics(&self, connections_now: u64) -> Statistics {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = |nth: usize| load(&self.by_command[nth].0);
        Statistics {
            connections_now,
            connections: load(&self.connections),
            connections_refused: load(&self.refused),
            connections_dropped: load(&self.dropped),
            reads: requests(0),
            read_bytes: load(&self.by_command[0].1),
            writes: requests(1),
            written_bytes: load(&self.by_command[1].1),
            trims: requests(2),
            zeroes: requests(3),
            flushes: requests(4),
            caches: requests(5),
            statuses: requests(6),
            requests_refused: load(&self.requests_refused),
            requests_failed: load(&self.requests_failed),
            requests_handed_over: load(&self.handed_over),
        }
    }
}
