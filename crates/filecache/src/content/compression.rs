//! What has been read from SOURCE is compressed in the background and stored.
//!
//! A thread of its own hands clusters to the engine and stores what comes back. When it does not come after, what is
//! read from a disk that is faster than the codec is not kept. Whoever reads from a slower one waits, having
//! answered: disks give bursts, and on the whole there is time to compress what they give.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_engine::{Done, Engine, Job, Mailbox, Outcome, Room, Task, object_room_bytes};

use super::clusters::{Object, object_bytes_max};
use super::{Content, Shared, Ticket, locked};

/// How long the thread waits for more before it sleeps: being woken costs as much as compressing a page.
const LINGER: Duration = Duration::from_millis(5);
/// How long a reader waits at most for room for a cluster.
const PATIENCE: Duration = Duration::from_millis(100);
/// Clusters that are worth waking it for meanwhile.
const BATCH: usize = 16;

/// Clusters on their way into the pool.
pub struct Compression {
    queue: Mutex<Queue>,
    arrived: Condvar,
    stored: Condvar,
    /// Most memory for clusters that wait or are being compressed.
    bytes_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Pending, Room)>,
    /// Clusters from here until they are stored.
    count: usize,
    /// Memory of all rooms, and those of them that are free. They are kept as long as there is work: the heap would
    /// keep more than it gives back.
    bytes: usize,
    free: Vec<Room>,
    idle: bool,
    stopping: bool,
    /// Nanoseconds that a byte takes, of late, with all threads at work; 0: not known.
    ns_per_byte: f64,
}

/// Where a cluster was read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// In SOURCE, which of late has taken so long for a byte.
    Source { ns_per_byte: f64 },
    /// In the pool, as part of a larger one: what comes from SOURCE goes first.
    Pool,
}

/// A cluster that was read.
struct Pending {
    content: Arc<Content>,
    ticket: Ticket,
    /// Its first page in the file.
    page: u64,
    codec: ClusterCodec,
}

impl Queue {
    /// Room for a cluster, where there is any within so much memory.
    fn room(&mut self, size: ClusterSize, bytes_max: usize) -> Option<Room> {
        if self.stopping {
            return None;
        }
        let fits = |room: &Room| room.content.len() == size.bytes();
        if let Some(place) = self.free.iter().rposition(fits) {
            return Some(self.free.swap_remove(place));
        }
        let bytes = size.bytes() + object_room_bytes(size.bytes());
        self.drop_free((self.bytes + bytes).saturating_sub(bytes_max));
        if self.bytes + bytes > bytes_max {
            return None;
        }
        self.bytes += bytes;
        Some(Room::for_cluster(size))
    }

    /// Gives back at least so much memory, or all that is free.
    fn drop_free(&mut self, bytes: usize) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target
            && let Some(room) = self.free.pop()
        {
            self.bytes -= room.content.len() + room.object.len();
        }
    }
}

impl Compression {
    pub fn new(bytes_max: usize) -> Compression {
        Compression {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            stored: Condvar::new(),
            bytes_max,
        }
    }

    /// Memory for clusters that wait or are being compressed, and for more.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Whether there is anything to do.
    #[cfg(test)]
    pub fn is_at_work(&self) -> bool {
        self.lock().count > 0
    }

    #[cfg(test)]
    pub fn ns_per_byte(&self) -> f64 {
        self.lock().ns_per_byte
    }

    /// Takes a cluster of the file that begins at that page; `false` when there is too much to do already.
    pub fn offer(
        &self,
        content: &Arc<Content>,
        ticket: Ticket,
        page: u64,
        codec: ClusterCodec,
        cluster: &[u8],
        origin: Origin,
    ) -> bool {
        let Some(size) = ClusterSize::of_bytes(cluster.len()) else { return false };
        let mut queue = self.lock();
        let bytes_max = match origin {
            Origin::Source { .. } => self.bytes_max,
            Origin::Pool => self.bytes_max / 2,
        };
        let mut room = queue.room(size, bytes_max);
        let is_slower =
            matches!(origin, Origin::Source { ns_per_byte } if ns_per_byte > queue.ns_per_byte);
        if room.is_none() && is_slower {
            let started = Instant::now();
            while room.is_none() && !queue.stopping && started.elapsed() < PATIENCE {
                let waited = self.stored.wait_timeout(queue, PATIENCE);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                room = queue.room(size, bytes_max);
            }
        }
        let Some(mut room) = room else { return false };
        queue.count += 1;
        drop(queue);
        room.content.copy_from_slice(cluster);
        let pending = Pending { content: Arc::clone(content), ticket, page, codec };
        let mut queue = self.lock();
        queue.waiting.push_back((pending, room));
        let wake = queue.idle || queue.waiting.len() >= BATCH;
        queue.idle = false;
        drop(queue);
        if wake {
            self.arrived.notify_one();
        }
        true
    }

    /// Nothing is kept any more, and [`Self::run`] returns.
    pub fn stop(&self) {
        self.lock().stopping = true;
        self.arrived.notify_all();
        self.stored.notify_all();
    }

    /// What the thread does.
    pub(super) fn run(&self, shared: &Shared, engine: &dyn Engine) {
        let mailbox = Arc::new(Mailbox::new());
        let mut under_way: Vec<Option<Pending>> = Vec::new();
        let mut jobs = VecDeque::new();
        let mut done = Vec::new();
        while self.take(&mut under_way, &mut jobs, mailbox.outstanding() > 0) {
            let started = Instant::now();
            engine.submit(&mut jobs, &mailbox);
            mailbox.collect(&mut done, 1);
            let mut bytes = 0;
            for done in done.drain(..) {
                bytes += self.finish(shared, &mut under_way, done);
            }
            // Something was under way all the time, unless nothing is now.
            if shared.config.synchronous || mailbox.outstanding() > 0 {
                self.note_speed(started.elapsed(), bytes);
            }
            shared.rebalance();
            shared.make_room();
        }
        mailbox.collect(&mut done, usize::MAX);
    }

    /// Moves what waits to the jobs; waits for it unless there is something under way. `false` at the end.
    fn take(
        &self,
        under_way: &mut Vec<Option<Pending>>,
        jobs: &mut VecDeque<Job>,
        busy: bool,
    ) -> bool {
        let mut queue = self.lock();
        while queue.waiting.is_empty() && jobs.is_empty() && !busy && !queue.stopping {
            let (woken, waited) =
                self.arrived.wait_timeout(queue, LINGER).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if waited.timed_out() && queue.waiting.is_empty() && !queue.stopping {
                queue.idle = true;
                queue.drop_free(usize::MAX);
                queue = self
                    .arrived
                    .wait_while(queue, |queue| queue.idle && !queue.stopping)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        for (pending, room) in queue.waiting.drain(..) {
            let object_bytes_max =
                ClusterSize::of_bytes(room.content.len()).map_or(0, object_bytes_max);
            let task = Task::CompressCluster { codec: pending.codec, object_bytes_max };
            let tag = under_way.iter().position(Option::is_none).unwrap_or(under_way.len());
            if tag == under_way.len() {
                under_way.push(None);
            }
            under_way[tag] = Some(pending);
            jobs.push_back(Job { tag: tag as u64, task, room });
        }
        !queue.stopping
    }

    fn note_speed(&self, took: Duration, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let ns_per_byte = took.as_nanos() as f64 / bytes as f64;
        let mut queue = self.lock();
        queue.ns_per_byte = match queue.ns_per_byte {
            0.0 => ns_per_byte,
            before => before + (ns_per_byte - before) / 16.0,
        };
    }

    /// Stores a cluster, and returns how many bytes it had.
    fn finish(&self, shared: &Shared, under_way: &mut [Option<Pending>], done: Done) -> usize {
        let Done { tag, outcome, room, compress_ns } = done;
        let bytes = room.content.len();
        shared.counters.compress_ns.add(compress_ns);
        if let Some(pending) = under_way.get_mut(tag as usize).and_then(Option::take)
            && let Some(size) = ClusterSize::of_bytes(bytes)
        {
            let Pending { content, ticket, page, .. } = pending;
            let object = match outcome {
                Outcome::SameFilled(word) => Some(Object::SameFilled(word)),
                Outcome::Compressed { encoding, len } => {
                    room.object.get(..len).map(|bytes| Object::Compressed { encoding, bytes })
                }
                _ => None,
            };
            content.note_compressed(object.is_some());
            match object {
                Some(object) => content.store(ticket, page, size, object),
                None => shared.counters.incompressible_pages.add(size.pages() as u64),
            }
        }
        let mut queue = self.lock();
        queue.count -= 1;
        queue.free.push(room);
        drop(queue);
        self.stored.notify_all();
        bytes
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }
}
