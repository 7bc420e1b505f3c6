//! The thread that compresses what readers leave in the backlog, and stores it.
//!
//! It hands clusters to the engine, one by one, and stores what comes back.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ramfold_codec::cluster::ClusterSize;
use ramfold_codec::{Choice, PAGE_SIZE};
use ramfold_engine::{
    Done, Engine, EngineError, Job, Mailbox, Outcome, Room, Synchronous, Task, TaskError, Workers,
    WorkersConfig,
};

use crate::backlog::{Batch, Origin};
use crate::clusters::{Object, object_bytes_max};
use crate::{Cache, CacheError, Owner, Version};

/// How much less than others those who compress get of the processors: about a tenth where they are
/// busy.
const NICENESS: i32 = 10;
/// With the engine there is this part of the backlog's memory at most.
const ENGINE_PART: usize = 4;
const ENGINE_BYTES_MAX: usize = 2 << 20;

/// Why a cluster was not compressed, if that has nothing to do with its data.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedCluster {
    /// The engine does not do the task.
    #[error("cannot compress a cluster of {bytes} bytes: {source}")]
    Task {
        /// Bytes of the cluster.
        bytes: usize,
        /// The engine's reason.
        source: TaskError,
    },
    /// The engine's answer is none to the task, or names more bytes than there are.
    #[error("cannot compress a cluster of {bytes} bytes: the engine answered {answer:?}")]
    Answer {
        /// Bytes of the cluster.
        bytes: usize,
        /// What the engine answered.
        answer: Outcome,
    },
}

/// The thread that compresses. It ends when this is dropped.
pub struct Background<O: Owner> {
    cache: Arc<Cache<O>>,
    thread: Option<JoinHandle<()>>,
}

impl<O: Owner> Background<O> {
    /// Nothing is kept any more, and the thread ends soon.
    pub fn stop(&self) {
        self.cache.backlog.stop();
    }
}

impl<O: Owner> Drop for Background<O> {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
        // What still waits has its owner, which may have the cache.
        while self.cache.backlog.take().is_some() {}
    }
}

impl<O: Owner> Cache<O> {
    /// Starts the thread that compresses, and the engine's with it. It calls `after_round` whenever
    /// it has stored something, for memory to be divided and room to be made.
    ///
    /// # Errors
    /// [`CacheError::Engine`], [`CacheError::Thread`].
    pub fn start(
        self: &Arc<Self>,
        mut after_round: impl FnMut() + Send + 'static,
    ) -> Result<Background<O>, CacheError> {
        let (engine_is_there, is_engine_there) = mpsc::channel();
        let of_thread = Arc::clone(self);
        let run = move || {
            // Readers go first. The engine's threads have the niceness of this one, which starts
            // them; where it cannot be set nothing else is wrong.
            let _ = rustix::process::nice(NICENESS);
            match of_thread.engine() {
                // Whoever started this thread waits for it.
                Err(error) => drop(engine_is_there.send(Err(error))),
                Ok(engine) => {
                    drop(engine_is_there.send(Ok(())));
                    Worker::new(&of_thread, &*engine).run(&mut after_round);
                }
            }
        };
        let thread = thread::Builder::new().name("compression".to_owned()).spawn(run);
        let thread = thread.map_err(CacheError::Thread)?;
        let ended = |_| CacheError::Thread(io::Error::other("it ended at once"));
        is_engine_there.recv().map_err(ended)??;
        Ok(Background { cache: Arc::clone(self), thread: Some(thread) })
    }

    fn engine(&self) -> Result<Box<dyn Engine>, EngineError> {
        Ok(match self.config.synchronous {
            true => Box::new(Synchronous::new(Choice::Auto)?),
            false => Box::new(Workers::new(Choice::Auto, WorkersConfig::default())?),
        })
    }
}

/// What the thread has at hand.
struct Worker<'a, O: Owner> {
    cache: &'a Cache<O>,
    engine: &'a dyn Engine,
    batch: Option<Batch<O>>,
    under_way: Vec<Option<UnderWay<O>>>,
    under_way_bytes: usize,
    /// Not taken by the engine yet.
    jobs: VecDeque<Job>,
    /// Free ones, all of the same size, of the engine's memory.
    rooms: Vec<Room>,
}

/// A cluster that is with the engine.
struct UnderWay<O> {
    owner: Arc<O>,
    version: Version,
    page: u64,
}

impl<'a, O: Owner> Worker<'a, O> {
    fn new(cache: &'a Cache<O>, engine: &'a dyn Engine) -> Worker<'a, O> {
        Worker {
            cache,
            engine,
            batch: None,
            under_way: Vec::new(),
            under_way_bytes: 0,
            jobs: VecDeque::new(),
            rooms: Vec::new(),
        }
    }

    fn run(&mut self, after_round: &mut impl FnMut()) {
        let cache = self.cache;
        let backlog = &cache.backlog;
        let bytes_max = (backlog.bytes_max() / ENGINE_PART).min(ENGINE_BYTES_MAX);
        let mailbox = Arc::new(Mailbox::new());
        let mut done = Vec::new();
        loop {
            while self.under_way_bytes < bytes_max && self.fill() {}
            if self.jobs.is_empty() && mailbox.outstanding() == 0 {
                self.drop_rooms();
                if backlog.wait() { continue } else { return }
            }
            let started = Instant::now();
            self.engine.submit(&mut self.jobs, &mailbox);
            mailbox.collect(&mut done, 1);
            let bytes: usize = done.drain(..).map(|done| self.finish(done)).sum();
            // Something was under way all the time, unless nothing is now.
            if cache.config.synchronous || mailbox.outstanding() > 0 {
                backlog.note_speed(started.elapsed(), bytes);
            }
            after_round();
            if backlog.is_stopping() {
                return mailbox.collect(&mut done, usize::MAX);
            }
        }
    }

    /// Makes a job of the next cluster in the backlog; `false` when there is none.
    fn fill(&mut self) -> bool {
        let cache = self.cache;
        let Some(batch) = &mut self.batch else {
            self.batch = cache.backlog.take();
            return self.batch.is_some();
        };
        // That was not known yet when it was read.
        if batch.origin != Origin::Store && cache.is_backing_faster(batch.owner.pages()) {
            let left = batch.clusters.drain(..);
            let (count, bytes) =
                left.fold((0, 0), |(count, bytes), (_, place)| (count + 1, bytes + place.len()));
            cache.counters.fast_pages.add((bytes / PAGE_SIZE) as u64);
            cache.backlog.note_done(count);
        }
        let Some((page, place)) = batch.clusters.pop_front() else {
            if let Some(done) = self.batch.take() {
                cache.backlog.give_back(done.memory);
            }
            return true;
        };
        let cluster = &batch.memory[place];
        let Some(size) = ClusterSize::of_bytes(cluster.len()) else {
            cache.backlog.note_done(1);
            return true;
        };
        let fits = |room: &mut Room| room.content.len() == cluster.len();
        let mut room = self.rooms.pop_if(fits).unwrap_or_else(|| {
            let room = self.engine.room(size.bytes());
            cache.rooms_bytes.fetch_add(room_bytes(&room), Ordering::Relaxed);
            room
        });
        room.content.copy_from_slice(cluster);
        self.under_way_bytes += room_bytes(&room);
        let object_bytes_max = object_bytes_max(size);
        let task = Task::CompressCluster { codec: cache.codec(), object_bytes_max };
        let owner = Arc::clone(&batch.owner);
        let under_way = UnderWay { owner, version: batch.version, page };
        let free = self.under_way.iter().position(Option::is_none);
        let tag = free.unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() - 1
        });
        self.under_way[tag] = Some(under_way);
        self.jobs.push_back(Job { tag: tag as u64, task, room });
        true
    }

    /// Stores a cluster, and returns how many bytes the engine has worked on: none if it refused.
    fn finish(&mut self, done: Done) -> usize {
        let Done { tag, outcome, room, compress_ns } = done;
        let cache = self.cache;
        let bytes = room.content.len();
        cache.counters.compress_ns.add(compress_ns);
        let object = object(outcome, &room);
        if let Some(of) = self.under_way.get_mut(tag as usize).and_then(Option::take)
            && let Some(size) = ClusterSize::of_bytes(bytes)
        {
            match &object {
                Ok(Some(object)) => {
                    of.owner.pages().backoff.note(true);
                    cache.put(&of.owner, of.version, of.page, size, *object);
                }
                Ok(None) => {
                    of.owner.pages().backoff.note(false);
                    cache.counters.incompressible_pages.add(size.pages() as u64);
                }
                // No reason to think worse of the owner's data.
                Err(refused) => {
                    if cache.counters.refused_pages.get() == 0 {
                        of.owner.note_refused(refused);
                    }
                    cache.counters.refused_pages.add(size.pages() as u64);
                }
            }
        }
        // A refusal takes no time, so it says nothing of the codec's speed.
        let compressed_bytes = if object.is_ok() { bytes } else { 0 };
        cache.costs.add_compression(compress_ns, (compressed_bytes / PAGE_SIZE) as u64);
        self.under_way_bytes -= room_bytes(&room);
        if self.rooms.last().is_some_and(|other| other.content.len() != bytes) {
            self.drop_rooms();
        }
        self.rooms.push(room);
        cache.backlog.note_done(1);
        compressed_bytes
    }

    fn drop_rooms(&mut self) {
        let bytes = self.rooms.drain(..).map(|room| room_bytes(&room)).sum();
        self.cache.rooms_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What is to be stored of a cluster; `None` where its data does not shrink.
fn object(outcome: Outcome, room: &Room) -> Result<Option<Object<'_>>, RefusedCluster> {
    let bytes = room.content.len();
    match outcome {
        Outcome::SameFilled(word) => Ok(Some(Object::SameFilled(word))),
        Outcome::Compressed { encoding, len } if len <= room.object.len() => {
            Ok(Some(Object::Compressed { encoding, bytes: &room.object[..len] }))
        }
        Outcome::DoesNotFit => Ok(None),
        Outcome::Refused(source) => Err(RefusedCluster::Task { bytes, source }),
        Outcome::Compressed { .. } | Outcome::Decompressed | Outcome::Damaged(_) => {
            Err(RefusedCluster::Answer { bytes, answer: outcome })
        }
    }
}

fn room_bytes(room: &Room) -> usize {
    room.content.len() + room.object.len()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use ramfold_codec::Encoding;
    use ramfold_engine::{Buffer, Depths};

    use super::*;
    use crate::tests::{Disk, config};

    const MIB: usize = 1 << 20;

    /// An engine that has not the tasks of clusters, and works in memory of its own.
    #[derive(Default)]
    struct Refusing {
        rooms: AtomicUsize,
    }

    impl Engine for Refusing {
        fn name(&self) -> &'static str {
            "refusing"
        }

        fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize {
            let refuse = |Job { tag, room, .. }| {
                let outcome = Outcome::Refused(TaskError::Unsupported);
                Done { tag, outcome, room, compress_ns: 0 }
            };
            mailbox.expect(jobs.len());
            let refused: Vec<_> = jobs.drain(..).map(refuse).collect();
            let count = refused.len();
            mailbox.deliver(refused);
            count
        }

        fn depths(&self) -> Depths {
            Depths::default()
        }

        fn room(&self, content_bytes: usize) -> Room {
            self.rooms.fetch_add(1, Ordering::Relaxed);
            Room::of(content_bytes, Buffer::on_heap)
        }
    }

    /// Has all of the backlog gone through the engine.
    fn work_off(cache: &Cache<Disk>, engine: &dyn Engine) {
        Worker::new(cache, engine).run(&mut || {
            if !cache.is_compressing() {
                cache.backlog.stop();
            }
        });
    }

    #[test]
    fn work_that_the_engine_refuses_is_not_taken_for_data_that_does_not_shrink() {
        let cache = Cache::new(config(16 << 20)).unwrap();
        let disk = Disk::new(vec![0; MIB]);
        let cluster = vec![7; ClusterSize::Four.bytes()];
        let clusters: Vec<_> = (0..64).map(|nth| (4 * nth, &cluster[..])).collect();
        let origin = Origin::Backing { ns_per_byte: 100.0 };
        assert_eq!(cache.backlog.offer(&disk, Version(0), origin, &clusters, 0), 64);
        let engine = Refusing::default();
        work_off(&cache, &engine);
        let statistics = cache.statistics();
        assert_eq!(statistics.refused_pages, 64 * 4);
        assert_eq!(statistics.incompressible_pages, 0);
        assert_eq!(cache.backlog.ns_per_byte(), 0.0, "the codec's speed is not known");
        assert!(disk.pages().backoff.is_due(), "the disk's data is skipped");
        let told = disk.refused.lock().unwrap();
        let reason = "cannot compress a cluster of 16384 bytes: the engine cannot do this task";
        assert_eq!(*told, [reason], "it is told once, and why");
        assert!(engine.rooms.load(Ordering::Relaxed) > 0, "the engine gives the memory");
    }

    #[test]
    fn an_answer_that_is_none_is_not_stored() {
        let room = Room::for_cluster(ClusterSize::Four);
        let (bytes, len) = (ClusterSize::Four.bytes(), room.object.len() + 1);
        for answer in [Outcome::Decompressed, Outcome::Compressed { encoding: Encoding::Lz4, len }]
        {
            let object = object(answer, &room);
            assert_eq!(object.err(), Some(RefusedCluster::Answer { bytes, answer }));
        }
    }

    #[test]
    fn what_was_read_before_the_backing_was_known_to_be_fast_is_not_compressed_any_more() {
        let cache = Cache::new(config(16 << 20)).unwrap();
        let disk = Disk::new(vec![0; 8 * MIB]);
        for nth in 0..8 {
            let bytes = nth << 20..(nth + 1) << 20;
            disk.read(&cache, bytes, false, |read| assert_eq!(read.len(), MIB));
        }
        let cluster = vec![7; ClusterSize::Four.bytes()];
        let clusters: Vec<_> = (0..64).map(|nth| (4 * nth, &cluster[..])).collect();
        let origin = Origin::Backing { ns_per_byte: 0.0 };
        assert_eq!(cache.backlog.offer(&disk, Version(0), origin, &clusters, 0), 64);
        // 2 GB/s, for as many windows of time as it takes.
        let started = Instant::now();
        while cache.speed.is_slow() {
            assert!(started.elapsed() < Duration::from_secs(300), "it counts as slow");
            (0..100).for_each(|_| cache.speed.note(500_000, 1 << 20, 1));
            thread::sleep(Duration::from_millis(10));
        }
        let engine = Synchronous::new(Choice::Auto).unwrap();
        let mut worker = Worker::new(&cache, &engine);
        while worker.fill() {}
        assert!(worker.jobs.is_empty() && !cache.is_compressing());
        assert_eq!(cache.statistics().fast_pages, (MIB / PAGE_SIZE) as u64);
    }
}
