//! Requests that may take long: reading and writing SOURCE, and waiting for somebody else.
//!
//! The threads that take requests from the kernel (fuser's) do them themselves, as long as one of
//! those threads is left for what is answered at once. The rest is handed over to threads that are
//! made for it, so many for each user: whatever one user waits for, another one is answered.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Threads for requests that were handed over: for all users, and for one of them.
const THREADS_MAX: usize = 256;
const USER_THREADS_MAX: usize = 16;
/// One that nobody needs for so long ends.
const IDLE: Duration = Duration::from_secs(1);

type Task = Box<dyn FnOnce() + Send>;

/// Ends its threads when it is dropped, once they have done what was handed over.
#[derive(Debug)]
pub struct Patience {
    here: AtomicUsize,
    here_max: usize,
    pool: Arc<Pool>,
}

/// One of the threads that take requests does something that may take long.
#[must_use = "it is taken to be done when this is dropped"]
#[derive(Debug)]
pub struct Here<'a>(&'a AtomicUsize);

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    is_ending: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Threads that wait for something to do.
    idle: usize,
    threads: Vec<JoinHandle<()>>,
}

/// What was handed over of one user's.
#[derive(Default)]
struct User {
    waiting: VecDeque<Task>,
    running: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Patience {
    /// Beside so many threads that take requests.
    pub fn new(serving: usize) -> Patience {
        let here_max = serving.saturating_sub(1);
        Patience { here: AtomicUsize::new(0), here_max, pool: Arc::default() }
    }

    /// May this thread do something that may take long? Else another one is left for nothing.
    pub fn here(&self) -> Option<Here<'_>> {
        let here = Here(&self.here);
        (self.here.fetch_add(1, Ordering::Relaxed) < self.here_max).then_some(here)
    }

    /// Has something done, on this thread or on another one.
    pub fn run(&self, user: u32, task: impl FnOnce() + Send + 'static) {
        match self.here() {
            Some(_here) => task(),
            None => self.hand_over(user, Box::new(task)),
        }
    }

    /// Has something done on another thread.
    pub fn hand_over(&self, user: u32, task: Task) {
        let mut state = self.pool.lock();
        state.users.entry(user).or_default().waiting.push_back(task);
        if state.idle > 0 {
            self.pool.changed.notify_one();
        } else if state.running() < THREADS_MAX {
            state.threads.retain(|thread| !thread.is_finished());
            let pool = Arc::clone(&self.pool);
            match thread::Builder::new().name("patience".to_owned()).spawn(move || pool.work()) {
                Ok(thread) => state.threads.push(thread),
                // Where there can be no more threads those that are there do it, or else this one.
                Err(_) if state.running() > 0 => {}
                Err(_) => {
                    let task = state.next(user);
                    drop(state);
                    task.into_iter().for_each(|task| self.pool.perform(user, task));
                }
            }
        }
    }

    /// Whether nothing is to be waited for any more.
    pub fn is_ending(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.pool.is_ending)
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.pool.is_ending.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut self.pool.lock().threads);
        self.pool.changed.notify_all();
        // One that panicked has said so.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut state = self.lock();
            let (user, task) = loop {
                if let Some(user) = state.most_due()
                    && let Some(task) = state.next(user)
                {
                    break (user, task);
                }
                if self.is_ending.load(Ordering::Relaxed) {
                    return;
                }
                state.idle += 1;
                let (woken, wait) =
                    self.changed.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                if wait.timed_out() && state.most_due().is_none() {
                    return;
                }
            };
            drop(state);
            self.perform(user, task);
        }
    }

    fn perform(&self, user: u32, task: Task) {
        // Counted also where it panics: it has said so, and the kernel is told by its reply.
        struct Running<'a>(&'a Pool, u32);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.lock().done(self.1);
            }
        }
        let _running = Running(self, user);
        task();
    }
}

impl State {
    fn running(&self) -> usize {
        self.users.values().map(|user| user.running).sum()
    }

    /// The user with the fewest threads of those for whom something waits and may be done.
    fn most_due(&self) -> Option<u32> {
        let due = self
            .users
            .iter()
            .filter(|(_, user)| !user.waiting.is_empty() && user.running < USER_THREADS_MAX);
        due.min_by_key(|(_, user)| user.running).map(|(&user, _)| user)
    }

    fn next(&mut self, user: u32) -> Option<Task> {
        let of_user = self.users.get_mut(&user)?;
        let task = of_user.waiting.pop_front()?;
        of_user.running += 1;
        Some(task)
    }

    fn done(&mut self, user: u32) {
        if let Some(of_user) = self.users.get_mut(&user) {
            of_user.running -= 1;
            if of_user.running == 0 && of_user.waiting.is_empty() {
                self.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn one_thread_is_left_for_what_is_answered_at_once() {
        let patience = Patience::new(3);
        let (first, second) = (patience.here(), patience.here());
        assert!(first.is_some() && second.is_some());
        assert!(patience.here().is_none() && patience.here().is_none());
        let this = thread::current().id();
        let (sender, receiver) = mpsc::channel();
        let run = || {
            let sender = sender.clone();
            patience.run(1, move || sender.send(thread::current().id()).unwrap());
            receiver.recv_timeout(PATIENCE).unwrap()
        };
        assert_ne!(run(), this);
        drop(first);
        assert_eq!(run(), this);
    }

    #[test]
    fn who_waits_keeps_no_other_user_waiting() {
        let patience = Patience::new(1);
        let (let_go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(Mutex::new(wait));
        let (sender, receiver) = mpsc::channel();
        for _ in 0..10 * USER_THREADS_MAX {
            let (wait, sender) = (Arc::clone(&wait), sender.clone());
            patience.run(1, move || {
                let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
                sender.send(1).unwrap();
            });
        }
        for user in [2, 3, 2, 3] {
            let sender = sender.clone();
            patience.run(user, move || sender.send(user).unwrap());
        }
        let mut others: Vec<_> = (0..4).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
        others.sort_unstable();
        assert_eq!(others, [2, 2, 3, 3]);
        assert!(patience.pool.lock().threads.len() <= USER_THREADS_MAX + 5);
        drop(let_go);
        for _ in 0..10 * USER_THREADS_MAX {
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(1));
        }
    }

    #[test]
    fn what_was_handed_over_is_done_before_the_end() {
        let patience = Patience::new(1);
        let done = Arc::new(AtomicUsize::new(0));
        for user in 0..100 {
            let done = Arc::clone(&done);
            patience.run(user % 3, move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(patience);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }
}
