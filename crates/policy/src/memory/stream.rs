//! Streams: runs of faults at a steady distance from each other, forwards or backwards, several at
//! a time. The pages ahead of a stream are brought in together with the one that is asked for.
//!
//! A stream begins when three faults among the latest ones are equally far apart, whoever made
//! them: so streams are found whose faults come in turns. It goes on as long as the next fault is
//! where its pages end, or a little behind, since pages in between may be in memory. Each time it
//! brings in twice as many pages. A stream that does not go on has brought in its last pages for
//! nothing, as far as one can know; when that happens too often, streams are followed only now and
//! then.

use super::PageNumber;

/// Most pages brought in at a time: 30 to 60 us of work.
pub const WINDOW_MAX: usize = 32;
/// A new stream's.
pub const WINDOW_FIRST: usize = 4;
/// Streams followed at a time.
const STREAMS: usize = 16;
/// Faults outside of streams that are remembered.
const FAULTS: usize = 16;
/// Longest distance between two faults of a stream, in pages. A longer one, and 16 faults taken at
/// random out of 1 GiB would look like a stream more than once in a thousand faults.
const STRIDE_MAX: i64 = 1024;
/// How many pages of a stream may be in memory already.
const GAP_MAX: i64 = 16;
/// The latest so many pages that were brought in ahead say whether that pays.
const JUDGED: u32 = 1024;
/// As few say nothing yet.
const JUDGED_MIN: u32 = 128;
/// While it does not pay, streams are followed at one fault in so many.
const PROBE: u32 = 64;

/// What to bring in: the page of the fault and others at this distance from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Distance from one page to the next, in pages; negative where the stream goes down.
    pub stride: i64,
    /// The page of the fault included.
    pub pages: usize,
    /// Pages brought in for another stream earlier that turn out to have been for nothing.
    pub wasted: u32,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    /// Zero: no stream.
    stride: i64,
    /// The last page that was brought in.
    last: PageNumber,
    /// Pages to bring in next.
    window: usize,
    /// Pages brought in ahead of the latest fault. The next one shows that they were wanted.
    ahead: u32,
    /// When it went on last.
    turn: u32,
}

impl Stream {
    /// Is this page the next one of the stream, or one soon after?
    fn goes_on_at(&self, page: PageNumber) -> bool {
        let distance = page.wrapping_sub(self.last) as i64;
        let steps = distance.checked_div(self.stride).unwrap_or(0);
        (1..=GAP_MAX).contains(&steps) && steps * self.stride == distance
    }
}

/// What is known of the latest faults. All zero is nothing.
#[derive(Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    /// The latest faults that belong to no stream.
    faults: [PageNumber; FAULTS],
    turn: u32,
    /// The stream that the latest fault belongs to.
    current: Option<usize>,
    /// Of the latest pages that were brought in ahead: those of which it is known whether they were
    /// wanted, and those that were not.
    judged: u32,
    wasted: u32,
    /// The size in pages of the aligned block that has all faults with which a stream begins. 0:
    /// they may be anywhere.
    begins_within: u64,
}

impl Streams {
    /// For a simulation whose pages are a sample of a program's, in blocks of so many: pages of
    /// different blocks are not as near each other as they seem, and the few there are at the same
    /// distance by chance.
    pub fn of_sample(block_pages: u64) -> Streams {
        Streams { begins_within: block_pages, ..Streams::default() }
    }

    /// What to bring in for a fault on this page.
    pub fn window_at(&mut self, page: PageNumber) -> Window {
        self.turn = self.turn.wrapping_add(1);
        let mut wasted = 0;
        self.current = self.streams.iter().position(|stream| stream.goes_on_at(page));
        let index = match self.current {
            Some(index) => index,
            None => {
                let Some(stride) = self.stride_at(page) else {
                    self.faults[self.turn as usize % FAULTS] = page;
                    return Window { stride: 1, pages: 1, wasted };
                };
                let oldest = (0..STREAMS).max_by_key(|&index| self.age(index)).unwrap_or(0);
                wasted = self.streams[oldest].ahead;
                self.streams[oldest] = Stream { stride, window: WINDOW_FIRST, ..Stream::default() };
                oldest
            }
        };
        self.current = Some(index);
        let wanted = core::mem::take(&mut self.streams[index].ahead);
        self.judge(wanted, wasted);
        let follow = self.pays() || self.turn.is_multiple_of(PROBE);
        let stream = &mut self.streams[index];
        stream.last = page;
        stream.turn = self.turn;
        Window { stride: stream.stride, pages: if follow { stream.window } else { 1 }, wasted }
    }

    /// Ends streams that have not gone on for so many faults. For a simulation of few pages, in
    /// which a fault is soon where some stream has ended long ago.
    pub fn end_older(&mut self, faults: u32) {
        for index in 0..STREAMS {
            if self.streams[index].stride != 0 && self.age(index) > faults {
                let Stream { ahead, .. } = core::mem::take(&mut self.streams[index]);
                self.judge(0, ahead);
            }
        }
    }

    /// So many pages were brought in for the latest window, the page of the fault included; the
    /// last is so many steps behind that.
    pub fn note_brought(&mut self, pages: usize, steps: usize) {
        let Some(index) = self.current else { return };
        let stream = &mut self.streams[index];
        stream.ahead = pages as u32 - 1;
        stream.last = stream.last.wrapping_add_signed(stream.stride * steps as i64);
        stream.window = (stream.window * 2).min(WINDOW_MAX);
    }

    /// The distance to another fault, if there was one as far behind that too.
    fn stride_at(&self, page: PageNumber) -> Option<i64> {
        let strides = self.faults.iter().map(|&before| page.wrapping_sub(before) as i64);
        strides
            .filter(|stride| (1..=STRIDE_MAX).contains(&stride.saturating_abs()))
            .filter(|stride| self.may_begin(page.wrapping_add_signed(-2 * stride), page))
            .find(|stride| self.faults.contains(&page.wrapping_add_signed(-2 * stride)))
    }

    fn may_begin(&self, first: PageNumber, last: PageNumber) -> bool {
        let block = |page: PageNumber| page.checked_div(self.begins_within);
        block(first) == block(last)
    }

    /// Faults since a stream went on.
    fn age(&self, index: usize) -> u32 {
        let stream = &self.streams[index];
        if stream.stride == 0 { u32::MAX } else { self.turn.wrapping_sub(stream.turn) }
    }

    fn judge(&mut self, wanted: u32, wasted: u32) {
        self.judged += wanted + wasted;
        self.wasted += wasted;
        if self.judged > JUDGED {
            self.judged /= 2;
            self.wasted /= 2;
        }
    }

    /// A page that was not wanted costs as much as two or three that were wanted spare.
    fn pays(&self) -> bool {
        self.wasted * 3 <= self.judged.max(JUDGED_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults on pages that are all out; what is brought in is in. Returns how many faults it took.
    fn faults(streams: &mut Streams, pages: impl IntoIterator<Item = u64>) -> usize {
        let mut present = std::collections::HashSet::new();
        let mut faults = 0;
        for page in pages {
            if present.contains(&page) {
                continue;
            }
            faults += 1;
            let window = streams.window_at(page);
            for step in 0..window.pages as i64 {
                present.insert(page.wrapping_add_signed(window.stride * step));
            }
            streams.note_brought(window.pages, window.pages - 1);
        }
        faults
    }

    fn random(below: u64) -> impl Iterator<Item = u64> {
        let mut state = 7u64;
        std::iter::from_fn(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some((state >> 33) % below)
        })
    }

    #[test]
    fn a_steady_distance_is_followed_in_both_directions() {
        for stride in [1, -1, 2, 7, -3, 256, -1000] {
            let pages = (0..1000).map(|step| 5_000_000u64.wrapping_add_signed(step * stride));
            let faults = faults(&mut Streams::default(), pages);
            assert!(
                (1000 / WINDOW_MAX..1000 / WINDOW_MAX + 8).contains(&faults),
                "{stride}: {faults}"
            );
        }
        let too_far = (0..100).map(|step| 5_000_000 + step * (STRIDE_MAX as u64 + 1));
        assert_eq!(faults(&mut Streams::default(), too_far), 100);
    }

    #[test]
    fn streams_of_a_sample_begin_within_a_block() {
        let mut streams = Streams::of_sample(8);
        assert_eq!([8, 16, 24, 32].map(|page| streams.window_at(page).pages), [1; 4]);
        assert_eq!([46, 47, 48].map(|page| streams.window_at(page).pages), [1; 3]);
        assert_eq!([56, 57, 58].map(|page| streams.window_at(page).pages), [1, 1, WINDOW_FIRST]);
        // And go on beyond it.
        streams.note_brought(WINDOW_FIRST, WINDOW_FIRST - 1);
        assert_eq!(streams.window_at(64).pages, 2 * WINDOW_FIRST);
    }

    #[test]
    fn several_streams_in_turns() {
        let pages = (0..1000)
            .flat_map(|step| [step, 100_000 - step, 200_000 + 3 * step, 300_000 + 64 * step]);
        let faults = faults(&mut Streams::default(), pages);
        assert!(faults < 4 * (1000 / WINDOW_MAX + 12), "{faults}");
    }

    #[test]
    fn pages_that_are_in_memory_do_not_end_a_stream() {
        // Every second page is in memory.
        let faults = faults(&mut Streams::default(), (0..1000).map(|step| 1000 + 2 * step));
        assert!(faults < 50);
        let mut streams = Streams::default();
        for page in 100..103 {
            streams.window_at(page);
        }
        streams.note_brought(WINDOW_FIRST, WINDOW_FIRST - 1);
        let next = 102 + WINDOW_FIRST as u64 + 5;
        assert_eq!(streams.window_at(next).pages, 2 * WINDOW_FIRST);
        // Some of the pages in between were passed by.
        streams.note_brought(2 * WINDOW_FIRST, 40);
        assert_eq!(streams.window_at(next + 41).pages, 4 * WINDOW_FIRST);
    }

    #[test]
    fn random_faults_are_left_alone() {
        let count = faults(&mut Streams::default(), random(1 << 18).take(100_000));
        // Some pages come twice.
        let distinct: std::collections::HashSet<_> = random(1 << 18).take(100_000).collect();
        assert!(count > distinct.len() - distinct.len() / 200, "{count} of {}", distinct.len());
    }

    #[test]
    fn streams_that_end_at_once_are_soon_left_alone() {
        let mut streams = Streams::default();
        let (mut ahead, mut wasted) = (0, 0);
        // Four pages in a row, then elsewhere.
        for start in random(1 << 30).take(10_000) {
            for page in start * 64..start * 64 + 3 {
                let window = streams.window_at(page);
                streams.note_brought(window.pages, window.pages - 1);
                ahead += window.pages - 1;
                wasted += window.wasted as usize;
            }
        }
        assert!(ahead < 3000, "{ahead}");
        assert!(wasted <= ahead && wasted + STREAMS * WINDOW_FIRST >= ahead, "{wasted} of {ahead}");
        // And are followed again when they pay.
        let pages = 1_000_000;
        let count = faults(&mut streams, (0..pages).map(|step| (1 << 40) + step));
        assert!(count < pages as usize / 16, "{count}");
    }
}
