//! What has been read from SOURCE is compressed in the background and stored.
//!
//! Readers leave it in the backlog. A thread of its own hands it to the engine, cluster by cluster, and stores what
//! comes back. The backlog may take what the lower level has not filled yet: a disk can give its first hundred
//! megabytes at once. When that is full, what is read from a disk that is faster than the codec is not kept. Whoever
//! reads from a slower one waits, having answered: on the whole there is time to compress what it gives.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramfold_codec::PAGE_SIZE;
use ramfold_codec::cluster::ClusterSize;
use ramfold_engine::{Done, Engine, Job, Mailbox, Outcome, Room, Task};
use ramfold_sys::mem::Pages;

use super::clusters::{Object, object_bytes_max};
use super::{Content, Shared, Ticket, locked};

/// How long the thread waits for more before it sleeps: being woken costs as much as compressing a page.
const LINGER: Duration = Duration::from_millis(5);
/// How long a reader waits at most for room in the backlog.
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that are worth waking the thread for meanwhile, and those that go into one batch at most.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_BYTES_MAX: usize = 256 << 10;
/// With the engine there is this part of the backlog's memory at most.
const ENGINE_PART: usize = 4;
const ENGINE_BYTES_MAX: usize = 2 << 20;

/// Clusters on their way into the pool.
pub struct Compression {
    queue: Mutex<Queue>,
    arrived: Condvar,
    stored: Condvar,
    /// Most memory for the backlog where the lower level has none to spare.
    bytes_max: usize,
    /// Memory of the rooms in which the engine works.
    rooms_bytes: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Batch>,
    waiting_bytes: usize,
    /// Memory of all batches, those under way too, and what is kept for others as long as there is work.
    bytes: usize,
    free: Vec<Pages>,
    /// Clusters from here until they are stored.
    clusters: usize,
    idle: bool,
    stopping: bool,
    /// Nanoseconds that a byte takes, of late, with all threads at work; 0: not known.
    ns_per_byte: f64,
}

/// Where clusters were read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// In SOURCE, which of late has taken so long for a byte.
    Source { ns_per_byte: f64 },
    /// In the pool, as part of a larger one: what comes from SOURCE goes first.
    Pool,
}

/// Clusters of a file that were read at once.
struct Batch {
    content: Arc<Content>,
    ticket: Ticket,
    origin: Origin,
    /// The first page of each, and where it lies in the memory.
    clusters: VecDeque<(u64, Range<usize>)>,
    memory: Pages,
}

/// A cluster that is with the engine.
struct UnderWay {
    content: Arc<Content>,
    ticket: Ticket,
    page: u64,
}

/// What the thread has at hand.
#[derive(Default)]
struct Desk {
    batch: Option<Batch>,
    under_way: Vec<Option<UnderWay>>,
    under_way_bytes: usize,
    /// Not taken by the engine yet.
    jobs: VecDeque<Job>,
    /// Free ones, all of the same size.
    rooms: Vec<Room>,
}

impl Queue {
    /// Has so much memory counted, where it is within the limit: one that is free, or `None` for a new one.
    fn reserve(&mut self, bytes: usize, bytes_max: usize) -> Option<Option<Pages>> {
        if self.stopping {
            return None;
        }
        if let Some(place) = self.free.iter().rposition(|memory| memory.len() == bytes) {
            return Some(Some(self.free.swap_remove(place)));
        }
        self.drop_free((self.bytes + bytes).saturating_sub(bytes_max));
        if self.bytes + bytes > bytes_max {
            return None;
        }
        self.bytes += bytes;
        Some(None)
    }

    /// Gives back at least so much memory, or all that is free.
    fn drop_free(&mut self, bytes: usize) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target
            && let Some(memory) = self.free.pop()
        {
            self.bytes -= memory.len();
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
            rooms_bytes: AtomicUsize::new(0),
        }
    }

    /// Memory for clusters that wait or are being compressed, and for more.
    pub fn bytes(&self) -> usize {
        self.lock().bytes + self.rooms_bytes.load(Ordering::Relaxed)
    }

    /// Whether there is anything to do.
    #[cfg(test)]
    pub fn is_at_work(&self) -> bool {
        self.lock().clusters > 0
    }

    #[cfg(test)]
    pub fn ns_per_byte(&self) -> f64 {
        self.lock().ns_per_byte
    }

    /// Takes clusters of a file, each with its first page, and returns how many: less than all when there is too much
    /// to do already. `spare_bytes`: memory that the lower level has not filled.
    pub fn offer(
        &self,
        content: &Arc<Content>,
        ticket: Ticket,
        origin: Origin,
        clusters: &[(u64, &[u8])],
        spare_bytes: usize,
    ) -> usize {
        let bytes_max = match origin {
            Origin::Source { .. } => self.bytes_max.max(spare_bytes),
            Origin::Pool => self.bytes_max / 2,
        };
        let mut taken = 0;
        while let Some((_, first)) = clusters.get(taken) {
            let count = (BATCH_BYTES_MAX / first.len().max(1)).max(1);
            let part = &clusters[taken..][..count.min(clusters.len() - taken)];
            let bytes = part.iter().map(|(_, cluster)| cluster.len()).sum();
            let Some(mut memory) = self.memory(origin, bytes, bytes_max) else { break };
            let mut places = VecDeque::with_capacity(part.len());
            let mut end = 0;
            for (page, cluster) in part {
                let place = end..end + cluster.len();
                end = place.end;
                memory[place.clone()].copy_from_slice(cluster);
                places.push_back((*page, place));
            }
            let content = Arc::clone(content);
            self.push(Batch { content, ticket, origin, clusters: places, memory });
            taken += part.len();
        }
        taken
    }

    fn push(&self, batch: Batch) {
        let mut queue = self.lock();
        queue.clusters += batch.clusters.len();
        queue.waiting_bytes += batch.memory.len();
        queue.waiting.push_back(batch);
        let wake = queue.idle || queue.waiting_bytes >= BATCH_BYTES;
        queue.idle = false;
        drop(queue);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Memory for so many bytes of the backlog, as soon as there is any within the limit.
    fn memory(&self, origin: Origin, bytes: usize, bytes_max: usize) -> Option<Pages> {
        let mut queue = self.lock();
        let mut reserved = queue.reserve(bytes, bytes_max);
        let is_slower =
            matches!(origin, Origin::Source { ns_per_byte } if ns_per_byte > queue.ns_per_byte);
        if reserved.is_none() && is_slower {
            let started = Instant::now();
            while reserved.is_none() && !queue.stopping && started.elapsed() < PATIENCE {
                let waited = self.stored.wait_timeout(queue, PATIENCE);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                reserved = queue.reserve(bytes, bytes_max);
            }
        }
        drop(queue);
        let memory = reserved?.or_else(|| Pages::new(bytes).ok());
        if memory.is_none() {
            self.lock().bytes -= bytes;
        }
        memory
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
        let mut desk = Desk::default();
        let mut done = Vec::new();
        loop {
            while desk.under_way_bytes < self.engine_bytes_max() && self.fill(shared, &mut desk) {}
            if desk.jobs.is_empty() && mailbox.outstanding() == 0 {
                self.drop_rooms(&mut desk);
                if self.wait() { continue } else { return }
            }
            let started = Instant::now();
            engine.submit(&mut desk.jobs, &mailbox);
            mailbox.collect(&mut done, 1);
            let mut bytes = 0;
            for done in done.drain(..) {
                bytes += self.finish(shared, &mut desk, done);
            }
            // Something was under way all the time, unless nothing is now.
            if shared.config.synchronous || mailbox.outstanding() > 0 {
                self.note_speed(started.elapsed(), bytes);
            }
            shared.rebalance();
            shared.make_room();
            if self.lock().stopping {
                return mailbox.collect(&mut done, usize::MAX);
            }
        }
    }

    fn engine_bytes_max(&self) -> usize {
        (self.bytes_max / ENGINE_PART).min(ENGINE_BYTES_MAX)
    }

    /// Waits until there is something in the backlog; `false` at the end.
    fn wait(&self) -> bool {
        let mut queue = self.lock();
        while queue.waiting.is_empty() && !queue.stopping {
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
        !queue.stopping
    }

    /// Makes a job of the next cluster in the backlog; `false` when there is none.
    fn fill(&self, shared: &Shared, desk: &mut Desk) -> bool {
        let Some(batch) = &mut desk.batch else {
            let mut queue = self.lock();
            desk.batch = queue.waiting.pop_front();
            queue.waiting_bytes -= desk.batch.as_ref().map_or(0, |batch| batch.memory.len());
            return desk.batch.is_some();
        };
        let content = &batch.content;
        // That was not known yet when it was read.
        if batch.origin != Origin::Pool && content.is_faster_from_source() {
            let left = batch.clusters.drain(..);
            let (count, bytes) =
                left.fold((0, 0), |(count, bytes), (_, place)| (count + 1, bytes + place.len()));
            shared.counters.fast_pages.add((bytes / PAGE_SIZE) as u64);
            self.lock().clusters -= count;
        }
        let Some((page, place)) = batch.clusters.pop_front() else {
            if let Some(done) = desk.batch.take() {
                self.give_back(done.memory);
            }
            return true;
        };
        let cluster = &batch.memory[place];
        let Some(size) = ClusterSize::of_bytes(cluster.len()) else {
            self.lock().clusters -= 1;
            return true;
        };
        let fits = |room: &Room| room.content.len() == cluster.len();
        let mut room = desk.rooms.pop_if(|room| fits(room)).unwrap_or_else(|| {
            let room = Room::for_cluster(size);
            self.rooms_bytes.fetch_add(room_bytes(&room), Ordering::Relaxed);
            room
        });
        room.content.copy_from_slice(cluster);
        desk.under_way_bytes += room_bytes(&room);
        let codec = content.codec();
        let task = Task::CompressCluster { codec, object_bytes_max: object_bytes_max(size) };
        let under_way = UnderWay { content: Arc::clone(content), ticket: batch.ticket, page };
        let free = desk.under_way.iter().position(Option::is_none);
        let tag = free.unwrap_or_else(|| {
            desk.under_way.push(None);
            desk.under_way.len() - 1
        });
        desk.under_way[tag] = Some(under_way);
        desk.jobs.push_back(Job { tag: tag as u64, task, room });
        true
    }

    fn give_back(&self, memory: Pages) {
        let mut queue = self.lock();
        if queue.bytes <= self.bytes_max {
            queue.free.push(memory);
        } else {
            queue.bytes -= memory.len();
        }
        drop(queue);
        self.stored.notify_all();
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
    fn finish(&self, shared: &Shared, desk: &mut Desk, done: Done) -> usize {
        let Done { tag, outcome, room, compress_ns } = done;
        let bytes = room.content.len();
        shared.counters.compress_ns.add(compress_ns);
        shared.balance.compressions_took(compress_ns, (bytes / PAGE_SIZE) as u64);
        if let Some(of) = desk.under_way.get_mut(tag as usize).and_then(Option::take)
            && let Some(size) = ClusterSize::of_bytes(bytes)
        {
            let object = match outcome {
                Outcome::SameFilled(word) => Some(Object::SameFilled(word)),
                Outcome::Compressed { encoding, len } => {
                    room.object.get(..len).map(|bytes| Object::Compressed { encoding, bytes })
                }
                _ => None,
            };
            of.content.note_compressed(object.is_some());
            match object {
                Some(object) => of.content.store(of.ticket, of.page, size, object),
                None => shared.counters.incompressible_pages.add(size.pages() as u64),
            }
        }
        desk.under_way_bytes -= room_bytes(&room);
        if desk.rooms.last().is_some_and(|other| other.content.len() != bytes) {
            self.drop_rooms(desk);
        }
        desk.rooms.push(room);
        self.lock().clusters -= 1;
        bytes
    }

    fn drop_rooms(&self, desk: &mut Desk) {
        let bytes = desk.rooms.drain(..).map(|room| room_bytes(&room)).sum();
        self.rooms_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }
}

fn room_bytes(room: &Room) -> usize {
    room.content.len() + room.object.len()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::{Config, Contents, FileKey, Source};
    use super::*;

    const MIB: usize = 1 << 20;
    const CLUSTER: usize = ClusterSize::Four.bytes();

    fn contents() -> Contents {
        let (memory_bytes, synchronous) = (16 << 20, true);
        let config = Config {
            memory_bytes,
            compressed_share: None,
            codec: None,
            cluster: None,
            synchronous,
        };
        Contents::new(config).unwrap()
    }

    fn file(contents: &Contents) -> Arc<Content> {
        contents.of(FileKey { device: 1, inode: 1, generation: 0 })
    }

    /// Offers the file's first clusters as read from a SOURCE that is faster than any codec, without anybody who
    /// compresses them; how many are taken.
    fn offer(compression: &Compression, of: &Arc<Content>, bytes: usize, spare: usize) -> usize {
        let cluster = vec![7; CLUSTER];
        let clusters: Vec<_> =
            (0..bytes / CLUSTER).map(|nth| (4 * nth as u64, &cluster[..])).collect();
        let origin = Origin::Source { ns_per_byte: 0.0 };
        compression.offer(of, Ticket::default(), origin, &clusters, spare)
    }

    #[test]
    fn the_backlog_has_what_the_lower_level_has_not_filled() {
        let contents = contents();
        let (file, compression) = (file(&contents), Compression::new(MIB));
        assert_eq!(offer(&compression, &file, 3 * MIB, 0), MIB / CLUSTER);
        assert_eq!(offer(&compression, &file, MIB, 0), 0);
        assert_eq!(offer(&compression, &file, 3 * MIB, 2 * MIB), MIB / CLUSTER);
        assert_eq!(compression.bytes(), 2 * MIB);
        assert_eq!(offer(&compression, &file, MIB, 0), 0);
        // What has been gone through is given back, down to what it has in any case.
        let mut desk = Desk::default();
        while compression.fill(&contents.shared, &mut desk) {}
        assert_eq!(desk.jobs.len(), 2 * MIB / CLUSTER);
        assert_eq!(compression.lock().bytes, MIB);
        let of = |size| Origin::Source { ns_per_byte: size };
        let page = [0; PAGE_SIZE];
        let ticket = Ticket::default();
        assert_eq!(compression.offer(&file, ticket, of(0.0), &[(0, &page)], 0), 1);
        assert_eq!(compression.lock().bytes, MIB - BATCH_BYTES_MAX + PAGE_SIZE);
    }

    #[test]
    fn what_was_read_before_source_was_known_to_be_fast_is_not_compressed_any_more() {
        let contents = contents();
        let file = file(&contents);
        let source = tempfile::tempfile().unwrap();
        File::set_len(&source, 8 << 20).unwrap();
        let source = Source::new(source.into());
        for nth in 0..8 {
            file.read(&source, nth << 20, MIB, |read| assert_eq!(read.unwrap().len(), MIB));
        }
        let compression = Compression::new(MIB);
        assert_eq!(offer(&compression, &file, MIB, 0), MIB / CLUSTER);
        // 2 GB/s for a while.
        let shared = &contents.shared;
        let started = Instant::now();
        while shared.source_speed.is_slow() {
            assert!(started.elapsed() < Duration::from_secs(300), "it counts as slow");
            (0..100).for_each(|_| shared.source_speed.note(500_000, 1 << 20, 1));
            std::thread::sleep(Duration::from_millis(10));
        }
        let before = shared.counters.fast_pages.get();
        let mut desk = Desk::default();
        while compression.fill(shared, &mut desk) {}
        assert!(desk.jobs.is_empty() && !compression.is_at_work());
        assert_eq!(shared.counters.fast_pages.get() - before, (MIB / PAGE_SIZE) as u64);
    }
}
