//! A run of a program whose pages were watched, under a cap: ramfold's own policy
//! ([`super::memory`]) in program time.
//!
//! Accesses to pages that are in memory need not be known. So nothing happens but that pages
//! appear, are given back, and are asked for after they were taken: when a page is taken its next
//! access is looked up ([`Activity::next_access`]), and put in a queue. What a simulation takes is
//! in proportion to the faults, whatever the program does in between.
//!
//! Time is the program's, as it would be with all of its memory. What the agent does by the clock
//! (it keeps more room after the program has grown, and compresses once more what stays out) goes
//! by the time that the run takes with its faults.

mod contents;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use ramfold_codec::PAGE_SIZE;
use ramfold_policy::memory::watermarks::Watermarks;

use self::contents::Contents;
pub use self::contents::{CodecTimes, PageSizes};
use super::memory::{Memory, State};
use super::watched::{Activity, Life};
use super::{Access, Policy};
use crate::PageNumber;

/// As `monitor/mod.rs` of the agent: for how long a program that has just grown is given more room.
pub const GROWING_US: u64 = 500_000;
/// Microseconds in a second.
const SECOND_US: f64 = 1e6;

/// What the agent itself costs, as measured: see `docs/results`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// Its code's data, stacks, buffers, and the program's own that cannot be taken. Bytes.
    pub fixed_bytes: f64,
    /// Of each page that was ever taken: its entry in the index. Bytes.
    pub entry_bytes: f64,
    /// Of each page of the program: its entry in the page table. Bytes.
    pub page_table_bytes: f64,
    /// The pool's free slots and ends of spans, as a part of what objects are charged.
    pub fragmentation: f64,
    /// What the pool keeps ready, as a part of the cap, and its bounds in bytes.
    pub reserve: f64,
    /// The least and the most of that.
    pub reserve_bytes: [f64; 2],
}

impl Default for Overhead {
    fn default() -> Overhead {
        Overhead {
            fixed_bytes: 1.05 * 1024.0 * 1024.0,
            entry_bytes: 8.0,
            page_table_bytes: 8.0,
            fragmentation: 0.1,
            reserve: 1.0 / 128.0,
            reserve_bytes: [256.0 * 1024.0, 4096.0 * 1024.0],
        }
    }
}

impl Overhead {
    /// What the kernel's own swapping costs of it: the program's page tables.
    #[must_use]
    pub fn of_kernel(self) -> Overhead {
        Overhead {
            fixed_bytes: 0.0,
            entry_bytes: 0.0,
            fragmentation: 0.0,
            reserve: 0.0,
            reserve_bytes: [0.0; 2],
            ..self
        }
    }

    /// What the pool keeps ready under a cap.
    pub fn reserve_of(&self, cap_bytes: u64) -> f64 {
        let [least, most] = self.reserve_bytes;
        (cap_bytes as f64 * self.reserve).max(least).min(most.max(least))
    }
}

/// Above which cost pages are taken under a cap. Bytes.
pub fn high_mark(cap_bytes: u64) -> u64 {
    Watermarks::for_cap(cap_bytes.max(PAGE_SIZE as u64)).high
}

/// How long things take, in seconds of the program's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// A page that is asked for by itself.
    pub fault_s: f64,
    /// Each page that is brought in with a stream.
    pub stream_page_s: f64,
    /// Each page that the program comes to have while its memory is looked after: its first access
    /// is a fault that the agent answers.
    pub first_page_s: f64,
    /// Beside that, each page by which it grows while memory is full.
    pub growth_page_s: f64,
}

/// Under what a program runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// The cap. Bytes.
    pub cap_bytes: u64,
    /// How long things take.
    pub delays: Delays,
    /// How long the codec takes, and when pages are compressed once more.
    pub codec: CodecTimes,
    /// What the agent itself costs.
    pub overhead: Overhead,
    /// For how long there is more room for growth when the cap is near: [`GROWING_US`].
    pub growing_us: u64,
    /// Simulates at most this many faults of sampled pages. The rest of the run is taken to have
    /// faults at the same rate. Pages that appear and go are simulated to the end of the run.
    pub faults_max: u64,
    /// Simulates no more faults once faults and growth have cost the program this long. Seconds.
    pub lost_max_s: f64,
}

/// What a run came to, all pages of the program taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Pages that the program came to have.
    pub first: f64,
    /// Of these, those for which room had to be made.
    pub first_over_cap: f64,
    /// Those that came while memory was looked after.
    pub first_looked_after: f64,
    /// Faults that brought the page alone.
    pub faults_alone: f64,
    /// Faults that brought others with it, as parts of streams.
    pub faults_streamed: f64,
    /// Pages that these brought, beside those that were asked for.
    pub ahead: f64,
    /// Of all pages that were brought back, those that were not compressed yet.
    pub second_chances: f64,
    /// Those that had been compressed for density.
    pub dense_back: f64,
    /// Pages taken.
    pub taken: f64,
    /// Pages compressed, those that were refused included; and those compressed for density at once
    /// or once more.
    pub compressed: f64,
    /// Of these, for density, at once or once more.
    pub compressed_dense: f64,
    /// Pages that were put back because they do not compress.
    pub refused: f64,
    /// Objects at the end, and what the pool takes for them.
    pub objects: f64,
    /// Bytes that the pool takes at the end.
    pub pool_bytes: f64,
    /// The most that it took.
    pub pool_bytes_max: f64,
    /// The agent's own memory and its tables at the end.
    pub table_bytes: f64,
    /// What the program has uncompressed at the end, or had at last.
    pub resident_bytes: f64,
    /// Means over the time of the run.
    pub pool_bytes_mean: f64,
    /// The same of what is uncompressed.
    pub resident_bytes_mean: f64,
    /// When the cap was passed with nothing left to take. Microseconds of the program's time.
    pub not_held_us: Option<u64>,
    /// By how much it was passed at most.
    pub over_cap_bytes: f64,
    /// What faults and growth took the program, by [`Delays`].
    pub lost_s: f64,
    /// Until when faults were simulated. Microseconds.
    pub simulated_us: u64,
}

impl Counts {
    /// Faults of both kinds.
    pub fn faults(&self) -> f64 {
        self.faults_alone + self.faults_streamed
    }

    /// Pages brought back.
    pub fn pages_back(&self) -> f64 {
        self.faults() + self.ahead
    }
}

/// Runs a program. `sizes`: how small a page becomes, by its number in the events.
pub fn run(
    activity: &Activity,
    sizes: &dyn Fn(PageNumber) -> PageSizes,
    setting: &Setting,
) -> Counts {
    Run::new(activity, sizes, setting).finished()
}

/// An access to a page that is out: when, which, and which time it was taken.
type Pending = Reverse<(u64, PageNumber, u64)>;

struct Run<'a> {
    activity: &'a Activity,
    setting: &'a Setting,
    memory: Memory<Contents<'a>>,
    pending: BinaryHeap<Pending>,
    /// Of pages that are out: which time they were taken.
    out: HashMap<PageNumber, u64>,
    takes: u64,
    faults: u64,
    /// Pages that the program has.
    pages: u64,
    /// Since when memory is looked after, and until when there is more room than usual. Of the
    /// time with faults, in microseconds.
    growing_until_us: Option<u64>,
    lost_s: f64,
    counts: Counts,
    /// For the means: when they were taken last, and pool and resident bytes times microseconds.
    meant_us: u64,
    pool_sum: f64,
    resident_sum: f64,
}

/// What happens next.
#[derive(Clone, Copy)]
enum Next {
    Gone(Life),
    Asked(PageNumber),
    Appears(Life),
}

impl<'a> Run<'a> {
    fn new(
        activity: &'a Activity,
        sizes: &'a dyn Fn(PageNumber) -> PageSizes,
        setting: &'a Setting,
    ) -> Run<'a> {
        let contents = Contents::new(activity, sizes, setting.codec);
        Run {
            activity,
            setting,
            memory: Memory::with(contents, setting.cap_bytes, activity.one_in()),
            pending: BinaryHeap::new(),
            out: HashMap::new(),
            takes: 0,
            faults: 0,
            pages: 0,
            growing_until_us: None,
            lost_s: 0.0,
            counts: Counts::default(),
            meant_us: 0,
            pool_sum: 0.0,
            resident_sum: 0.0,
        }
    }

    fn finished(mut self) -> Counts {
        let lives = self.activity.lives();
        let mut ends: Vec<Life> =
            lives.iter().copied().filter(|life| life.to_us.is_some()).collect();
        ends.sort_by_key(|life| (life.to_us, life.page));
        let (mut appears, mut ends) = (lives.iter().peekable(), ends.iter().peekable());
        let mut cut = None;
        loop {
            let asked = if cut.is_none() { self.next_asked() } else { None };
            let gone = ends.peek().and_then(|life| Some((life.to_us?, Next::Gone(**life))));
            let appears_next = appears.peek().map(|life| (life.from_us, Next::Appears(**life)));
            let asked = asked.map(|(time, page)| (time, Next::Asked(page)));
            // Of what happens at one time, what makes room comes first.
            let first = [gone, asked, appears_next].into_iter().flatten().min_by_key(|next| next.0);
            let Some((time_us, next)) = first else { break };
            self.pass_time(time_us);
            let Setting { faults_max, lost_max_s, .. } = *self.setting;
            if cut.is_none() && (self.faults >= faults_max || self.lost_s > lost_max_s) {
                cut = Some(self.counted(time_us));
                continue;
            }
            match next {
                Next::Gone(life) => {
                    ends.next();
                    self.goes(life.page);
                }
                Next::Asked(page) => {
                    self.pending.pop();
                    self.faults += 1;
                    self.is_asked(time_us, page);
                }
                Next::Appears(life) => {
                    appears.next();
                    self.appears(time_us, life.page);
                }
            }
            self.note(time_us);
        }
        let end_us = self.activity.end_us();
        self.pass_time(end_us);
        self.note(end_us);
        let whole = self.counted(end_us);
        let Some(cut) = cut else { return whole };
        Counts {
            second_chances: cut.second_chances,
            taken: cut.taken,
            compressed: cut.compressed,
            compressed_dense: cut.compressed_dense,
            refused: cut.refused,
            faults_alone: cut.faults_alone,
            faults_streamed: cut.faults_streamed,
            ahead: cut.ahead,
            dense_back: cut.dense_back,
            lost_s: cut.lost_s,
            simulated_us: cut.simulated_us,
            ..whole
        }
    }

    /// The first access to a page that is still out.
    fn next_asked(&mut self) -> Option<(u64, PageNumber)> {
        while let Some(&Reverse((time, page, take))) = self.pending.peek() {
            if self.out.get(&page) == Some(&take) {
                return Some((time, page));
            }
            self.pending.pop();
        }
        None
    }

    /// The time that the run has taken, faults included.
    fn clock_us(&self, time_us: u64) -> u64 {
        time_us.saturating_add((self.lost_s * SECOND_US) as u64)
    }

    fn pass_time(&mut self, time_us: u64) {
        let elapsed = time_us.saturating_sub(self.meant_us) as f64;
        let state = self.memory.state();
        self.pool_sum += self.pool_bytes(state) * elapsed;
        self.resident_sum += self.resident_bytes(state) * elapsed;
        self.meant_us = self.meant_us.max(time_us);
        let clock_us = self.clock_us(time_us);
        if self.growing_until_us.is_none()
            && self.memory.cost_bytes() > self.memory.cap_marks().activation
        {
            self.growing_until_us = Some(clock_us + self.setting.growing_us);
        }
        let outruns = self.growing_until_us.is_some_and(|until_us| clock_us < until_us);
        self.memory.set_time(clock_us.saturating_mul(1000), outruns);
        contents::recompress(&mut self.memory, clock_us, outruns);
    }

    fn goes(&mut self, page: PageNumber) {
        self.memory.drop_page(page);
        self.out.remove(&page);
        self.pages = self.pages.saturating_sub(1);
    }

    fn is_asked(&mut self, time_us: u64, page: PageNumber) {
        if let Access::Fault { ahead } = self.memory.access(page) {
            let Delays { fault_s, stream_page_s, .. } = self.setting.delays;
            let one_in = self.activity.one_in();
            if ahead == 0 {
                self.counts.faults_alone += 1.0;
                self.lost_s += fault_s * one_in;
            } else {
                self.counts.faults_streamed += 1.0;
                self.counts.ahead += f64::from(ahead);
                self.lost_s += stream_page_s * f64::from(1 + ahead) * one_in;
            }
        }
        self.follow(time_us);
    }

    fn appears(&mut self, time_us: u64, page: PageNumber) {
        self.pages += 1;
        self.counts.first += 1.0;
        let waits = self.memory.is_full();
        self.memory.access(page);
        let Delays { first_page_s, growth_page_s, .. } = self.setting.delays;
        if self.growing_until_us.is_some() {
            self.counts.first_looked_after += 1.0;
            self.lost_s += first_page_s * self.activity.one_in();
        }
        if waits {
            self.counts.first_over_cap += 1.0;
            self.lost_s += growth_page_s * self.activity.one_in();
        }
        self.follow(time_us);
    }

    /// Puts the next accesses of what was taken in the queue.
    fn follow(&mut self, time_us: u64) {
        for (page, is_out) in self.memory.objects_mut().take_moves() {
            if !is_out {
                self.out.remove(&page);
                continue;
            }
            self.takes += 1;
            self.out.insert(page, self.takes);
            if let Some(next_us) = self.activity.next_access(page, time_us) {
                self.pending.push(Reverse((next_us, page, self.takes)));
            }
        }
    }

    /// Looks at what memory has come to.
    fn note(&mut self, time_us: u64) {
        let state = self.memory.state();
        let pool = self.pool_bytes(state);
        self.counts.pool_bytes_max = self.counts.pool_bytes_max.max(pool);
        let other = self.table_bytes(state) + pool - state.stored_bytes as f64;
        self.memory.set_other_bytes(other as u64);
        let over = self.memory.cost_bytes() as f64 - self.memory.cap_marks().cap as f64;
        if over > 0.0 && self.memory.is_stuck() {
            self.counts.not_held_us.get_or_insert(time_us);
            self.counts.over_cap_bytes = self.counts.over_cap_bytes.max(over);
        }
    }

    fn pool_bytes(&self, state: State) -> f64 {
        if self.growing_until_us.is_none() {
            return 0.0;
        }
        let overhead = &self.setting.overhead;
        let objects = state.stored_bytes as f64 * (1.0 + overhead.fragmentation);
        objects + overhead.reserve_of(self.setting.cap_bytes)
    }

    fn table_bytes(&self, state: State) -> f64 {
        let Overhead { fixed_bytes, entry_bytes, page_table_bytes, .. } = self.setting.overhead;
        let one_in = self.activity.one_in();
        let entries = (state.stored + state.staged) as f64 * one_in;
        fixed_bytes + entries * entry_bytes + self.pages as f64 * one_in * page_table_bytes
    }

    fn resident_bytes(&self, state: State) -> f64 {
        state.present as f64 * self.activity.one_in() * PAGE_SIZE as f64
    }

    /// What it has come to. What was not simulated is like what was.
    fn counted(&self, end_us: u64) -> Counts {
        let state = self.memory.state();
        let (pool_bytes, table_bytes) = (self.pool_bytes(state), self.table_bytes(state));
        let resident_bytes = self.resident_bytes(state);
        let one_in = self.activity.one_in();
        let simulated_us = end_us.clamp(1, self.activity.end_us().max(1));
        let rest = self.activity.end_us().max(1) as f64 / simulated_us as f64;
        let (whole, over_time) = (one_in, one_in * rest);
        let contents = self.memory.objects();
        let mut counts = self.counts;
        counts.second_chances = state.second_chances as f64;
        counts.taken = state.taken as f64;
        counts.refused = state.refused as f64;
        counts.objects = state.stored as f64;
        counts.compressed = contents.compressed() as f64;
        counts.dense_back = contents.dense_back() as f64;
        counts.compressed_dense = contents.compressed_dense() as f64;
        for count in [
            &mut counts.first,
            &mut counts.first_over_cap,
            &mut counts.first_looked_after,
            &mut counts.objects,
        ] {
            *count *= whole;
        }
        for count in [
            &mut counts.faults_alone,
            &mut counts.faults_streamed,
            &mut counts.ahead,
            &mut counts.second_chances,
            &mut counts.dense_back,
            &mut counts.taken,
            &mut counts.compressed,
            &mut counts.compressed_dense,
            &mut counts.refused,
        ] {
            *count *= over_time;
        }
        let elapsed = simulated_us as f64;
        Counts {
            pool_bytes,
            table_bytes,
            resident_bytes,
            pool_bytes_mean: self.pool_sum / elapsed,
            resident_bytes_mean: self.resident_sum / elapsed,
            lost_s: self.lost_s * rest,
            simulated_us,
            ..counts
        }
    }
}
