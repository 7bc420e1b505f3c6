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

/// Threads for requests that were handed over: for all users, and for one of them. Each may need a
/// buffer of a megabyte, and what one disk gives does not grow with their number.
const WORKING: Most = Most { threads: 32, of_user: 2 };
/// The same for what waits, and needs next to nothing meanwhile.
const WAITING: Most = Most { threads: 256, of_user: 16 };
/// One that nobody needs for so long ends.
const IDLE: Duration = Duration::from_secs(1);

type Task = Box<dyn FnOnce() + Send>;

/// Ends its threads when it is dropped, once they have done what was handed over.
#[derive(Debug)]
pub(super) struct Patience {
    here: AtomicUsize,
    here_max: usize,
    working: Arc<Pool>,
    /// What waits for requests, perhaps for what is being worked at, and so is never before it.
    waiting: Arc<Pool>,
    /// What waits for programs, as long as they like.
    retrying: Arc<Pool>,
}

/// One of the threads that take requests does something that may take long.
#[must_use = "it is taken to be done when this is dropped"]
#[derive(Debug)]
pub(super) struct Here<'a>(&'a AtomicUsize);

/// Threads that are made as they are needed.
pub(super) struct Pool {
    most: Most,
    state: Mutex<State>,
    changed: Condvar,
    is_ending: AtomicBool,
}

#[derive(Clone, Copy)]
struct Most {
    threads: usize,
    of_user: usize,
}

#[derive(Default)]
struct State {
    users: HashMap<u32, User>,
    /// Threads that do nothing, or have not begun.
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
    pub(super) fn new(serving: usize) -> Patience {
        let here_max = serving.saturating_sub(1);
        let [working, waiting, retrying] = [WORKING, WAITING, WAITING].map(Pool::new);
        Patience { here: AtomicUsize::new(0), here_max, working, waiting, retrying }
    }

    /// May this thread do something that may take long? Else another one is left for nothing.
    pub(super) fn here(&self) -> Option<Here<'_>> {
        let here = Here(&self.here);
        (self.here.fetch_add(1, Ordering::Relaxed) < self.here_max).then_some(here)
    }

    /// Has something done, on this thread or on another one.
    pub(super) fn run(&self, user: u32, task: impl FnOnce() + Send + 'static) {
        match self.here() {
            Some(_here) => task(),
            None => self.hand_over(user, task),
        }
    }

    /// Has something done on another thread.
    pub(super) fn hand_over(&self, user: u32, task: impl FnOnce() + Send + 'static) {
        self.working.add(user, task);
    }

    /// Has something done on another thread that waits for other requests to be answered.
    pub(super) fn wait(&self, user: u32, task: impl FnOnce() + Send + 'static) {
        self.waiting.add(user, task);
    }

    /// For what is handed over, to have something wait.
    pub(super) fn waiting(&self) -> Arc<Pool> {
        Arc::clone(&self.waiting)
    }

    /// Waits until something is done, tried again and again, or the end has come.
    pub(super) fn wait_until<R>(
        &self,
        user: u32,
        interval: Duration,
        mut attempt: impl FnMut(bool) -> Option<R> + Send + 'static,
        then: impl FnOnce(R) + Send + 'static,
    ) {
        let pool = Arc::clone(&self.retrying);
        self.retrying.add(user, move || {
            loop {
                thread::sleep(interval);
                if let Some(result) = attempt(pool.is_ending.load(Ordering::Relaxed)) {
                    return then(result);
                }
            }
        });
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        // What is worked at may have something wait.
        self.working.end();
        self.waiting.end();
        self.retrying.end();
    }
}

impl Pool {
    fn new(most: Most) -> Arc<Pool> {
        let (state, changed, is_ending) = Default::default();
        Arc::new(Pool { most, state, changed, is_ending })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something done for a user.
    pub(super) fn add(self: &Arc<Self>, user: u32, task: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        state.users.entry(user).or_default().waiting.push_back(Box::new(task));
        if state.waiting(self.most) <= state.idle {
            self.changed.notify_one();
        } else if state.running() + state.idle < self.most.threads {
            state.threads.retain(|thread| !thread.is_finished());
            let pool = Arc::clone(self);
            match thread::Builder::new().name("patience".to_owned()).spawn(move || pool.work()) {
                Ok(thread) => {
                    state.threads.push(thread);
                    state.idle += 1;
                }
                // Where there can be no more threads those that are there do it, or else this one.
                Err(_) if state.running() + state.idle > 0 => {}
                Err(_) => {
                    let task = state.next(user);
                    drop(state);
                    task.into_iter().for_each(|task| self.perform(user, task));
                }
            }
        }
    }

    fn end(&self) {
        let threads = {
            let mut state = self.lock();
            self.is_ending.store(true, Ordering::Relaxed);
            std::mem::take(&mut state.threads)
        };
        self.changed.notify_all();
        // One that panicked has said so.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(user) = state.most_due(self.most)
                && let Some(task) = state.next(user)
            {
                state.idle -= 1;
                drop(state);
                self.perform(user, task);
                state = self.lock();
                state.idle += 1;
                continue;
            }
            let is_ending = self.is_ending.load(Ordering::Relaxed);
            let waited =
                self.changed.wait_timeout(state, if is_ending { Duration::ZERO } else { IDLE });
            let (woken, wait) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if wait.timed_out() && state.most_due(self.most).is_none() {
                state.idle -= 1;
                return;
            }
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

    /// What may be done at once.
    fn waiting(&self, most: Most) -> usize {
        let of = |user: &User| user.waiting.len().min(most.of_user.saturating_sub(user.running));
        self.users.values().map(of).sum()
    }

    /// The user with the fewest threads of those for whom something waits and may be done.
    fn most_due(&self, most: Most) -> Option<u32> {
        let due = self
            .users
            .iter()
            .filter(|(_, user)| !user.waiting.is_empty() && user.running < most.of_user);
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
        for _ in 0..10 * WORKING.of_user {
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
        assert!(patience.working.lock().threads.len() <= WORKING.of_user + 5);
        drop(let_go);
        for _ in 0..10 * WORKING.of_user {
            assert_eq!(receiver.recv_timeout(PATIENCE), Ok(1));
        }
    }

    /// Two at once find the same thread idle.
    #[test]
    fn no_task_is_left_behind_another() {
        let patience = Patience::new(1);
        for _ in 0..200 {
            let (sender, receiver) = mpsc::channel::<()>();
            let (done, is_done) = mpsc::channel();
            patience.run(1, move || done.send(receiver.recv_timeout(PATIENCE)).unwrap());
            patience.run(1, move || sender.send(()).unwrap());
            assert_eq!(is_done.recv_timeout(PATIENCE).unwrap(), Ok(()));
        }
    }

    /// However many of those there are.
    #[test]
    fn what_waits_for_work_does_not_keep_it_from_being_done() {
        let patience = Patience::new(1);
        let (sender, receiver) = mpsc::channel::<()>();
        let receiver = Arc::new(Mutex::new(receiver));
        let (done, is_done) = mpsc::channel();
        for _ in 0..3 * WAITING.of_user {
            let (receiver, done) = (Arc::clone(&receiver), done.clone());
            patience.wait(1, move || {
                done.send(receiver.lock().unwrap().recv_timeout(PATIENCE)).unwrap();
            });
        }
        for _ in 0..3 * WAITING.of_user {
            let sender = sender.clone();
            patience.run(1, move || sender.send(()).unwrap());
        }
        for _ in 0..3 * WAITING.of_user {
            assert_eq!(is_done.recv_timeout(PATIENCE).unwrap(), Ok(()));
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
