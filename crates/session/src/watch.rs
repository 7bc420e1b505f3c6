//! What agents see of watched pages, on its way to the launcher.
//!
//! Agents of all processes write events into one ring. Each draws a place in it, so it needs no
//! lock; a place is written when its last word is not zero. An agent that is killed between the two
//! leaves a place unwritten, which the launcher passes over after a while.
//!
//! No content of a page is in here. How small pages become is found by the launcher: an agent says
//! where it keeps some that it has just taken, and the launcher reads them from the process.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// 24 bytes each: enough for some seconds.
const RING_EVENTS: u64 = 1 << 15;
/// Bits of a page's number, of an address space of 2^56 bytes.
const PAGE_BITS: u32 = 44;
const PAGE_MASK: u64 = (1 << PAGE_BITS) - 1;
/// Bits of the number of a process, above those.
const PROCESS_BITS: u32 = 16;
/// Pages that are offered together.
pub const OFFERED_MAX: usize = 8;

/// What happened to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Accessed for the first time since it is watched.
    Touched,
    /// It is there, which it was not before.
    Appeared,
    /// It is there no more.
    Gone,
    /// Not accessed since it is watched, and now watched no more.
    Untouched,
    /// The process has ended; of no page.
    Ended,
}

/// What an agent saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEvent {
    /// The number of the process among those of the session, from 1 on.
    pub process: u32,
    /// Address by 4,096.
    pub page: u64,
    /// When (CLOCK_MONOTONIC).
    pub time_us: u64,
    /// How long the page was watched.
    pub watched_us: u64,
    /// What.
    pub what: Watched,
}

impl PageEvent {
    fn words(self) -> [u64; 3] {
        let what = match self.what {
            Watched::Touched => 1,
            Watched::Appeared => 2,
            Watched::Gone => 3,
            Watched::Untouched => 4,
            Watched::Ended => 5,
        };
        let process = u64::from(self.process) & ((1 << PROCESS_BITS) - 1);
        let first = what << (PAGE_BITS + PROCESS_BITS) | process << PAGE_BITS;
        [first | self.page & PAGE_MASK, self.watched_us, self.time_us.max(1)]
    }

    /// `None`: it was written by nobody who knows how.
    fn from_words([first, watched_us, time_us]: [u64; 3]) -> Option<PageEvent> {
        let what = match first >> (PAGE_BITS + PROCESS_BITS) {
            1 => Watched::Touched,
            2 => Watched::Appeared,
            3 => Watched::Gone,
            4 => Watched::Untouched,
            5 => Watched::Ended,
            _ => return None,
        };
        let process = (first >> PAGE_BITS) as u32 & ((1 << PROCESS_BITS) - 1);
        Some(PageEvent { process, page: first & PAGE_MASK, time_us, watched_us, what })
    }
}

/// Where an agent keeps pages that it has just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedPages {
    /// As the kernel numbers it in [`OfferedPages::pid_namespace`].
    pub pid: u32,
    /// Where the number counts (pid_namespaces(7)).
    pub pid_namespace: u64,
    /// As in [`PageEvent::process`].
    pub process: u32,
    /// The first page of their block.
    pub first_page: u64,
    /// When they were taken (CLOCK_MONOTONIC).
    pub time_us: u64,
    /// Where each is now; 0: not there.
    pub addresses: [u64; OFFERED_MAX],
}

/// Offers that may wait for the launcher.
const OFFERS_MAX: usize = 32;

/// Nobody offers, somebody is about to, and it is there to be read.
const EMPTY: u32 = 0;
const CLAIMED: u32 = 1;
const FULL: u32 = 2;

/// A place for an offer. An agent that is killed while it writes one leaves it as it is. Zeroed
/// memory is a valid start.
#[repr(C)]
struct Offer {
    state: AtomicU32,
    pid: AtomicU32,
    process: AtomicU32,
    pid_namespace: AtomicU64,
    first_page: AtomicU64,
    time_us: AtomicU64,
    addresses: [AtomicU64; OFFERED_MAX],
}

/// Watching in a session. Zeroed memory is one in which nobody watches.
#[repr(C)]
pub struct WatchArea {
    /// How much of the program's time watching may take, in millionths. Zero: no page is watched.
    slowdown_ppm: AtomicU64,
    /// One block in 2^this is watched.
    level: AtomicU32,
    /// Processes that have watched.
    processes: AtomicU32,
    /// Events for which there was no room.
    lost: AtomicU64,
    /// Places given to agents so far, and places emptied so far.
    drawn: AtomicU64,
    taken: AtomicU64,
    offers: [Offer; OFFERS_MAX],
    ring: [[AtomicU64; 3]; RING_EVENTS as usize],
}

impl WatchArea {
    /// For the launcher, before the program starts: pages are to be watched.
    pub fn begin(&self, slowdown_ppm: u64) {
        self.slowdown_ppm.store(slowdown_ppm, Ordering::Relaxed);
    }

    /// How much of the program's time watching may take, in millionths; `None`: no page is watched.
    pub fn slowdown_ppm(&self) -> Option<u64> {
        Some(self.slowdown_ppm.load(Ordering::Relaxed)).filter(|&ppm| ppm > 0)
    }

    /// The number of a process that begins to watch.
    pub fn next_process(&self) -> u32 {
        self.processes.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// One block in 2^this is watched, by all.
    pub fn level(&self) -> u32 {
        self.level.load(Ordering::Relaxed)
    }

    /// No more than one block in 2^`level` is watched from now on.
    pub fn raise_level(&self, level: u32) {
        self.level.fetch_max(level, Ordering::Relaxed);
    }

    /// Events for which there was no room.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Writes an event, if there is room.
    pub fn put(&self, event: PageEvent) {
        let at = self.drawn.load(Ordering::Relaxed);
        // Where two find the last place free one of them is not written, and passed over.
        if at.wrapping_sub(self.taken.load(Ordering::Acquire)) >= RING_EVENTS {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let at = self.drawn.fetch_add(1, Ordering::Relaxed);
        if at.wrapping_sub(self.taken.load(Ordering::Acquire)) >= RING_EVENTS {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let [first, watched, last] = self.place(at);
        let words = event.words();
        first.store(words[0], Ordering::Relaxed);
        watched.store(words[1], Ordering::Relaxed);
        last.store(words[2], Ordering::Release);
    }

    fn place(&self, at: u64) -> &[AtomicU64; 3] {
        &self.ring[(at % RING_EVENTS) as usize]
    }

    /// Takes the next event, if it is written. One process at a time may call this.
    pub fn take(&self) -> Option<PageEvent> {
        loop {
            let at = self.taken.load(Ordering::Relaxed);
            let [first, watched, last] = self.place(at);
            let time_us = last.load(Ordering::Acquire);
            if time_us == 0 {
                return None;
            }
            let words = [first.load(Ordering::Relaxed), watched.load(Ordering::Relaxed), time_us];
            last.store(0, Ordering::Relaxed);
            self.taken.store(at + 1, Ordering::Release);
            if let Some(event) = PageEvent::from_words(words) {
                return Some(event);
            }
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the next place was drawn and is not written.
    pub fn waits(&self) -> bool {
        self.drawn.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed)
    }

    /// Passes over a place that was drawn and is not written: its agent is gone.
    pub fn pass_over(&self) {
        if self.waits() {
            self.taken.fetch_add(1, Ordering::Release);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// For an agent: says where pages are, if not too many have said so just now. They stay there
    /// until the launcher has read them or not, so what it reads may be others.
    pub fn offer(&self, offer: impl FnOnce() -> OfferedPages) {
        let claims = |place: &&Offer| {
            let state = &place.state;
            state.compare_exchange(EMPTY, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let Some(place) = self.offers.iter().find(claims) else { return };
        let OfferedPages { pid, pid_namespace, process, first_page, time_us, addresses } = offer();
        place.pid_namespace.store(pid_namespace, Ordering::Relaxed);
        place.pid.store(pid, Ordering::Relaxed);
        place.process.store(process, Ordering::Relaxed);
        place.first_page.store(first_page, Ordering::Relaxed);
        place.time_us.store(time_us, Ordering::Relaxed);
        for (word, address) in place.addresses.iter().zip(addresses) {
            word.store(address, Ordering::Relaxed);
        }
        place.state.store(FULL, Ordering::Release);
    }

    /// For the launcher: calls `read` for each offer. Its place is free afterwards.
    pub fn take_offers(&self, mut read: impl FnMut(OfferedPages)) {
        for place in &self.offers {
            if let Some(offered) = place.offered() {
                read(offered);
                place.state.store(EMPTY, Ordering::Release);
            }
        }
    }
}

impl Offer {
    fn offered(&self) -> Option<OfferedPages> {
        let place = self;
        (place.state.load(Ordering::Acquire) == FULL).then(|| OfferedPages {
            pid: place.pid.load(Ordering::Relaxed),
            pid_namespace: place.pid_namespace.load(Ordering::Relaxed),
            process: place.process.load(Ordering::Relaxed),
            first_page: place.first_page.load(Ordering::Relaxed),
            time_us: place.time_us.load(Ordering::Relaxed),
            addresses: core::array::from_fn(|nth| place.addresses[nth].load(Ordering::Relaxed)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Box<WatchArea> {
        Box::new(WatchArea {
            slowdown_ppm: AtomicU64::new(0),
            level: AtomicU32::new(0),
            processes: AtomicU32::new(0),
            lost: AtomicU64::new(0),
            drawn: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            offers: [const {
                Offer {
                    state: AtomicU32::new(EMPTY),
                    pid: AtomicU32::new(0),
                    process: AtomicU32::new(0),
                    pid_namespace: AtomicU64::new(0),
                    first_page: AtomicU64::new(0),
                    time_us: AtomicU64::new(0),
                    addresses: [const { AtomicU64::new(0) }; OFFERED_MAX],
                }
            }; OFFERS_MAX],
            ring: [const { [const { AtomicU64::new(0) }; 3] }; RING_EVENTS as usize],
        })
    }

    fn event(nth: u64) -> PageEvent {
        let what = [
            Watched::Touched,
            Watched::Appeared,
            Watched::Gone,
            Watched::Untouched,
            Watched::Ended,
        ][(nth % 5) as usize];
        let page = nth.wrapping_mul(0x1234_5678_9ABC) & PAGE_MASK;
        PageEvent {
            process: nth as u32 % 65_536,
            page,
            time_us: nth + 1,
            watched_us: nth / 2,
            what,
        }
    }

    #[test]
    fn events_come_out_as_they_went_in() {
        let area = area();
        for round in 0..3 {
            let events = round * 20_000..(round + 1) * 20_000;
            events.clone().for_each(|nth| area.put(event(nth)));
            let out: Vec<PageEvent> = core::iter::from_fn(|| area.take()).collect();
            assert_eq!(out, events.map(event).collect::<Vec<_>>());
        }
        assert_eq!((area.lost(), area.waits()), (0, false));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let area = area();
        (0..RING_EVENTS + 10).for_each(|nth| area.put(event(nth)));
        assert_eq!(core::iter::from_fn(|| area.take()).count() as u64, RING_EVENTS);
        assert_eq!(area.lost(), 10);
        area.put(event(7));
        assert_eq!(area.take(), Some(event(7)));
    }

    #[test]
    fn a_place_that_was_never_written_is_passed_over() {
        let area = area();
        area.drawn.fetch_add(1, Ordering::Relaxed);
        area.put(event(7));
        assert_eq!(area.take(), None);
        assert!(area.waits());
        area.pass_over();
        assert_eq!((area.take(), area.lost()), (Some(event(7)), 1));
    }

    #[test]
    fn threads_write_at_the_same_time() {
        let area = area();
        let (area, written) = (&*area, 200_000u64);
        let mut seen = 0;
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    scope.spawn(move || {
                        (0..written / 4).for_each(|nth| area.put(event(nth * 4 + thread)));
                    })
                })
                .collect();
            let mut left = true;
            while left {
                left = writers.iter().any(|writer| !writer.is_finished());
                while let Some(found) = area.take() {
                    assert_eq!(found, event(found.time_us - 1));
                    seen += 1;
                }
                while !left && area.waits() {
                    area.pass_over();
                }
            }
        });
        assert!(seen > 0 && seen <= written && seen + area.lost() >= written, "{seen}");
    }

    #[test]
    fn offers_wait_for_the_launcher_and_others_are_dropped() {
        let area = area();
        let offered = |first_page| OfferedPages {
            pid: 5,
            pid_namespace: 77,
            process: 2,
            first_page,
            time_us: 9,
            addresses: [1, 2, 3, 0, 5, 6, 7, 8],
        };
        let taken = || {
            let mut taken = Vec::new();
            area.take_offers(|offered| taken.push(offered));
            taken
        };
        assert_eq!(taken(), []);
        (0..100).for_each(|page| area.offer(|| offered(page)));
        assert_eq!(taken(), (0..OFFERS_MAX as u64).map(offered).collect::<Vec<_>>());
        area.offer(|| offered(16));
        assert_eq!(taken(), [offered(16)]);
    }
}
