//! Time, read by a plain system call: the vDSO would need set-up per process and is not worth it
//! for the two readings a fault takes.

use core::mem::MaybeUninit;

use crate::raw;

const CLOCK_MONOTONIC: usize = 1;

/// Nanoseconds since an arbitrary point, never going backwards.
#[inline]
pub fn monotonic_ns() -> u64 {
    let mut time = MaybeUninit::<[i64; 2]>::uninit();
    // SAFETY: the kernel fills the two words of a timespec; CLOCK_MONOTONIC always exists.
    let [seconds, nanoseconds] = unsafe {
        raw::syscall2(raw::nr::CLOCK_GETTIME, CLOCK_MONOTONIC, time.as_mut_ptr() as usize);
        time.assume_init()
    };
    seconds as u64 * 1_000_000_000 + nanoseconds as u64
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
