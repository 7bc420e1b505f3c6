//! Requests that are under way, their memory, and how many there may be.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::handshake::Style;
use super::reply::{Asked, Head};
use super::request::{Command, Span};
use crate::Durability;

/// A request of more bytes is large.
pub(super) const SMALL_BYTES_MAX: usize = 32 << 10;
/// A request of more bytes is done in pieces of this length, one after the other.
pub(super) const LARGE_BYTES_MAX: usize = 1 << 20;
/// How many requests of a connection may be under way: small ones, and large ones.
const SMALL_JOBS_MAX: usize = 64;
const LARGE_JOBS_MAX: usize = 4;

/// A request under way: what is asked, its data, and the reply when it is there.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) asked: Asked,
    pub(super) command: Command,
    pub(super) span: Span,
    /// What is to be written, or what was read.
    pub(super) data: Vec<u8>,
    pub(super) reply: Reply,
    is_large: bool,
}

impl Job {
    pub(super) fn new(is_large: bool) -> Job {
        Job {
            asked: Asked { style: Style::Simple, cookie: 0, offset: 0 },
            command: Command::Write(Durability::AtFlush),
            span: Span { offset: 0, bytes: 0 },
            data: Vec::new(),
            reply: Reply::default(),
            is_large,
        }
    }

    pub(super) fn ask(&mut self, asked: Asked, command: Command, span: Span) {
        (self.asked, self.command, self.span) = (asked, command, span);
        self.reply.clear();
    }

    pub(super) fn is_large(&self) -> bool {
        self.is_large
    }

    /// Room for `bytes` bytes of data; what is in it is left from before.
    pub(super) fn room(&mut self, bytes: usize) -> &mut [u8] {
        if self.data.len() < bytes {
            self.data.resize(bytes, 0);
        }
        &mut self.data[..bytes]
    }

    /// The bytes of the reply, in order.
    pub(super) fn reply_parts(&self) -> impl Iterator<Item = &[u8]> {
        self.reply.parts.iter().map(|part| match part {
            Part::Head(range) => &self.reply.heads[range.clone()],
            Part::Data(range) => &self.data[range.clone()],
        })
    }
}

/// A reply: parts of the data, and what is in front of them.
#[derive(Debug, Default)]
pub(super) struct Reply {
    heads: Vec<u8>,
    parts: Vec<Part>,
    /// Scratch space for what makes a reply.
    pub(super) runs: Vec<(u64, u32)>,
}

#[derive(Debug)]
enum Part {
    Head(Range<usize>),
    Data(Range<usize>),
}

impl Reply {
    pub(super) fn clear(&mut self) {
        self.heads.clear();
        self.parts.clear();
    }

    pub(super) fn put(&mut self, head: &Head) {
        self.put_bytes(head.bytes());
    }

    pub(super) fn put_bytes(&mut self, bytes: &[u8]) {
        let begin = self.heads.len();
        self.heads.extend_from_slice(bytes);
        match self.parts.last_mut() {
            Some(Part::Head(range)) => range.end = self.heads.len(),
            _ => self.parts.push(Part::Head(begin..self.heads.len())),
        }
    }

    /// That part of the job's data.
    pub(super) fn put_data(&mut self, range: Range<usize>) {
        self.parts.push(Part::Data(range));
    }
}

/// The unsent bytes of these jobs' replies, of which the first `sent` are sent, as many slices as
/// there is room for. Returns how many.
pub(super) fn gather<'a>(
    jobs: impl Iterator<Item = &'a Job>,
    sent: usize,
    slices: &mut [IoSlice<'a>],
) -> usize {
    let mut sent = sent;
    let mut count = 0;
    for part in jobs.flat_map(Job::reply_parts) {
        if count == slices.len() {
            break;
        }
        let skipped = sent.min(part.len());
        sent -= skipped;
        if skipped < part.len() {
            slices[count] = IoSlice::new(&part[skipped..]);
            count += 1;
        }
    }
    count
}

/// The jobs that one connection may have under way, which bounds the memory it takes.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    state: Mutex<JobsState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct JobsState {
    small: Kind,
    large: Kind,
    is_awaited: bool,
}

#[derive(Debug, Default)]
struct Kind {
    #[expect(clippy::vec_box, reason = "a job goes from list to list, which is a pointer's move")]
    free: Vec<Box<Job>>,
    made: usize,
}

impl Jobs {
    /// A job for `bytes` bytes of data, if there may be another one.
    pub(super) fn try_take(&self, bytes: usize) -> Option<Box<Job>> {
        JobsState::take(&mut self.lock(), bytes > SMALL_BYTES_MAX)
    }

    /// The same; waits for one.
    pub(super) fn take(&self, bytes: usize) -> Box<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.take(bytes > SMALL_BYTES_MAX) {
                return job;
            }
            state = self.wait(state);
        }
    }

    pub(super) fn give_back(&self, job: Box<Job>) {
        let mut state = self.lock();
        let kind = if job.is_large { &mut state.large } else { &mut state.small };
        kind.free.push(job);
        if std::mem::take(&mut state.is_awaited) {
            self.returned.notify_all();
        }
    }

    /// Waits until no job is under way.
    pub(super) fn wait_for_all(&self) {
        let mut state = self.lock();
        while [&state.small, &state.large].iter().any(|kind| kind.free.len() < kind.made) {
            state = self.wait(state);
        }
    }

    fn wait<'a>(&'a self, mut state: MutexGuard<'a, JobsState>) -> MutexGuard<'a, JobsState> {
        state.is_awaited = true;
        self.returned.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobsState {
    fn take(&mut self, is_large: bool) -> Option<Box<Job>> {
        let (kind, most) = match is_large {
            true => (&mut self.large, LARGE_JOBS_MAX),
            false => (&mut self.small, SMALL_JOBS_MAX),
        };
        kind.free.pop().or_else(|| {
            (kind.made < most).then(|| {
                kind.made += 1;
                Box::new(Job::new(is_large))
            })
        })
    }
}
