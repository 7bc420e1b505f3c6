//! Looks at processes over some time: how large they are, how many of their pages are touched in
//! windows of time, and what is in them.
//!
//! Looking takes at most [`SHARE`] of a processor. Compressing what was read takes some 0.2 ms a
//! page, and is done when all is over.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ramfold_codec::PAGE_SIZE;
use ramfold_sys::Errno;
use ramfold_sys::cgroup;
use ramfold_sys::other_process::{AnonymousMapping, OtherProcess, tracks_writes};
use ramfold_sys::time::thread_cpu_ns;

use super::blocks::{self, Refused, Source};
use super::random::Random;
use super::rounds::{self, Round, SHARE};
use super::{Error, Options, Raw, compressed, mebibytes};
use crate::observation::{Observation, Size, Window};
use crate::progress::Progress;

/// Blocks that are read in all: 2,000 pages.
const BLOCKS: f64 = 250.0;
/// Blocks that are read at least at the beginning of a round.
const BLOCKS_MIN: f64 = 4.0;
/// Sizes that are noted in all, and the time between two of them at least.
const SIZES: f64 = 200.0;
const SIZES_APART: Duration = Duration::from_millis(500);
/// So few windows are said.
const WINDOWS_FEW: usize = 10;
/// What processes under `ramfold run` have mapped.
const SESSION: &[u8] = b"ramfold-session";
/// Time between two looks whether the user has had enough.
const TICK: Duration = Duration::from_millis(100);
/// The shortest time that is measured.
const DURATION_MIN: Duration = Duration::from_millis(100);
/// An interrupted round has a last look if the one before was so long ago. Seconds.
const LAST_WINDOW_S: f64 = 0.05;

/// What is watched.
pub(super) struct Target<'a> {
    /// For messages.
    pub(super) name: String,
    /// Whether memory that processes share since a fork counts by their parts of it.
    pub(super) is_group: bool,
    /// The processes that it has now.
    pub(super) list: &'a dyn Fn() -> Vec<u32>,
    /// Its anonymous memory, where the kernel counts it.
    pub(super) anonymous_bytes: &'a dyn Fn() -> Option<u64>,
}

/// A process of the target.
struct Member {
    process: OtherProcess,
    number: u64,
    /// As of the last look.
    mappings: Vec<AnonymousMapping>,
}

/// What all processes have, as of a look, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) touched: f64,
    anonymous: u64,
    /// Of it, what is counted.
    pub(super) counted: u64,
    pub(super) huge: u64,
    swapped: u64,
}

/// Why watching ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Time,
    Interrupted,
    Gone,
}

pub(super) struct Watch<'a> {
    target: Target<'a>,
    options: &'a Options,
    progress: &'a Progress,
    random: Random,
    is_thorough: bool,
    duration: Duration,
    began: Instant,
    cpu_began_ns: u64,
    members: Vec<Member>,
    numbers: HashMap<u32, u64>,
    refused: BTreeSet<u32>,
    first_refused: Option<Refused>,
    processors: u32,
    has_ramfold: bool,
    sizes: Vec<Size>,
    size_due: Instant,
    raw: Vec<Raw>,
    windows: Vec<Window>,
    last: Totals,
    /// The most that was seen of each, in bytes.
    uncounted: u64,
    huge: u64,
    swapped: u64,
    /// What a look costs.
    look_s: f64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        target: Target<'a>,
        options: &'a Options,
        progress: &'a Progress,
    ) -> Watch<'a> {
        let began = Instant::now();
        let duration = options.duration.max(DURATION_MIN);
        progress.set_all(duration.as_millis() as u64);
        Watch {
            target,
            options,
            progress,
            random: Random::new(),
            is_thorough: !tracks_writes(),
            duration,
            began,
            cpu_began_ns: thread_cpu_ns(),
            members: Vec::new(),
            numbers: HashMap::new(),
            refused: BTreeSet::new(),
            first_refused: None,
            processors: 0,
            has_ramfold: false,
            sizes: Vec::new(),
            size_due: began,
            raw: Vec::new(),
            windows: Vec::new(),
            last: Totals::default(),
            uncounted: 0,
            huge: 0,
            swapped: 0,
            look_s: 0.0,
        }
    }

    /// Watches for as long as was asked, and puts what it finds into the observation.
    pub(super) fn run(mut self, observation: &mut Observation) -> Result<(), Error> {
        self.refresh();
        let cpu_ns = thread_cpu_ns();
        let first = Instant::now();
        self.look();
        self.check_first_look()?;
        let cpu_s = (thread_cpu_ns() - cpu_ns) as f64 / 1e9;
        self.look_s = cpu_s.max(first.elapsed().as_secs_f64().min(2.0 * cpu_s));
        let rounds = rounds::plan(self.duration.as_secs_f64(), self.look_s);
        let mut end = End::Time;
        for round in &rounds {
            end = self.round(round)?;
            if end != End::Time {
                break;
            }
        }
        self.note_size();
        self.finish(end, observation)
    }

    /// Whether there is anything to measure.
    fn check_first_look(&mut self) -> Result<(), Error> {
        let name = || self.target.name.clone();
        if self.members.is_empty() {
            return Err(match self.first_refused.take() {
                Some(refused) => refused.into(),
                None => Error::Ended { subject: name() },
            });
        }
        if self.last.counted == 0 {
            return Err(Error::Nothing { subject: name() });
        }
        Ok(())
    }

    /// Reads again which processes there are.
    fn refresh(&mut self) {
        let listed: BTreeSet<u32> = (self.target.list)().into_iter().collect();
        self.members.retain(|member| listed.contains(&member.process.pid()));
        let own = std::process::id();
        for &pid in listed.iter().filter(|&&pid| pid != own && !self.refused.contains(&pid)) {
            if self.members.iter().any(|member| member.process.pid() == pid) {
                continue;
            }
            let Ok(process) = OtherProcess::open(pid) else { continue };
            let Ok(status) = process.status() else { continue };
            let quota = cgroup::processors_of(pid).map_or(u32::MAX, |quota| quota.ceil() as u32);
            self.processors = self.processors.max(status.processors.min(quota));
            // A thread of the kernel, or one of another user, has none that can be seen.
            self.has_ramfold |= process.has_mapping_of(SESSION).unwrap_or(false);
            let next = self.numbers.len() as u64;
            // One with the number of another that ended is taken for it.
            let number = *self.numbers.entry(pid).or_insert(next);
            self.members.push(Member { process, number, mappings: Vec::new() });
        }
    }

    /// Looks at all processes. Those that have ended, or may not be looked at, are members no more.
    fn look(&mut self) -> Totals {
        let mut totals = Totals::default();
        let is_group = self.target.is_group;
        let (refused, first_refused) = (&mut self.refused, &mut self.first_refused);
        self.members.retain_mut(|member| {
            let pid = member.process.pid();
            let mut mappings = Vec::new();
            let looked = member.process.anonymous_mappings(|mapping| {
                if mapping.anonymous_bytes > 0 || mapping.swapped_bytes > 0 {
                    mappings.push(mapping);
                }
            });
            if let Err(errno @ (Errno::ACCESS | Errno::PERM)) = looked {
                refused.insert(pid);
                first_refused.get_or_insert(Refused { pid, file: "smaps", errno });
            }
            if looked.is_err() || mappings.is_empty() && member.process.has_ended() {
                return false;
            }
            mappings.iter().for_each(|mapping| totals.add(mapping, is_group));
            member.mappings = mappings;
            true
        });
        self.last = totals;
        self.uncounted = self.uncounted.max(totals.anonymous - totals.counted);
        self.huge = self.huge.max(totals.huge);
        self.swapped = self.swapped.max(totals.swapped);
        totals
    }

    fn round(&mut self, round: &Round) -> Result<End, Error> {
        self.refresh();
        // Before anything is forgotten: what is read counts as touched.
        self.read_blocks(round.last().copied().unwrap_or(0.0))?;
        let forget_began = Instant::now();
        self.members.iter().for_each(|member| {
            // The next look tells of one that has ended.
            let _ = member.process.forget_touched(self.is_thorough);
        });
        // Each page was forgotten at some moment of this, and is looked at in the same order.
        let began = forget_began + forget_began.elapsed() / 2;
        let mut looks = Vec::new();
        let mut looked_for = Vec::new();
        let mut end = End::Time;
        for (nth, &seconds) in round.iter().enumerate() {
            end = self.sleep_until(began + Duration::from_secs_f64(seconds));
            let last = looks.last().map_or(0.0, |look: &(f64, f64)| look.0);
            let is_due = match end {
                End::Time => nth + 1 == round.len() || self.can_afford(),
                End::Interrupted => began.elapsed().as_secs_f64() > last + LAST_WINDOW_S,
                End::Gone => false,
            };
            if is_due {
                let (look_began, members) = (Instant::now(), self.members.len());
                let touched = self.look().touched;
                let is_gone = !self.target.is_group && self.members.len() < members;
                if is_gone || self.members.is_empty() {
                    end = End::Gone;
                } else {
                    let at = look_began + look_began.elapsed() / 2;
                    looks.push(((at - began).as_secs_f64(), touched / PAGE_SIZE as f64));
                    looked_for.push(seconds);
                }
            }
            if end != End::Time {
                break;
            }
        }
        // A look that could not be afforded has no window: pages are not touched evenly.
        self.windows.extend(rounds::windows(&looked_for, &looks));
        Ok(end)
    }

    /// Whether a look more is within the part of a processor that measuring may take.
    fn can_afford(&self) -> bool {
        let spent_s = (thread_cpu_ns() - self.cpu_began_ns) as f64 / 1e9;
        spent_s + self.look_s <= SHARE * self.duration.as_secs_f64()
    }

    /// Reads blocks at the beginning of a round, in proportion to its length in seconds.
    fn read_blocks(&mut self, seconds: f64) -> Result<(), Error> {
        let part = seconds / self.duration.as_secs_f64();
        let count = (BLOCKS * part).max(BLOCKS_MIN).round() as usize;
        let sources: Vec<Source<'_>> = self
            .members
            .iter()
            .map(|member| Source {
                process: &member.process,
                number: member.number,
                mappings: &member.mappings,
            })
            .collect();
        let at_s = self.began.elapsed().as_secs_f64();
        match blocks::sample(&sources, count, at_s, &mut self.random) {
            Ok(raw) => self.raw.extend(raw),
            Err(refused) if self.raw.is_empty() && refused.is_permission() => {
                return Err(refused.into());
            }
            // It has ended; the next look tells.
            Err(_) => {}
        }
        Ok(())
    }

    fn sleep_until(&mut self, when: Instant) -> End {
        loop {
            let now = Instant::now();
            self.progress.set((now - self.began).as_millis() as u64);
            if self.options.is_interrupted() {
                return End::Interrupted;
            }
            if now >= when {
                return End::Time;
            }
            if now >= self.size_due {
                self.note_size();
                let apart = Duration::from_secs_f64(self.duration.as_secs_f64() / SIZES);
                self.size_due = now + apart.max(SIZES_APART);
            }
            let patience = (when - now).min(TICK);
            match &self.members[..] {
                [member] if !self.target.is_group => {
                    member.process.wait_for_end(patience);
                    let rest = patience.saturating_sub(now.elapsed());
                    if !rest.is_zero() {
                        if member.process.has_ended() {
                            return End::Gone;
                        }
                        std::thread::sleep(rest);
                    }
                }
                _ => std::thread::sleep(patience),
            }
        }
    }

    fn note_size(&mut self) {
        let bytes = if self.target.is_group {
            // What a process had when it came into the group is charged to another one, so the
            // kernel may count less.
            let counted = (self.target.anonymous_bytes)().unwrap_or(0);
            counted.max(self.last.counted + self.last.swapped)
        } else {
            let statuses = self.members.iter().filter_map(|member| member.process.status().ok());
            let bytes: u64 = statuses
                .map(|status| status.anonymous_bytes.unwrap_or(0) + status.swapped_bytes)
                .sum();
            bytes.saturating_sub(self.last.anonymous - self.last.counted)
        };
        if bytes > 0 {
            self.sizes.push(Size { at_s: self.began.elapsed().as_secs_f64(), bytes });
        }
    }

    fn finish(self, end: End, observation: &mut Observation) -> Result<(), Error> {
        let seconds = self.began.elapsed().as_secs_f64();
        if self.raw.is_empty() || self.sizes.is_empty() {
            return Err(match end {
                End::Interrupted => Error::Interrupted,
                _ => Error::Ended { subject: self.target.name },
            });
        }
        let not_seen = self.not_seen(end, seconds);
        // The user may have had enough before: what was read is compressed still, which takes less
        // than a second.
        observation.contents = compressed(&self.raw, || true);
        observation.seconds = seconds;
        observation.need_bytes = self.sizes.iter().map(|size| size.bytes).max().unwrap_or(0);
        observation.machine.processors = self.processors.max(1);
        observation.sizes = self.sizes;
        observation.windows = self.windows;
        observation.not_seen.extend(not_seen);
        self.progress.set(self.duration.as_millis() as u64);
        Ok(())
    }

    /// What should be known of the measurement.
    fn not_seen(&self, end: End, seconds: f64) -> Vec<String> {
        let mut not_seen = Vec::new();
        let mut add = |sentence: String| not_seen.push(sentence);
        match end {
            End::Time => {}
            End::Interrupted => add(format!("measuring was interrupted after {seconds:.1} s")),
            End::Gone => add(format!("{} ended after {seconds:.1} s", self.target.name)),
        }
        let longest = self.windows.iter().map(|window| window.seconds).fold(0.0, f64::max);
        add(format!(
            "the longest window of time is {longest:.1} s: what is touched less often counts as \
             never touched again"
        ));
        if self.windows.len() < WINDOWS_FEW {
            add(format!(
                "a look at so much memory takes {:.0} ms, so there were few, with {} windows: \
                 measure for longer to have more",
                self.look_s * 1e3,
                self.windows.len()
            ));
        }
        if self.has_ramfold {
            add(format!(
                "{} runs under ramfold already: what is compressed counts as it is, and is neither \
                 in the windows nor told apart from other memory",
                self.target.name
            ));
        }
        if self.huge > 0 {
            add(format!(
                "{} lie in huge pages, of which a touch of any part counts as a touch of all: less \
                 may be in use",
                mebibytes(self.huge)
            ));
        }
        if self.uncounted > 0 && !self.target.is_group {
            add(format!(
                "{} are shared with other processes since a fork, and are not counted",
                mebibytes(self.uncounted)
            ));
        }
        if self.swapped > 0 {
            add(format!(
                "{} were swapped out: they count as memory, but what is in them was not read",
                mebibytes(self.swapped)
            ));
        }
        if !self.is_thorough {
            add("pages that are touched all the time may be missed in short windows: processors \
                 remember the addresses of some 1,500 pages, or of as many huge pages"
                .to_owned());
        }
        if !self.refused.is_empty() {
            add(format!(
                "{} processes of other users, or that hide their memory, were left out",
                self.refused.len()
            ));
        }
        add("the kernel's own record of which pages are in use was reset at each round (clear_refs): \
             where memory is short it may have swapped out others than usual"
            .to_owned());
        not_seen
    }
}

impl Totals {
    /// `is_group`: memory that processes share since a fork counts by their parts of it.
    pub(super) fn add(&mut self, mapping: &AnonymousMapping, is_group: bool) {
        let parts = if is_group { mapping.shared_part_bytes } else { 0 };
        let counted = mapping.own_bytes + parts;
        // Which pages were touched is not told: shared ones as much as others.
        let part = counted as f64 / mapping.anonymous_bytes.max(1) as f64;
        self.touched += mapping.touched_bytes as f64 * part;
        self.anonymous += mapping.anonymous_bytes;
        self.counted += counted;
        self.huge += mapping.huge_bytes;
        self.swapped += mapping.swapped_bytes;
    }
}

impl Refused {
    fn is_permission(&self) -> bool {
        matches!(self.errno, Errno::ACCESS | Errno::PERM)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        let Refused { pid, file, errno } = refused;
        let source = errno.into();
        match file {
            "mem" => Error::NotReadable { pid, source },
            _ => Error::NotPermitted { pid, file: format!("/proc/{pid}/{file}"), source },
        }
    }
}
