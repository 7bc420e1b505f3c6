//! Keeps the machine's processors awake while agents ask for it, which they do while faults follow
//! closely on one another ([`Session::keep_awake`]).

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use ramfold_session::Session;
use ramfold_sys::time::monotonic_ns;

/// Everything else comes first.
const NICE: i32 = 19;
/// Between two looks at the clock: some microseconds.
const SPINS: u32 = 100;

/// Keeps processors awake until `ended`; [`Session::keep_awake`] is to be called then, so that this
/// thread sees it.
pub(crate) fn keep(session: &Session, ended: &AtomicBool) {
    // Where the program's is the only processor there is none to keep awake beside it.
    if available_parallelism().is_ok_and(|processors| processors.get() == 1)
        || rustix::process::nice(NICE).is_err()
    {
        return;
    }
    while !ended.load(Ordering::Acquire) {
        let now = monotonic_ns();
        if now < session.awake_until_ns() {
            (0..SPINS).for_each(|_| spin_loop());
        } else {
            session.wait_to_keep_awake(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ramfold_session::OwnedSession;
    use std::sync::{Arc, mpsc};
    use std::thread::{sleep, spawn};
    use std::time::{Duration, Instant};

    /// Waits until a thread of this process is in a state: S sleeps, R runs or would if it could.
    fn wait_until_it_is(state: &str, thread: rustix::thread::Pid) {
        let path = format!("/proc/self/task/{thread}/stat");
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let text = std::fs::read_to_string(&path).unwrap();
            let (_, fields) = text.rsplit_once(") ").unwrap();
            if fields.starts_with(state) {
                return;
            }
            assert!(Instant::now() < deadline, "it is not {state}: {fields}");
            sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn it_sleeps_until_it_is_asked_and_ends_when_told() {
        if available_parallelism().is_ok_and(|processors| processors.get() == 1) {
            return eprintln!("skipped: it does nothing where there is one processor");
        }
        let session = OwnedSession::create(1 << 30, "auto".parse().unwrap()).unwrap();
        let (session, ended) = (Arc::new(session), Arc::new(AtomicBool::new(false)));
        let (tell, told) = mpsc::channel();
        let keeper = spawn({
            let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
            move || {
                tell.send(rustix::thread::gettid()).unwrap();
                keep(&session, &ended);
            }
        });
        let thread = told.recv().unwrap();
        // One that spins never sleeps, and one that nobody wakes never runs.
        for _ in 0..3 {
            wait_until_it_is("S", thread);
            session.keep_awake(u64::MAX);
            wait_until_it_is("R", thread);
            session.keep_awake(0);
        }
        wait_until_it_is("S", thread);
        ended.store(true, Ordering::Release);
        session.keep_awake(u64::MAX);
        keeper.join().unwrap();
    }
}
