//! Which segments of the spill file are which process's. A segment is free when it is in no
//! process's set.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{Process, Session};

/// Segments that a spill file can have.
pub const SEGMENTS_MAX: usize = 1 << 14;

/// Segments of the spill file.
#[repr(C)]
pub struct SegmentSet([AtomicU64; SEGMENTS_MAX / 64]);

impl SegmentSet {
    /// Which of the 64 segments from 64 times `index` on are in it: a bit for each.
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        // Only what is set: the rest of the memory is not there.
        self.0.iter().filter(|word| word.load(Ordering::Relaxed) != 0).for_each(|word| {
            word.store(0, Ordering::Release);
        });
    }

    /// Adds what another set has.
    pub(crate) fn add_all(&self, other: &SegmentSet) {
        for (word, more) in self.0.iter().zip(&other.0) {
            let more = more.load(Ordering::Relaxed);
            if more != 0 {
                word.fetch_or(more, Ordering::SeqCst);
            }
        }
    }
}

impl Session {
    /// Takes a segment of the spill file for a process; `None` where all are taken.
    pub fn claim_segment(&self, process: &Process) -> Option<u32> {
        let count = self.spill.segment_count.load(Ordering::Relaxed) as usize;
        let pid = process.pid.load(Ordering::Relaxed);
        for attempt in 0..2 {
            for index in 0..count.div_ceil(64) {
                let valid = u64::MAX >> (64 - (count - index * 64).min(64));
                let mut free = valid & !self.taken_segments(index);
                while free != 0 {
                    // Processes that look at the same time try different ones first.
                    let nth = if attempt == 0 { 0 } else { pid % free.count_ones() };
                    let bit = (0..nth).fold(free, |rest, _| rest & (rest - 1));
                    let bit = bit & bit.wrapping_neg();
                    process.segments.word(index).fetch_or(bit, Ordering::SeqCst);
                    let others =
                        self.used_processes().filter(|other| !ptr::eq(*other, process)).fold(
                            self.spill.pinned.word(index).load(Ordering::SeqCst),
                            |all, other| all | other.segments.word(index).load(Ordering::SeqCst),
                        );
                    if others & bit == 0 {
                        return Some((index * 64) as u32 + bit.trailing_zeros());
                    }
                    // Somebody else has taken it at the same time, and one of us lets go at least.
                    process.segments.word(index).fetch_and(!bit, Ordering::SeqCst);
                    free &= !bit;
                }
            }
            if attempt == 0 {
                self.clear_segments_of_the_dead();
            }
        }
        None
    }

    /// The segments that a process has.
    pub fn segments_of(&self, process: &Process) -> impl Iterator<Item = u32> {
        (0..SEGMENTS_MAX as u32).filter(|segment| {
            let word = process.segments.word(*segment as usize / 64).load(Ordering::SeqCst);
            word & 1 << (segment % 64) != 0
        })
    }

    /// Gives a segment back.
    pub fn release_segment(&self, process: &Process, segment: u32) {
        let (index, bit) = (segment as usize / 64, 1 << (segment % 64));
        process.segments.word(index).fetch_and(!bit, Ordering::SeqCst);
    }

    /// Which of 64 segments somebody has.
    fn taken_segments(&self, index: usize) -> u64 {
        self.used_processes()
            .fold(self.spill.pinned.word(index).load(Ordering::SeqCst), |all, p| {
                all | p.segments.word(index).load(Ordering::SeqCst)
            })
    }

    fn clear_segments_of_the_dead(&self) {
        for place in self.used_processes() {
            if place.dead_pid().is_some() {
                place.segments.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::tests::session;

    #[test]
    fn a_segment_is_one_familys_until_all_of_it_have_given_it_back() {
        let session = session();
        session.spill.segment_count.store(70, Ordering::Relaxed);
        let (me, other) = (session.claim(std::process::id()).unwrap(), session.claim(1).unwrap());
        assert_eq!(session.claim_segment(me), Some(0));
        assert_eq!(session.claim_segment(other), Some(1));
        let child = session.prepare_child(me).unwrap();
        session.release_segment(me, 0);
        assert_eq!(session.claim_segment(other), Some(2), "the child has it still");
        session.adopt(child, 1);
        session.release_segment(child, 0);
        assert_eq!(session.claim_segment(me), Some(0));
        let all: Vec<u32> = std::iter::from_fn(|| session.claim_segment(me)).collect();
        assert_eq!(all, (3..70).collect::<Vec<u32>>());
        // What a dead process had is free again.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        other.pid.store(dead.id(), Ordering::Relaxed);
        let mut freed = [session.claim_segment(me), session.claim_segment(me)];
        freed.sort_unstable();
        assert_eq!(freed, [Some(1), Some(2)]);
        assert_eq!(session.claim_segment(me), None);
        assert_eq!(session.segments_of(child).count(), 0);
        assert!(session.segments_of(me).eq([0, 1, 2].into_iter().chain(3..70)));
        // One that was never made has nothing.
        let unborn = session.prepare_child(me).unwrap();
        session.release_segment(me, 5);
        assert_eq!(session.claim_segment(me), None);
        session.abandon(unborn);
        assert_eq!(session.claim_segment(me), Some(5));
    }

    #[test]
    fn children_that_are_made_at_the_same_time_have_places_of_their_own() {
        let session = session();
        session.spill.segment_count.store(64, Ordering::Relaxed);
        let mut parent = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let me = session.claim(parent.id()).unwrap();
        assert_eq!(session.claim_segment(me), Some(0));
        // The second is made before the first has come to say that it is there.
        let first = session.prepare_child(me).unwrap();
        assert_eq!(session.claim_segment(me), Some(1));
        session.release_segment(me, 0);
        let second = session.prepare_child(me).unwrap();
        assert!(!ptr::eq(first, second));
        assert!(session.segments_of(first).eq([0]) && session.segments_of(second).eq([1]));
        // Their parent dies meanwhile: what they have stays theirs.
        parent.kill().unwrap();
        parent.wait().unwrap();
        session.clear_segments_of_the_dead();
        assert_eq!(session.segments_of(me).count(), 0);
        assert!(session.segments_of(first).eq([0]) && session.segments_of(second).eq([1]));
        let other = session.claim(1).unwrap();
        assert!(!ptr::eq(other, first) && !ptr::eq(other, second));
        // But not for ever, if they were never made.
        first.taken_ns.store(0, Ordering::Relaxed);
        session.clear_segments_of_the_dead();
        assert_eq!(session.segments_of(first).count(), 0);
    }

    #[test]
    fn no_two_processes_have_a_segment() {
        let session = session();
        session.spill.segment_count.store(5000, Ordering::Relaxed);
        let claimed: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    let session = &session;
                    scope.spawn(move || {
                        let place = session.processes.iter().find(|p| p.becomes(1, 0)).unwrap();
                        (0..1000).map(|_| session.claim_segment(place).unwrap()).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all: Vec<u32> = claimed.concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4000);
    }
}
