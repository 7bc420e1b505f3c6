//! How fast backings are, by what reads of them have taken of late.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a read of a fast backing takes at most: a local solid-state disk, say.
const FAST_READ_NS: u64 = 100_000;
const FAST_PS_PER_BYTE: u64 = 4000;
/// A backing is slow or fast when it takes clearly more, or less, than that, in percent.
const SLOW_PERCENT: u64 = 130;
const FAST_PERCENT: u64 = 80;
/// Which of the two shows by what it has given in this time.
const WINDOW: Duration = Duration::from_millis(250);
/// To count as slow it must have been at work for this part of the time.
const WORK_PART: u64 = 4;
/// Reads of at least this length say how long a byte takes in order: the mean of about the last
/// 16 MiB.
const LONG_READ_BYTES: u64 = 64 << 10;
const MEAN_OF_BYTES: u64 = 16 << 20;
/// Before anything is known: a slow one, as most are that are worth a cache.
const FIRST_PS_PER_BYTE: u64 = 8000;

/// How fast backings are, all reads together.
///
/// As long as little is asked of it, a slow one can answer at once, or give most in bursts. So it
/// counts as fast when it has given as much in a while as only a fast one can, and as slow when it
/// was at work for long and gave less.
#[derive(Debug)]
pub struct BackingSpeed {
    under_way: AtomicU64,
    /// Thousandths of a nanosecond for a byte, of late, in order.
    ps_per_byte: AtomicU64,
    is_slow: AtomicBool,
    /// What the reads of this window would have taken on a backing that is just fast, one after the
    /// other.
    fast_ns: AtomicU64,
    /// What they took.
    taken_ns: AtomicU64,
    window_began: Mutex<Instant>,
}

impl Default for BackingSpeed {
    /// Of backings that nobody has read yet.
    fn default() -> BackingSpeed {
        BackingSpeed {
            under_way: AtomicU64::new(0),
            ps_per_byte: AtomicU64::new(FIRST_PS_PER_BYTE),
            is_slow: AtomicBool::new(true),
            fast_ns: AtomicU64::new(0),
            taken_ns: AtomicU64::new(0),
            window_began: Mutex::new(Instant::now()),
        }
    }
}

impl BackingSpeed {
    /// A read begins. Returns how many are under way now, this one included.
    pub fn begin(&self) -> u64 {
        self.under_way.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A read has ended.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// A read of `bytes` has taken `ns` nanoseconds while `under_way` reads were under way.
    pub fn note(&self, ns: u64, bytes: u64, under_way: u64) {
        self.add(ns, bytes, under_way);
        // Another thread is at it.
        let Ok(mut began) = self.window_began.try_lock() else { return };
        let elapsed = began.elapsed();
        if elapsed >= WINDOW {
            *began = Instant::now();
            drop(began);
            self.end_window(elapsed);
        }
    }

    /// The same within a window.
    fn add(&self, ns: u64, bytes: u64, under_way: u64) {
        let own_ns = ns / under_way.max(1);
        let would_take_ns = FAST_READ_NS + bytes * FAST_PS_PER_BYTE / 1000;
        self.fast_ns.fetch_add(would_take_ns, Ordering::Relaxed);
        self.taken_ns.fetch_add(own_ns, Ordering::Relaxed);
        if bytes >= LONG_READ_BYTES {
            let own = u128::from(own_ns) * 1000 / u128::from(bytes);
            let before = u128::from(self.ps_per_byte.load(Ordering::Relaxed));
            let (weight, all) = (u128::from(bytes.min(1 << 20)), u128::from(MEAN_OF_BYTES));
            let mixed = (before * (all - weight) + own * weight) / all;
            self.ps_per_byte.store(mixed as u64, Ordering::Relaxed);
        }
    }

    fn end_window(&self, length: Duration) {
        let fast_ns = self.fast_ns.swap(0, Ordering::Relaxed);
        let taken_ns = self.taken_ns.swap(0, Ordering::Relaxed);
        let length_ns = length.as_nanos() as u64;
        if fast_ns.saturating_mul(FAST_PERCENT) / 100 >= length_ns {
            self.is_slow.store(false, Ordering::Relaxed);
        } else if taken_ns >= fast_ns.saturating_mul(SLOW_PERCENT) / 100
            && taken_ns >= length_ns / WORK_PART
        {
            self.is_slow.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a read takes so long that much compression is worth its time.
    pub fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Relaxed)
    }

    /// Nanoseconds that a byte takes when it is read in order.
    pub fn ns_per_byte(&self) -> f64 {
        self.ps_per_byte.load(Ordering::Relaxed) as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes reads, each of which has taken so long, as many as are done in a second.
    fn second_of(speed: &BackingSpeed, ns: u64, bytes: u64, under_way: u64) -> bool {
        let own_ns = ns / under_way;
        (0..1_000_000_000 / own_ns).for_each(|_| speed.add(ns, bytes, under_way));
        speed.end_window(Duration::from_secs(1));
        speed.is_slow()
    }

    #[test]
    fn a_backing_is_slow_or_fast_by_what_its_reads_take() {
        let speed = BackingSpeed::default();
        assert!(speed.is_slow());
        // A local disk: single pages, and a stream of 2 GB/s.
        assert!(!second_of(&speed, 40_000, 4096, 1));
        assert!(!second_of(&speed, 500_000, 1 << 20, 1));
        // 3,000 reads a second; 125 MB/s; four at a time.
        assert!(second_of(&speed, 333_000, 16384, 1));
        assert!(!second_of(&speed, 500_000, 1 << 20, 1));
        assert!(second_of(&speed, 8_400_000, 1 << 20, 1));
        assert!(second_of(&speed, 1_332_000, 16384, 4));
        // In between it stays what it was, and a single read says little.
        assert!(second_of(&speed, 125_000, 4096, 1));
        assert!(!second_of(&speed, 60_000, 4096, 4));
        assert!(!second_of(&speed, 125_000, 4096, 1));
        (0..20).for_each(|_| speed.add(2_000_000, 4096, 1));
        speed.end_window(Duration::from_secs(1));
        assert!(!speed.is_slow());
    }

    #[test]
    fn one_that_is_asked_for_little_does_not_count_as_fast() {
        let speed = BackingSpeed::default();
        // It is throttled to 3,000 reads a second, but most are found here.
        for _ in 0..100 {
            (0..1000).for_each(|_| speed.add(40_000, 16384, 1));
            speed.end_window(Duration::from_secs(1));
            assert!(speed.is_slow());
        }
    }

    #[test]
    fn one_that_gives_most_in_bursts_is_as_slow_as_it_is_on_the_whole() {
        let speed = BackingSpeed::default();
        // 125 MB/s: in each tenth of a second first 11 MiB at once, then nothing.
        for _ in 0..20 {
            for _ in 0..10 {
                (0..11).for_each(|_| speed.add(500_000, 1 << 20, 1));
                speed.add(90_000_000, 1 << 20, 1);
            }
            speed.end_window(Duration::from_secs(1));
            assert!(speed.is_slow());
        }
    }

    #[test]
    fn reads_in_order_say_how_long_a_byte_takes() {
        let speed = BackingSpeed::default();
        let first = speed.ns_per_byte();
        speed.add(40_000, 4096, 1);
        assert_eq!(speed.ns_per_byte(), first);
        (0..100).for_each(|_| speed.add(2_097_152, 1 << 20, 4));
        assert!((speed.ns_per_byte() - 0.5).abs() < 0.05, "{}", speed.ns_per_byte());
        (0..100).for_each(|_| speed.add(8_388_608, 1 << 20, 1));
        assert!((speed.ns_per_byte() - 8.0).abs() < 0.1, "{}", speed.ns_per_byte());
    }
}
