//! Keeps the machine's processors awake while programs under ramfold fault again and again: see
//! [`ramfold_pager::density`].

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use ramfold_pager::session::Session;
use ramfold_sys::time::monotonic_ns;

/// Everything else comes first.
const NICE: i32 = 19;
/// Between two looks at the clock: some microseconds.
const SPINS: u32 = 100;

/// Keeps awake until `ended`, at which the thread that runs this is to be kept awake itself.
pub fn keep(session: &Session, ended: &AtomicBool) {
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
    use ramfold_pager::session::OwnedSession;
    use std::sync::Arc;
    use std::thread::{sleep, spawn};
    use std::time::Duration;

    #[test]
    fn it_sleeps_until_it_is_asked_and_ends_when_told() {
        let session = OwnedSession::create(1 << 30, "auto".parse().unwrap()).unwrap();
        let (session, ended) = (Arc::new(session), Arc::new(AtomicBool::new(false)));
        let keeper = spawn({
            let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
            move || {
                keep(&session, &ended);
                rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime)
            }
        });
        sleep(Duration::from_millis(300));
        session.keep_awake(monotonic_ns() + 50_000_000);
        sleep(Duration::from_millis(300));
        ended.store(true, Ordering::Release);
        session.keep_awake(u64::MAX);
        let used = keeper.join().unwrap();
        let used_ms = used.tv_sec * 1000 + used.tv_nsec / 1_000_000;
        assert!(used_ms < 200, "{used_ms}");
    }
}
