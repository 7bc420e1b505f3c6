//! How long the device takes for a request: whether the thread that reads requests does them
//! itself, or leaves them to others.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::request::Command;

/// A device that takes longer is not waited for. To leave a request to another thread takes some
/// 10 us of two processors.
const QUICK_NS: u32 = 40_000;
/// A longer time counts as this: one that waited for a processor says little of the device.
const COUNTED_NS_MAX: u32 = 1_000_000;
/// The newest time is this part of the average: 1 / WEIGHT.
const WEIGHT: u32 = 64;

/// Averages for each kind of request.
#[derive(Debug, Default)]
pub(super) struct Pace([AtomicU32; 4]);

fn kind(command: Command) -> usize {
    match command {
        Command::Read { .. } => 0,
        Command::Write(_) => 1,
        Command::Flush => 2,
        _ => 3,
    }
}

impl Pace {
    pub(super) fn is_quick(&self, command: Command) -> bool {
        // Relaxed, as below: any of the last averages will do.
        self.0[kind(command)].load(Ordering::Relaxed) < QUICK_NS
    }

    pub(super) fn note(&self, command: Command, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX).min(COUNTED_NS_MAX);
        let average = &self.0[kind(command)];
        let before = average.load(Ordering::Relaxed);
        average.store(before - before / WEIGHT + took / WEIGHT, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_quick_until_it_takes_long() {
        let pace = Pace::default();
        let read = Command::Read { in_one_chunk: false };
        for _ in 0..1000 {
            pace.note(read, Duration::from_micros(5));
        }
        assert!(pace.is_quick(read));
        // Two that were interrupted.
        pace.note(read, Duration::from_millis(50));
        pace.note(read, Duration::from_millis(50));
        assert!(pace.is_quick(read));
        for _ in 0..100 {
            pace.note(read, Duration::from_micros(500));
        }
        assert!(!pace.is_quick(read));
        assert!(pace.is_quick(Command::Flush));
        for _ in 0..1000 {
            pace.note(read, Duration::from_micros(5));
        }
        assert!(pace.is_quick(read));
    }
}
