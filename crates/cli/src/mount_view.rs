//! `ramfold mount --live`: what happens in the cache, told each second.
//!
//! On a terminal it is a picture; elsewhere a line, to be kept. What the kernel answers from its
//! own level nobody here hears of: all rates are of the requests that came to ramfold.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ramfold_filecache::{Statistics, View};

use crate::picture;

const INTERVAL: Duration = Duration::from_secs(1);
/// Lines below one line of headings.
const LINES_PER_HEADER: usize = 20;
/// Characters that stand for all of the memory.
const BAR: usize = 44;
const PAGE: f64 = 4096.0;

/// Shows it until it is dropped.
pub(crate) struct MountView {
    /// Nothing is sent: it is over when there is no sender.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MountView {
    /// # Errors
    /// When there can be no more threads.
    pub(crate) fn begin(view: View) -> io::Result<MountView> {
        let (end, ended) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("live-view".to_owned())
            // Nobody is left to tell when standard error is closed.
            .spawn(move || drop(show(&view, &ended)))?;
        Ok(MountView { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for MountView {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

fn show(view: &View, ended: &Receiver<()>) -> io::Result<()> {
    let is_terminal = io::stderr().is_terminal();
    let started = Instant::now();
    let (mut before, mut then) = (view.glance(), started);
    let mut lines = 0;
    loop {
        let is_over = ended.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
        let (now, at) = (view.glance(), Instant::now());
        let period = Period { before: &before, now: &now, seconds: (at - then).as_secs_f64() };
        // Who does not read what is said keeps nobody from unmounting.
        if picture::is_read() {
            if is_over && is_terminal {
                let mut stderr = io::stderr().lock();
                picture::erase(&mut stderr);
                stderr.write_all(picture_of(&period).as_bytes())?;
            } else if is_terminal {
                picture::draw(&picture_of(&period))?;
            } else {
                let header = if lines % LINES_PER_HEADER == 0 { header() } else { String::new() };
                let line = line_of(&period, at - started);
                io::stderr().write_all((header + &line).as_bytes())?;
                lines += 1;
            }
        }
        if is_over {
            return Ok(());
        }
        (before, then) = (now, at);
    }
}

/// What has happened between two looks.
struct Period<'a> {
    before: &'a Statistics,
    now: &'a Statistics,
    seconds: f64,
}

/// A number that tells something of a period.
enum Figure {
    /// How much a second.
    Rate { of: fn(&Statistics) -> f64, digits: usize },
    /// How much for each of something else; nothing where there was none of that.
    Mean { of: fn(&Statistics) -> f64, each: fn(&Statistics) -> f64, digits: usize },
}

impl Figure {
    fn of(&self, period: &Period<'_>) -> String {
        let change = |of: fn(&Statistics) -> f64| of(period.now) - of(period.before);
        match *self {
            Figure::Rate { of, digits } => format!("{:.digits$}", change(of) / period.seconds),
            Figure::Mean { of, each, digits } if change(each) > 0.0 => {
                format!("{:.digits$}", change(of) / change(each))
            }
            Figure::Mean { .. } => "-".to_owned(),
        }
    }
}

const REQUESTS: Figure = Figure::Rate { of: |s| s.reads as f64, digits: 0 };
const READ_MB: Figure = Figure::Rate { of: |s| s.pages_read as f64 * PAGE / 1e6, digits: 1 };
const LOWER_PERCENT: Figure = Figure::Mean {
    of: |s| s.pool_hit_pages as f64 * 100.0,
    each: |s| (s.pool_hit_pages + s.pool_miss_pages) as f64,
    digits: 1,
};
const DECOMPRESS_US: Figure = Figure::Mean {
    of: |s| s.decompress_ns as f64 / 1e3,
    each: |s| s.decompressions as f64,
    digits: 0,
};
const SPARED_MB: Figure = Figure::Rate { of: |s| s.pool_hit_pages as f64 * PAGE / 1e6, digits: 1 };
const SOURCE_MB: Figure = Figure::Rate { of: |s| s.source_read_bytes as f64 / 1e6, digits: 1 };
const SOURCE_READS: Figure = Figure::Rate { of: |s| s.source_reads as f64, digits: 0 };
const SOURCE_US: Figure = Figure::Mean {
    of: |s| s.source_read_ns as f64 / 1e3,
    each: |s| s.source_reads as f64,
    digits: 0,
};
const COMPRESSED: Figure = Figure::Rate { of: |s| s.pages_compressed as f64, digits: 0 };
const RATIO: Figure = Figure::Mean {
    of: |s| s.pages_compressed as f64 * PAGE,
    each: |s| s.pages_compressed_to_bytes as f64,
    digits: 2,
};
const REJECTED: Figure = Figure::Rate { of: |s| s.rejected_pages() as f64, digits: 0 };
const COMPRESS_MS: Figure = Figure::Rate { of: |s| s.compress_ns as f64 / 1e6, digits: 0 };
const DROPPED: Figure = Figure::Rate { of: |s| s.kernel_dropped_pages as f64, digits: 0 };

/// What the picture tells of the last second and of all the time.
const ROWS: [(&str, Figure); 13] = [
    ("requests that reached ramfold", REQUESTS),
    ("  MB", READ_MB),
    ("  % of it in the lower level", LOWER_PERCENT),
    ("  us to decompress a cluster", DECOMPRESS_US),
    ("MB spared SOURCE", SPARED_MB),
    ("MB read from SOURCE", SOURCE_MB),
    ("  reads", SOURCE_READS),
    ("  us a read", SOURCE_US),
    ("pages compressed", COMPRESSED),
    ("  ratio", RATIO),
    ("  rejected", REJECTED),
    ("  ms of processors' time", COMPRESS_MS),
    ("pages dropped by the kernel", DROPPED),
];

fn picture_of(period: &Period<'_>) -> String {
    let now = period.now;
    let levels = Levels::of(now);
    let mib = |bytes: u64| format!("{:.0}", mib(bytes));
    let amount = |name: &str, bytes: u64, most: Option<u64>, more: &str| {
        let most = most.map_or_else(String::new, |most| format!("of {}", mib(most)));
        format!("{name:<9} {:>7} MiB {most:<9} {more}\n", mib(bytes)).trim_end().to_owned() + "\n"
    };
    let mut text = amount("memory", now.cost_bytes, Some(now.memory_bytes), &levels.bar());
    text += &amount(
        "# upper",
        levels.upper,
        Some(now.kernel_bytes_max),
        "pages as they are; the kernel answers by itself",
    );
    text += &amount("= lower", levels.lower, Some(now.compressed_bytes_max), "compressed pages");
    text += &amount("- other", levels.other, None, "what waits to be compressed, and known files");
    let all = Period { before: &Statistics::default(), now, seconds: 1.0 };
    text += &format!("\n{:<30} {:>12} {:>15}\n", "", "a second", "in all");
    for (name, figure) in &ROWS {
        text += &format!("{name:<30} {:>12} {:>15}\n", figure.of(period), figure.of(&all));
    }
    text
}

/// What the memory is taken by.
struct Levels {
    upper: u64,
    lower: u64,
    other: u64,
    memory: u64,
}

impl Levels {
    fn of(now: &Statistics) -> Levels {
        let (upper, lower) = (now.kernel_bytes, now.pool_total_bytes + now.metadata_bytes);
        // The parts are not all of the same moment.
        let other = now.cost_bytes.saturating_sub(upper + lower);
        Levels { upper, lower, other, memory: now.memory_bytes }
    }

    fn bar(&self) -> String {
        let place = |bytes: u64| {
            let part = bytes as f64 / self.memory.max(1) as f64;
            ((part * BAR as f64).round() as usize).min(BAR)
        };
        let upper = place(self.upper);
        let lower = place(self.upper + self.lower);
        let other = place(self.upper + self.lower + self.other);
        let [upper_part, lower_part, other_part] = [upper, lower - upper, other - lower];
        format!(
            "[{}{}{}{}]",
            "#".repeat(upper_part),
            "=".repeat(lower_part),
            "-".repeat(other_part),
            ".".repeat(BAR - other)
        )
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 20)
}

/// Headings and values of a line.
fn columns(period: &Period<'_>, since_start: Duration) -> [(&'static str, String); 16] {
    let (now, levels) = (period.now, Levels::of(period.now));
    let all = Period { before: &Statistics::default(), now, seconds: 1.0 };
    [
        ("seconds", since_start.as_secs().to_string()),
        ("requests/s", REQUESTS.of(period)),
        ("MB/s", READ_MB.of(period)),
        ("lower %", LOWER_PERCENT.of(period)),
        ("decompress us", DECOMPRESS_US.of(period)),
        ("spared MB/s", SPARED_MB.of(period)),
        ("spared MB", SPARED_MB.of(&all)),
        ("SOURCE MB/s", SOURCE_MB.of(period)),
        ("SOURCE MB", SOURCE_MB.of(&all)),
        ("SOURCE us", SOURCE_US.of(period)),
        ("upper MiB", format!("{:.0}", mib(levels.upper))),
        ("lower MiB", format!("{:.0}", mib(levels.lower))),
        ("ratio", RATIO.of(&all)),
        ("compressed/s", COMPRESSED.of(period)),
        ("rejected/s", REJECTED.of(period)),
        ("dropped/s", DROPPED.of(period)),
    ]
}

fn header() -> String {
    let nothing = Statistics::default();
    let period = Period { before: &nothing, now: &nothing, seconds: 1.0 };
    aligned(columns(&period, Duration::ZERO).map(|(heading, _)| (heading, heading.to_owned())))
}

fn line_of(period: &Period<'_>, since_start: Duration) -> String {
    aligned(columns(period, since_start))
}

/// Each value below its heading.
fn aligned<const N: usize>(columns: [(&str, String); N]) -> String {
    const LEAST: usize = 8;
    let cells = columns.map(|(heading, value)| {
        let width = heading.len().max(LEAST);
        format!("{value:>width$}")
    });
    cells.join("  ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(times: u64) -> Statistics {
        let mut statistics = Statistics::default();
        statistics.memory_bytes = 512 << 20;
        statistics.cost_bytes = 416 << 20;
        statistics.kernel_bytes = 96 << 20;
        statistics.kernel_bytes_max = 102 << 20;
        statistics.pool_total_bytes = 300 << 20;
        statistics.metadata_bytes = 10 << 20;
        statistics.compressed_bytes_max = 410 << 20;
        statistics.reads = 1000 * times;
        statistics.pages_read = 4000 * times;
        statistics.pool_hit_pages = 3000 * times;
        statistics.pool_miss_pages = 1000 * times;
        statistics.decompressions = 100 * times;
        statistics.decompress_ns = 3_800_000 * times;
        statistics.source_reads = 10 * times;
        statistics.source_read_bytes = 6_553_600 * times;
        statistics.source_read_ns = 4_120_000 * times;
        statistics.pages_compressed = 1000 * times;
        statistics.pages_compressed_to_bytes = 1_400_000 * times;
        statistics.rejected_busy_pages = 20 * times;
        statistics.rejected_hopeless_pages = 4 * times;
        statistics.compress_ns = 95_000_000 * times;
        statistics.kernel_dropped_pages = 700 * times;
        statistics
    }

    #[test]
    fn a_picture_has_rates_of_the_period_and_sums_of_all() {
        let (before, now) = (statistics(10), statistics(12));
        let picture = picture_of(&Period { before: &before, now: &now, seconds: 2.0 });
        let expected = "\
memory        416 MiB of 512    [########===========================-........]
# upper        96 MiB of 102    pages as they are; the kernel answers by itself
= lower       310 MiB of 410    compressed pages
- other        10 MiB           what waits to be compressed, and known files

                                   a second          in all
requests that reached ramfold          1000           12000
  MB                                   16.4           196.6
  % of it in the lower level           75.0            75.0
  us to decompress a cluster             38              38
MB spared SOURCE                       12.3           147.5
MB read from SOURCE                     6.6            78.6
  reads                                  10             120
  us a read                             412             412
pages compressed                       1000           12000
  ratio                                2.93            2.93
  rejected                               24             288
  ms of processors' time                 95            1140
pages dropped by the kernel             700            8400
";
        assert_eq!(picture, expected);
        assert!(picture.lines().all(|line| line.len() < 80));
    }

    #[test]
    fn where_nothing_happened_there_are_no_means() {
        let now = statistics(3);
        let period = Period { before: &now, now: &now, seconds: 1.0 };
        assert_eq!(REQUESTS.of(&period), "0");
        for mean in [LOWER_PERCENT, DECOMPRESS_US, SOURCE_US, RATIO] {
            assert_eq!(mean.of(&period), "-");
        }
        // Not a thing has come yet, and nobody divides by nothing.
        let nothing = Statistics::default();
        let picture = picture_of(&Period { before: &nothing, now: &nothing, seconds: 1.0 });
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }

    #[test]
    fn values_stand_below_their_headings() {
        let (before, now) = (statistics(10), statistics(11));
        let period = Period { before: &before, now: &now, seconds: 1.0 };
        let (header, line) = (header(), line_of(&period, Duration::from_secs(61)));
        assert_eq!(header.len(), line.len());
        let values: Vec<_> = line.split_whitespace().collect();
        assert_eq!(values[..4], ["61", "1000", "16.4", "75.0"]);
        assert_eq!(values.len(), columns(&period, Duration::ZERO).len());
        let end_of = |text: &str, word: &str| text.find(word).map(|start| start + word.len());
        assert_eq!(end_of(&header, "SOURCE us"), end_of(&line, " 412"));
        assert!(header.ends_with('\n') && line.ends_with('\n'));
    }

    #[test]
    fn the_bar_is_as_long_as_it_is_whatever_is_taken() {
        for (upper, lower, other) in [(0, 0, 0), (1, 1, 1), (50, 50, 0), (60, 60, 60), (0, 0, 100)]
        {
            let bar = Levels { upper, lower, other, memory: 100 }.bar();
            assert_eq!(bar.len(), BAR + 2, "{bar}");
        }
    }
}
