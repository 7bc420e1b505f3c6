//! The engine of threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ramfold_codec::Choice;

use crate::coder::{Coder, EngineError};
use crate::job::Done;
use crate::mailbox::Mailbox;
use crate::{Depths, Engine, Job};

/// One more thread is woken for each so many pages that wait: to wake one takes 25 to 75 us, as
/// long as to compress a few pages.
const PAGES_PER_WORKER: usize = 16;
/// Pages that a worker takes at once.
const BATCH: usize = 8;

/// How [`Workers`] may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersConfig {
    /// Most threads; at least 1.
    pub workers_max: usize,
    /// Most pages that wait to be compressed.
    pub queue_max: usize,
    /// A thread that has had nothing to do for so long ends; the last one stays.
    pub idle: Duration,
}

impl Default for WorkersConfig {
    /// A thread for each processor.
    fn default() -> Self {
        WorkersConfig {
            workers_max: thread::available_parallelism().map_or(1, usize::from),
            queue_max: 1024,
            idle: Duration::from_secs(1),
        }
    }
}

/// Threads that take decompressions first, then pages to compress. There is one at the start.
/// Others are started when more work waits than those that are awake can take at once, and end when
/// there is none. Dropping the engine finishes what was submitted.
pub struct Workers {
    shared: Arc<Shared>,
}

struct Shared {
    choice: Choice,
    config: WorkersConfig,
    queues: Mutex<Queues>,
    work: Condvar,
    /// The length of the urgent queue, to be seen without the lock.
    urgent: AtomicUsize,
}

#[derive(Default)]
struct Queues {
    urgent: VecDeque<Item>,
    bulk: VecDeque<Item>,
    alive: usize,
    asleep: usize,
    stopping: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Item {
    job: Job,
    mailbox: Arc<Mailbox>,
}

impl Workers {
    /// An engine that compresses pages as `choice` says, with its first thread.
    ///
    /// # Errors
    /// [`EngineError::Codec`]; [`EngineError::Thread`] if the first thread cannot be started.
    pub fn new(choice: Choice, config: WorkersConfig) -> Result<Workers, EngineError> {
        let shared = Arc::new(Shared {
            choice,
            config,
            queues: Mutex::default(),
            work: Condvar::new(),
            urgent: AtomicUsize::new(0),
        });
        Shared::start(&shared, &mut shared.lock())?;
        Ok(Workers { shared })
    }
}

impl Engine for Workers {
    fn name(&self) -> &'static str {
        "async"
    }

    fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize {
        let shared = &self.shared;
        let mut queues = shared.lock();
        let mut room = shared.config.queue_max.saturating_sub(queues.bulk.len());
        let mut count = 0;
        while let Some(job) = jobs.pop_front() {
            let urgent = job.is_urgent();
            if !urgent && room == 0 {
                jobs.push_front(job);
                break;
            }
            let item = Item { job, mailbox: mailbox.clone() };
            if urgent {
                queues.urgent.push_back(item);
            } else {
                room -= 1;
                queues.bulk.push_back(item);
            }
            count += 1;
        }
        // None can be finished while the queues are locked.
        mailbox.expect(count);
        shared.urgent.store(queues.urgent.len(), Ordering::Relaxed);
        let worth = queues.urgent.len() + queues.bulk.len().div_ceil(PAGES_PER_WORKER);
        let awake = queues.alive - queues.asleep;
        let missing = worth.min(shared.config.workers_max).saturating_sub(awake);
        let woken = missing.min(queues.asleep);
        for _ in woken..missing {
            if queues.alive < shared.config.workers_max
                && let Err(error) = Shared::start(shared, &mut queues)
            {
                // The threads that are there do the work.
                debug_assert!(queues.alive > 0, "{error}");
            }
        }
        drop(queues);
        for _ in 0..woken {
            shared.work.notify_one();
        }
        count
    }

    fn depths(&self) -> Depths {
        let queues = self.shared.lock();
        Depths {
            compress: queues.bulk.len(),
            decompress: queues.urgent.len(),
            workers: queues.alive,
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut queues = self.shared.lock();
        queues.stopping = true;
        let threads = std::mem::take(&mut queues.threads);
        drop(queues);
        self.shared.work.notify_all();
        for thread in threads {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(shared: &Arc<Shared>, queues: &mut Queues) -> Result<(), EngineError> {
        let mut coder = Coder::new(shared.choice)?;
        let of_thread = shared.clone();
        let thread = thread::Builder::new()
            .name("ramfold-engine".to_owned())
            .spawn(move || of_thread.run(&mut coder))
            .map_err(EngineError::Thread)?;
        queues.threads.retain(|thread| !thread.is_finished());
        queues.threads.push(thread);
        queues.alive += 1;
        Ok(())
    }

    fn run(&self, coder: &mut Coder) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut done: Vec<(Done, Arc<Mailbox>)> = Vec::with_capacity(BATCH);
        while self.take(&mut batch) {
            for item in batch.drain(..) {
                if self.urgent.load(Ordering::Relaxed) > 0 {
                    self.run_urgent(coder);
                }
                done.push((coder.run(item.job), item.mailbox));
            }
            deliver(&mut done);
        }
    }

    /// Does the jobs that somebody waits for.
    fn run_urgent(&self, coder: &mut Coder) {
        loop {
            let mut queues = self.lock();
            let item = queues.pop_urgent(&self.urgent);
            drop(queues);
            let Some(Item { job, mailbox }) = item else { break };
            mailbox.deliver([coder.run(job)]);
        }
    }

    /// Takes the jobs to do next, and waits for them; `false` when the thread is to end.
    fn take(&self, batch: &mut Vec<Item>) -> bool {
        let mut queues = self.lock();
        loop {
            if let Some(item) = queues.pop_urgent(&self.urgent) {
                batch.push(item);
                return true;
            }
            if !queues.bulk.is_empty() {
                // What is left is shared among those awake.
                let awake = (queues.alive - queues.asleep).max(1);
                let count = queues.bulk.len().div_ceil(awake).min(BATCH);
                batch.extend(queues.bulk.drain(..count));
                return true;
            }
            if queues.stopping {
                queues.alive -= 1;
                return false;
            }
            queues.asleep += 1;
            let (woken, waited) = self
                .work
                .wait_timeout(queues, self.config.idle)
                .unwrap_or_else(PoisonError::into_inner);
            queues = woken;
            queues.asleep -= 1;
            let nothing = queues.urgent.is_empty() && queues.bulk.is_empty();
            if waited.timed_out() && nothing && queues.alive > 1 && !queues.stopping {
                queues.alive -= 1;
                return false;
            }
        }
    }
}

impl Queues {
    fn pop_urgent(&mut self, length: &AtomicUsize) -> Option<Item> {
        let item = self.urgent.pop_front();
        length.store(self.urgent.len(), Ordering::Relaxed);
        item
    }
}

/// Delivers finished jobs to their submitters, consecutive ones of one submitter together.
fn deliver(done: &mut Vec<(Done, Arc<Mailbox>)>) {
    let mut done = done.drain(..).peekable();
    while let Some((first, mailbox)) = done.next() {
        let mut own = vec![first];
        while let Some((next, _)) = done.next_if(|(_, other)| Arc::ptr_eq(other, &mailbox)) {
            own.push(next);
        }
        mailbox.deliver(own);
    }
}
