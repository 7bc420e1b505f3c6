//! What has been read from SOURCE is compressed in the background and stored.
//!
//! A thread of its own hands clusters to the engine and stores what comes back. Nobody waits for it: when it
//! does not come after, what is read is not kept. So a disk that is faster than the codec does not fill
//! memory with work, and a slow one has all of its data compressed while it is waited for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_engine::{Done, Engine, Job, Mailbox, Outcome, Room, Task};

use super::clusters::{Object, object_bytes_max};
use super::{Content, Shared, Ticket};

/// How long the thread waits for more before it sleeps: being woken costs as much as compressing a page.
const LINGER: Duration = Duration::from_millis(5);
/// Clusters that are worth waking it for meanwhile.
const BATCH: usize = 16;

/// Clusters on their way into the pool.
pub struct Compression {
    queue: Mutex<Queue>,
    arrived: Condvar,
    /// Most bytes of clusters that wait or are being compressed.
    bytes_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Pending, Room)>,
    /// Bytes of clusters from here until they are stored.
    bytes: usize,
    rooms: Vec<Room>,
    idle: bool,
    stopping: bool,
}

/// A cluster that was read.
struct Pending {
    content: Arc<Content>,
    ticket: Ticket,
    /// Its first page in the file.
    page: u64,
    codec: ClusterCodec,
}

impl Compression {
    pub fn new(bytes_max: usize) -> Compression {
        Compression { queue: Mutex::default(), arrived: Condvar::new(), bytes_max }
    }

    /// Bytes of clusters that wait or are being compressed, and of memory kept for more.
    pub fn bytes(&self) -> usize {
        let queue = self.lock();
        queue.bytes + queue.rooms.iter().map(|room| room.content.len() * 2).sum::<usize>()
    }

    /// Whether there is anything to do.
    #[cfg(test)]
    pub fn is_at_work(&self) -> bool {
        self.lock().bytes > 0
    }

    /// Takes a cluster of the file that begins at that page; `false` when there is too much to do already.
    pub fn offer(
        &self,
        content: &Arc<Content>,
        ticket: Ticket,
        page: u64,
        codec: ClusterCodec,
        cluster: &[u8],
    ) -> bool {
        let Some(size) = ClusterSize::of_bytes(cluster.len()) else { return false };
        let mut queue = self.lock();
        if queue.bytes + cluster.len() > self.bytes_max || queue.stopping {
            return false;
        }
        queue.bytes += cluster.len();
        let kept = queue.rooms.iter().rposition(|room| room.content.len() == cluster.len());
        let kept = kept.map(|place| queue.rooms.swap_remove(place));
        drop(queue);
        let mut room = kept.unwrap_or_else(|| Room::for_cluster(size));
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
    }

    /// What the thread does.
    pub(super) fn run(&self, shared: &Shared, engine: &dyn Engine) {
        let mailbox = Arc::new(Mailbox::new());
        let mut under_way: Vec<Option<Pending>> = Vec::new();
        let mut jobs = VecDeque::new();
        let mut done = Vec::new();
        while self.take(&mut under_way, &mut jobs, mailbox.outstanding() > 0) {
            engine.submit(&mut jobs, &mailbox);
            mailbox.collect(&mut done, 1);
            for done in done.drain(..) {
                self.finish(shared, &mut under_way, done);
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
                queue.rooms.clear();
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

    fn finish(&self, shared: &Shared, under_way: &mut [Option<Pending>], done: Done) {
        let Done { tag, outcome, room } = done;
        let bytes = room.content.len();
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
                Some(object) => content.store(shared, ticket, page, size, object),
                None => shared.counters.incompressible_pages.add(size.pages() as u64),
            }
        }
        let mut queue = self.lock();
        queue.bytes -= bytes;
        if queue.rooms.len() < 2 * BATCH {
            queue.rooms.push(room);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
