//! Time, read in the vDSO: without a system call where the machine's clock allows.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary point, never going backwards.
#[inline]
pub fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
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
}
