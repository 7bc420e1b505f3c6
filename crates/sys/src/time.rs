//! Clocks.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary point, never going backwards. Read in the vDSO, and so without a
/// system call where the machine's clock allows it.
#[inline]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of CPU time that this thread has used. A system call.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

#[inline]
fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn does_not_go_backwards() {
        let a = super::monotonic_ns();
        let b = super::monotonic_ns();
        assert!(a > 0 && b >= a);
    }

    /// Where the machine itself is kept waiting that may count as the thread's time: not always.
    #[test]
    fn a_thread_that_sleeps_has_no_processor() {
        crate::tests_wait_until("a thread has slept", || {
            let before = super::thread_cpu_ns();
            std::thread::sleep(std::time::Duration::from_millis(50));
            super::thread_cpu_ns() - before < 40_000_000
        });
    }
}
