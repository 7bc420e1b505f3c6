//! What every engine has to do, asked of all of them, and of one that stands for an accelerator.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_codec::{Choice, Codec, Encoding, Objective, PAGE_SIZE, Page, ZstdLevel};
use ramfold_engine::{
    Buffer, Coder, Depths, Done, Engine, Job, Mailbox, Outcome, Room, Synchronous, Task, TaskError,
    Workers, WorkersConfig,
};

/// A device with a queue of 64 jobs, which takes 16 at a time, works for a while, and finishes the
/// last one first. It lends memory of its own. It uses the engine's public types only.
struct Accelerator {
    to_device: Option<Sender<(Job, Arc<Mailbox>)>>,
    in_flight: Arc<Mutex<usize>>,
    device: Option<JoinHandle<()>>,
    /// Buffers that are lent now.
    lent: Arc<AtomicUsize>,
}

/// A buffer of the device's memory.
struct Pinned {
    bytes: Vec<u8>,
    lent: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Pinned {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.lent.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Accelerator {
    const QUEUE: usize = 64;
    const BATCH: usize = 16;

    fn new(choice: Choice) -> Accelerator {
        Accelerator::with(choice, true)
    }

    fn with(choice: Choice, has_clusters: bool) -> Accelerator {
        let (to_device, jobs) = mpsc::channel();
        let in_flight = Arc::new(Mutex::new(0));
        let of_device = in_flight.clone();
        let device = thread::spawn(move || Self::work(choice, has_clusters, &jobs, &of_device));
        let lent = Arc::default();
        Accelerator { to_device: Some(to_device), in_flight, device: Some(device), lent }
    }

    fn work(
        choice: Choice,
        has_clusters: bool,
        jobs: &Receiver<(Job, Arc<Mailbox>)>,
        in_flight: &Mutex<usize>,
    ) {
        let mut coder = Coder::new(choice).unwrap();
        while let Ok(first) = jobs.recv() {
            let mut batch = vec![first];
            batch.extend(jobs.try_iter().take(Self::BATCH - 1));
            // A device takes its time, whatever it does.
            thread::sleep(Duration::from_micros(50));
            for (job, mailbox) in batch.into_iter().rev() {
                let is_known = match job.task {
                    Task::Compress { .. } | Task::Decompress { .. } => true,
                    Task::CompressCluster { .. } | Task::DecompressCluster { .. } => has_clusters,
                };
                let done = if is_known {
                    coder.run(job)
                } else {
                    let outcome = Outcome::Refused(TaskError::Unsupported);
                    Done { tag: job.tag, outcome, room: job.room, compress_ns: 0 }
                };
                *in_flight.lock().unwrap() -= 1;
                mailbox.deliver([done]);
            }
        }
    }
}

impl Engine for Accelerator {
    fn name(&self) -> &'static str {
        "accelerator"
    }

    fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize {
        let mut in_flight = self.in_flight.lock().unwrap();
        let count = jobs.len().min(Self::QUEUE - *in_flight);
        *in_flight += count;
        mailbox.expect(count);
        for job in jobs.drain(..count) {
            self.to_device.as_ref().unwrap().send((job, mailbox.clone())).unwrap();
        }
        count
    }

    fn depths(&self) -> Depths {
        Depths { compress: *self.in_flight.lock().unwrap(), ..Depths::default() }
    }

    fn room(&self, content_bytes: usize) -> Room {
        Room::of(content_bytes, |bytes| {
            self.lent.fetch_add(1, Ordering::SeqCst);
            Buffer::lent(Pinned { bytes: vec![0; bytes], lent: self.lent.clone() })
        })
    }
}

impl Drop for Accelerator {
    fn drop(&mut self) {
        self.to_device = None;
        self.device.take().unwrap().join().unwrap();
    }
}

fn config(workers_max: usize) -> WorkersConfig {
    WorkersConfig { workers_max, queue_max: 100, idle: Duration::from_millis(20) }
}

fn engines(choice: Choice) -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(Synchronous::new(choice).unwrap()),
        Box::new(Workers::new(choice, config(1)).unwrap()),
        Box::new(Workers::new(choice, config(4)).unwrap()),
        Box::new(Accelerator::new(choice)),
    ]
}

/// Pages of all kinds: phrases, noise, same-filled, columns.
fn page(nth: u64) -> Page {
    const PHRASES: [&[u8; 8]; 4] = [b"ramfold ", b"keeps a ", b"page in ", b"memory. "];
    let mut page = [0; PAGE_SIZE];
    let mut state = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in page.as_chunks_mut::<8>().0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *chunk = match nth % 4 {
            0 => *PHRASES[(state % 4) as usize],
            1 => state.to_le_bytes(),
            2 => [(nth >> 2) as u8; 8],
            _ => ((nth << 32) | (state % 100)).to_le_bytes(),
        };
    }
    page
}

fn compress(tag: u64) -> Job {
    let mut room = Room::for_page();
    room.content.copy_from_slice(&page(tag));
    Job { tag, task: Task::Compress { objective: Objective::Speed, object_bytes_max: 4032 }, room }
}

/// Submits all, collecting whenever there is no room.
fn finish(engine: &dyn Engine, jobs: impl IntoIterator<Item = Job>) -> BTreeMap<u64, Done> {
    let mailbox = Arc::new(Mailbox::new());
    let mut jobs: VecDeque<Job> = jobs.into_iter().collect();
    let total = jobs.len();
    let mut done = Vec::new();
    while !jobs.is_empty() {
        let (before, first) = (jobs.len(), jobs[0].tag);
        let taken = engine.submit(&mut jobs, &mailbox);
        assert_eq!(before - jobs.len(), taken);
        // What stays, stays in order.
        assert!(taken > 0 || jobs[0].tag == first);
        mailbox.collect(&mut done, usize::from(taken == 0));
    }
    mailbox.collect(&mut done, usize::MAX);
    assert_eq!((done.len(), mailbox.outstanding()), (total, 0), "{}", engine.name());
    let by_tag: BTreeMap<u64, Done> = done.into_iter().map(|done| (done.tag, done)).collect();
    assert_eq!(by_tag.len(), total, "each once");
    by_tag
}

#[test]
fn what_is_compressed_comes_back() {
    for choice in [Choice::Auto, Choice::Only(Codec::Lz4)] {
        for engine in engines(choice) {
            let compressed = finish(&*engine, (0..500).map(compress));
            let mut objects = Vec::new();
            for (tag, done) in compressed {
                match done.outcome {
                    Outcome::SameFilled(word) => {
                        assert_eq!(tag % 4, 2);
                        assert_eq!(page(tag)[..8], word.to_le_bytes());
                    }
                    Outcome::DoesNotFit => assert_eq!(tag % 4, 1),
                    Outcome::Compressed { encoding, len } => {
                        assert!(len <= 4032);
                        let mut room = Room::for_page();
                        room.object = done.room.object;
                        objects.push(Job { tag, task: Task::Decompress { encoding, len }, room });
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(objects.len() >= 250);
            for (tag, done) in finish(&*engine, objects) {
                assert_eq!(done.outcome, Outcome::Decompressed);
                assert!(*done.room.content == page(tag), "{} page {tag}", engine.name());
            }
        }
    }
}

fn cluster(size: ClusterSize, tag: u64) -> Vec<u8> {
    // A word all over, or pages of several kinds.
    (0..size.pages() as u64)
        .flat_map(|nth| page(if tag % 4 == 2 { tag } else { tag + nth }))
        .collect()
}

#[test]
fn clusters_come_back() {
    let codecs = [ClusterCodec::Lz4, ClusterCodec::Zstd(ZstdLevel::FASTEST)];
    for engine in engines(Choice::Auto) {
        for (size, codec) in
            ClusterSize::ALL.into_iter().flat_map(|size| codecs.map(|codec| (size, codec)))
        {
            let object_bytes_max = size.bytes() / 16 * 15;
            let compressed = finish(
                &*engine,
                (0..100).map(|tag| {
                    let mut room = Room::for_cluster(size);
                    room.content.copy_from_slice(&cluster(size, tag));
                    Job { tag, task: Task::CompressCluster { codec, object_bytes_max }, room }
                }),
            );
            let mut objects = Vec::new();
            assert!(compressed.values().map(|done| done.compress_ns).sum::<u64>() > 0);
            for (tag, done) in compressed {
                match done.outcome {
                    Outcome::SameFilled(word) => {
                        assert_eq!((tag % 4, word.to_le_bytes()), (2, [(tag >> 2) as u8; 8]));
                    }
                    Outcome::DoesNotFit => assert!(size == ClusterSize::One && tag % 4 == 1),
                    Outcome::Compressed { encoding, len } => {
                        assert!(len <= object_bytes_max);
                        let mut room = Room::for_cluster(size);
                        room.object = done.room.object;
                        let task = Task::DecompressCluster { encoding, len };
                        objects.push(Job { tag, task, room });
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(objects.len() >= 50);
            for (tag, done) in finish(&*engine, objects) {
                assert_eq!(done.outcome, Outcome::Decompressed);
                assert!(*done.room.content == cluster(size, tag), "{} {tag}", engine.name());
            }
        }
    }
}

#[test]
fn what_is_no_object_is_an_answer_too() {
    for engine in engines(Choice::Auto) {
        let encoding = Encoding::Lz4;
        let jobs = [0, 7, usize::MAX].into_iter().flat_map(|len| {
            let (page, cluster) = (Room::for_page(), Room::for_cluster(ClusterSize::Four));
            [
                (Task::Decompress { encoding, len }, page.clone()),
                (Task::Decompress { encoding, len }, cluster.clone()),
                (Task::DecompressCluster { encoding, len }, page),
                (Task::DecompressCluster { encoding, len }, cluster),
            ]
        });
        let jobs = jobs.zip(0..).map(|((task, room), tag)| Job { tag, task, room });
        for done in finish(&*engine, jobs).values() {
            assert!(matches!(done.outcome, Outcome::Damaged(_)), "{:?}", done.outcome);
        }
    }
}

/// Content of the wrong length is an error, and not content that does not compress.
#[test]
fn what_is_no_page_or_cluster_is_refused() {
    for engine in engines(Choice::Auto) {
        let (objective, object_bytes_max, codec) = (Objective::Speed, 4032, ClusterCodec::Lz4);
        let two_pages = 2 * PAGE_SIZE;
        let jobs = [
            Job {
                tag: 0,
                task: Task::Compress { objective, object_bytes_max },
                room: engine.room(two_pages),
            },
            Job {
                tag: 1,
                task: Task::CompressCluster { codec, object_bytes_max },
                room: engine.room(two_pages),
            },
        ];
        let mut jobs = jobs;
        // Not the same word all over, which needs no codec.
        jobs.iter_mut().for_each(|job| job.room.content[0] = 1);
        let done = finish(&*engine, jobs);
        let refusals =
            [TaskError::PageSize { bytes: two_pages }, TaskError::ClusterSize { bytes: two_pages }];
        for (done, refusal) in done.values().zip(refusals) {
            assert_eq!(done.outcome, Outcome::Refused(refusal), "{}", engine.name());
            assert!(refusal.to_string().contains("8192"), "{refusal}");
        }
    }
}

#[test]
fn a_task_that_an_engine_does_not_have_is_refused() {
    let engine = Accelerator::with(Choice::Auto, false);
    let (codec, encoding) = (ClusterCodec::Lz4, Encoding::Lz4);
    let tasks = [
        Task::CompressCluster { codec, object_bytes_max: 4032 },
        Task::DecompressCluster { encoding, len: 100 },
    ];
    let room = || engine.room(ClusterSize::Four.bytes());
    let jobs = tasks.into_iter().zip(0..).map(|(task, tag)| Job { tag, task, room: room() });
    for done in finish(&engine, jobs).values() {
        assert_eq!(done.outcome, Outcome::Refused(TaskError::Unsupported));
    }
}

#[test]
fn a_job_in_memory_of_the_engine_stays_there() {
    for engine in engines(Choice::Only(Codec::Lz4)) {
        let mut room = engine.room(PAGE_SIZE);
        room.content.copy_from_slice(&page(0));
        let places = [room.content.as_ptr(), room.object.as_ptr()];
        let task = Task::Compress { objective: Objective::Speed, object_bytes_max: 4032 };
        let mut done = finish(&*engine, [Job { tag: 0, task, room }]).remove(&0).unwrap();
        let Outcome::Compressed { encoding, len } = done.outcome else {
            panic!("{:?}", done.outcome)
        };
        done.room.content.fill(0);
        let task = Task::Decompress { encoding, len };
        let done = finish(&*engine, [Job { tag: 0, task, room: done.room }]).remove(&0).unwrap();
        assert_eq!(done.outcome, Outcome::Decompressed);
        assert!(*done.room.content == page(0), "{}", engine.name());
        assert_eq!(places, [done.room.content.as_ptr(), done.room.object.as_ptr()]);
    }
    let engine = Accelerator::new(Choice::Only(Codec::Lz4));
    let rooms = [0; 3].map(|_| engine.room(PAGE_SIZE));
    // A copy is of the heap.
    let copy = rooms[0].clone();
    assert_eq!(engine.lent.load(Ordering::SeqCst), 6);
    drop(rooms);
    assert_eq!((engine.lent.load(Ordering::SeqCst), copy.content.len()), (0, PAGE_SIZE));
}

#[test]
fn submitters_get_what_is_theirs() {
    for engine in engines(Choice::Only(Codec::Lz4)) {
        thread::scope(|scope| {
            for submitter in 0..6 {
                let engine = &*engine;
                scope.spawn(move || {
                    let own: Vec<u64> = (0..300).map(|nth| nth * 6 + submitter).collect();
                    let done = finish(engine, own.iter().copied().map(compress));
                    assert!(done.keys().copied().eq(own));
                });
            }
        });
    }
}

#[test]
fn an_engine_that_goes_finishes_what_it_has_taken() {
    for engine in engines(Choice::Only(Codec::Lz4)) {
        let mailbox = Arc::new(Mailbox::new());
        let mut jobs: VecDeque<Job> = (0..90).map(compress).collect();
        let taken = engine.submit(&mut jobs, &mailbox);
        drop(engine);
        let mut done = Vec::new();
        mailbox.collect(&mut done, 0);
        assert_eq!(done.len(), taken);
    }
}

#[test]
fn decompression_comes_before_all_that_waits() {
    // One worker, which is never kept waiting by itself.
    let engine = Workers::new(Choice::Only(Codec::Lz4), config(1)).unwrap();
    let object = finish(&engine, [compress(0)]).remove(&0).unwrap();
    let Outcome::Compressed { encoding, len } = object.outcome else {
        panic!("{:?}", object.outcome)
    };
    let task = Task::Decompress { encoding, len };
    // All are there when the first is taken.
    let mut jobs: VecDeque<Job> = (1..=100).map(|nth| compress(nth * 4)).collect();
    jobs.push_back(Job { tag: 0, task, room: object.room });
    let mailbox = Arc::new(Mailbox::new());
    assert_eq!(engine.submit(&mut jobs, &mailbox), 101);
    let mut done = Vec::new();
    mailbox.collect(&mut done, usize::MAX);
    let place = done.iter().position(|done| done.tag == 0).unwrap();
    assert!(place < 20, "{place} pages were compressed before");
    assert!(*done[place].room.content == page(0));
}

#[test]
fn workers_come_with_the_work_and_go_without_it() {
    let of_idle = |idle| {
        let config = WorkersConfig { idle, ..config(3) };
        Workers::new(Choice::Only(Codec::Lz4), config).unwrap()
    };
    // None goes while this looks.
    let engine = of_idle(Duration::from_secs(300));
    assert_eq!(engine.depths().workers, 1);
    // One page is not worth a second thread.
    finish(&engine, [compress(0)]);
    assert_eq!(engine.depths().workers, 1);
    let mailbox = Arc::new(Mailbox::new());
    engine.submit(&mut (0..100).map(compress).collect(), &mailbox);
    assert_eq!(engine.depths().workers, 3);
    mailbox.collect(&mut Vec::new(), usize::MAX);
    let engine = of_idle(Duration::from_millis(20));
    finish(&engine, (0..100).map(compress));
    let started = Instant::now();
    while engine.depths().workers > 1 {
        assert!(started.elapsed() < Duration::from_secs(300), "idle threads stay");
        thread::sleep(Duration::from_millis(5));
    }
    // The last stays, and works.
    assert_eq!(finish(&engine, (0..50).map(compress)).len(), 50);
}

#[test]
fn collecting_waits_for_no_more_than_there_is() {
    let mailbox = Mailbox::new();
    let mut done = Vec::new();
    mailbox.collect(&mut done, 5);
    assert!(done.is_empty());
    let engine = Synchronous::new(Choice::Only(Codec::Lz4)).unwrap();
    let mailbox = Arc::new(Mailbox::new());
    engine.submit(&mut (0..3).map(compress).collect(), &mailbox);
    assert_eq!(mailbox.outstanding(), 3);
    mailbox.collect(&mut done, 5);
    assert_eq!((done.len(), mailbox.outstanding()), (3, 0));
}
