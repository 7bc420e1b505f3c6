//! What the processors of the machine did, all programs together.

use std::fs;
use std::io;

/// Since the machine was started, in seconds, all processors together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// In anything but idling, what the hypervisor took included.
    pub busy_s: f64,
    /// Of it: what the hypervisor took.
    pub stolen_s: f64,
    /// Idle, or waiting for a disk.
    pub idle_s: f64,
}

/// Kernel ticks, as files in `/proc` have them, as seconds.
pub fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

impl Times {
    /// As they are now.
    ///
    /// # Errors
    /// When `/proc/stat` cannot be read or is not what it should be.
    pub fn now() -> io::Result<Times> {
        let text = fs::read_to_string("/proc/stat")?;
        Times::parsed(&text).ok_or_else(|| io::Error::other("no line 'cpu' in /proc/stat"))
    }

    /// From the line "cpu": user, nice, system, idle, iowait, irq, softirq, steal. Guest time is
    /// part of user already.
    fn parsed(stat: &str) -> Option<Times> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> =
            line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        let sum = |columns: &[usize]| {
            ticks_to_seconds(columns.iter().filter_map(|&column| ticks.get(column)).sum())
        };
        Some(Times { busy_s: sum(&[0, 1, 2, 5, 6, 7]), stolen_s: sum(&[7]), idle_s: sum(&[3, 4]) })
    }

    /// What came since `earlier`.
    pub fn since(&self, earlier: &Times) -> Times {
        let more = |of: fn(&Times) -> f64| (of(self) - of(earlier)).max(0.0);
        Times {
            busy_s: more(|times| times.busy_s),
            stolen_s: more(|times| times.stolen_s),
            idle_s: more(|times| times.idle_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_and_guest() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let times = Times::parsed("cpu  1 2 4 1000 500 8 16 32 64 128\ncpu0 9 9 9\n").unwrap();
        for (seconds, expected) in
            [(times.busy_s, 63.0), (times.stolen_s, 32.0), (times.idle_s, 1500.0)]
        {
            assert!((seconds - expected / ticks).abs() < 1e-9, "{times:?}");
        }
        assert_eq!(Times::parsed("intr 1\n"), None);
    }

    #[test]
    fn a_thread_that_computes_is_seen() {
        let before = Times::now().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 100 {
            std::hint::spin_loop();
        }
        let times = Times::now().unwrap().since(&before);
        // Ticks are of 10 ms, and each processor's are rounded.
        assert!(times.busy_s >= 0.05, "{times:?}");
    }
}
