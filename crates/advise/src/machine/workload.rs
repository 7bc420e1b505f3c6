//! What calibration runs under the agent: a small program with memory that compresses about 3:1.
//!
//! It prints `ready`, waits for a line, does what is timed, prints the nanoseconds that took, and
//! waits for another line. So whoever started it can look at counters right before and after.

use std::io::{self, BufRead, Write};
use std::str::FromStr;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::mem::Pages;
use ramfold_sys::time::monotonic_ns;

/// Pages of different content before it repeats, at another place of the page.
const TEMPLATES: usize = 256;
/// Of the words of a page, in 16: those that are small numbers, and those that are addresses near
/// each other. The rest are numbers of four bytes. Together they compress about 3:1.
const SMALL: u64 = 12;
const NEAR: u64 = 3;

/// What the workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Touches single pages at random.
    Faults,
    /// Goes through its memory from end to end, again and again.
    Stream,
    /// Takes as much memory as it has once more.
    Growth,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 3] = [Kind::Faults, Kind::Stream, Kind::Growth];

    /// The name, which [`FromStr`] reads back.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Faults => "faults",
            Kind::Stream => "stream",
            Kind::Growth => "growth",
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("{name:?} is no workload of the calibration"))
    }
}

/// Runs it, with this much memory to begin with.
///
/// # Errors
/// When there is no memory, or whoever started it is gone.
pub fn run(kind: Kind, bytes: usize) -> io::Result<()> {
    let content = Content::new();
    let mut memory = Pages::new(bytes)?;
    content.fill(&mut memory);
    let pages = bytes / PAGE_SIZE;
    let mut random = Random(7);
    // What is timed begins in the steady state.
    match kind {
        Kind::Faults => touch_at_random(&mut memory, &mut random, pages),
        Kind::Stream => touch_all(&mut memory),
        Kind::Growth => {}
    }
    println!("ready");
    wait_for_line()?;
    let started = monotonic_ns();
    let mut more = None;
    match kind {
        Kind::Faults => touch_at_random(&mut memory, &mut random, pages),
        Kind::Stream => (0..2).for_each(|_| touch_all(&mut memory)),
        Kind::Growth => {
            let grown = more.insert(Pages::new(bytes)?);
            content.fill(grown);
        }
    }
    let took_ns = monotonic_ns() - started;
    writeln!(io::stdout(), "{took_ns}")?;
    wait_for_line()
}

fn wait_for_line() -> io::Result<()> {
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(drop)
}

/// Writes a word of a page: what is only read costs the same here.
fn touch(memory: &mut [u8], page: usize, value: u64) {
    let at = page * PAGE_SIZE + 64;
    memory[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn touch_at_random(memory: &mut [u8], random: &mut Random, times: usize) {
    let pages = (memory.len() / PAGE_SIZE) as u64;
    for _ in 0..times {
        let page = random.next() % pages;
        touch(memory, page as usize, page);
    }
}

fn touch_all(memory: &mut [u8]) {
    (0..memory.len() / PAGE_SIZE).for_each(|page| touch(memory, page, page as u64));
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// What is in the pages: small numbers, addresses and some noise, as in a program's heap.
pub(crate) struct Content(Vec<u8>);

impl Content {
    pub(crate) fn new() -> Content {
        let mut random = Random(1);
        let mut bytes = Vec::with_capacity(TEMPLATES * PAGE_SIZE);
        while bytes.len() < TEMPLATES * PAGE_SIZE {
            let word = match random.next() % 16 {
                kind if kind < SMALL => random.next() % 16,
                kind if kind < SMALL + NEAR => 0x7F3A_1200_0000 + random.next() % 256 * 16,
                _ => random.next(),
            };
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        Content(bytes)
    }

    /// Its pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &[u8; PAGE_SIZE]> {
        self.0.as_chunks().0.iter()
    }

    fn fill(&self, memory: &mut [u8]) {
        for (nth, page) in memory.chunks_exact_mut(PAGE_SIZE).enumerate() {
            let template = nth % TEMPLATES * PAGE_SIZE;
            // No two pages are the same.
            let shift = nth / TEMPLATES * 8 % PAGE_SIZE;
            let (back, front) = self.0[template..template + PAGE_SIZE].split_at(shift);
            page[..front.len()].copy_from_slice(front);
            page[front.len()..].copy_from_slice(back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("other".parse::<Kind>().is_err());
    }

    #[test]
    fn pages_differ() {
        let content = Content::new();
        let mut memory = vec![0; 3 * TEMPLATES * PAGE_SIZE];
        content.fill(&mut memory);
        let pages: std::collections::HashSet<&[u8]> = memory.chunks(PAGE_SIZE).collect();
        assert_eq!(pages.len(), 3 * TEMPLATES);
    }
}
