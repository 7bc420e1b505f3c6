//! Reads a random sample of the pages of processes: blocks of neighbours, each page of their own
//! anonymous memory as likely as any other.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use ramfold_codec::{PAGE_SIZE, Page};
use ramfold_model::page_of_process;
use ramfold_sys::Errno;
use ramfold_sys::other_process::{AnonymousMapping, OtherProcess, read_memory};
use ramfold_sys::pagemap::{PageRegion, Pagemap, Pages};

use super::random::Random;
use super::{BLOCK_BYTES, Raw};
use crate::observation::BLOCK_PAGES;

/// Random places of a mapping that are tried before the next page behind one of them is taken:
/// most mappings are full.
const TRIES: u32 = 32;
/// Attempts to find a block, for each that is asked for: a small process has few, and none is read
/// twice.
const ATTEMPTS: usize = 4;

/// A process, and the mappings that it had at the last look.
pub(super) struct Source<'a> {
    pub(super) process: &'a OtherProcess,
    /// Its number in those of pages.
    pub(super) number: u64,
    pub(super) mappings: &'a [AnonymousMapping],
}

/// A file of a process that could not be opened.
pub(super) struct Refused {
    pub(super) pid: u32,
    pub(super) file: &'static str,
    pub(super) errno: Errno,
}

/// What is open of a process that is read.
struct Open {
    pagemap: Pagemap,
    memory: OwnedFd,
}

impl Open {
    fn new(process: &OtherProcess) -> Result<Open, Refused> {
        let pid = process.pid();
        let refused = |file| move |errno| Refused { pid, file, errno };
        Ok(Open {
            pagemap: process.pagemap().map_err(refused("pagemap"))?,
            memory: process.memory().map_err(refused("mem"))?,
        })
    }

    /// The pages of the block at this address that are the process's own.
    fn read(&self, address: usize, range: &std::ops::Range<usize>) -> Vec<Page> {
        let start = address.max(range.start);
        let end = (address + BLOCK_BYTES as usize).min(range.end);
        let count = end.saturating_sub(start) / PAGE_SIZE;
        // What has ended meanwhile has no pages.
        let own = self.pagemap.own_pages(start, count).unwrap_or(0);
        let mut pages = Vec::new();
        for nth in (0..count).filter(|nth| own >> nth & 1 == 1) {
            let mut page = [0; PAGE_SIZE];
            if read_memory(&self.memory, start + nth * PAGE_SIZE, &mut page) == Ok(PAGE_SIZE) {
                pages.push(page);
            }
        }
        pages
    }

    /// The next page in memory from an address on.
    fn next_page(&self, address: usize, end: usize) -> Option<usize> {
        let mut run = [PageRegion::default()];
        let scanned = self.pagemap.present(address..end, 1, &mut run, Pages::All).ok()?;
        (scanned.runs > 0).then_some(run[0].start as usize)
    }
}

/// Reads about `count` blocks.
///
/// # Errors
/// The first process that could not be read, where none could.
pub(super) fn sample(
    sources: &[Source<'_>],
    count: usize,
    at_s: f64,
    random: &mut Random,
) -> Result<Vec<Raw>, Refused> {
    // Each mapping with what is before it. It is taken as often as it has blocks, so that all pages
    // that are read in the end are as likely: a mapping of one page gives one, not eight.
    let mut all = Vec::new();
    let mut total = 0;
    for (nth, source) in sources.iter().enumerate() {
        for mapping in source.mappings.iter().filter(|mapping| mapping.own_bytes > 0) {
            all.push((total, nth, mapping));
            total += mapping.own_bytes.div_ceil(BLOCK_BYTES);
        }
    }
    let mut open: HashMap<usize, Result<Open, Refused>> = HashMap::new();
    let mut seen = HashSet::new();
    let mut raw = Vec::new();
    for _ in 0..count * ATTEMPTS {
        if raw.len() == count || all.is_empty() {
            break;
        }
        let place = random.below(total);
        let (_, nth, mapping) = all[all.partition_point(|(before, ..)| *before <= place) - 1];
        let source = &sources[nth];
        let Ok(open) = open.entry(nth).or_insert_with(|| Open::new(source.process)) else {
            continue;
        };
        if let Some((address, pages)) = block(open, mapping, random)
            && seen.insert((nth, address))
        {
            let first_page = page_of_process(source.number, (address / PAGE_SIZE) as u64);
            raw.push(Raw { first_page, at_s, pages });
        }
    }
    match open.into_values().find_map(Result::err) {
        Some(refused) if raw.is_empty() => Err(refused),
        _ => Ok(raw),
    }
}

/// A random block of a mapping, with its address.
fn block(
    open: &Open,
    mapping: &AnonymousMapping,
    random: &mut Random,
) -> Option<(usize, Vec<Page>)> {
    let range = &mapping.range;
    let align = |address: usize| address / BLOCK_BYTES as usize * BLOCK_BYTES as usize;
    let mut anywhere = || range.start + random.below(range.len() as u64) as usize;
    for _ in 0..TRIES {
        let address = align(anywhere());
        let pages = open.read(address, range);
        if !pages.is_empty() {
            return Some((address, pages));
        }
    }
    let from = anywhere() / PAGE_SIZE * PAGE_SIZE;
    let page = open.next_page(from, range.end).or_else(|| open.next_page(range.start, from))?;
    let pages = open.read(align(page), range);
    (!pages.is_empty()).then_some((align(page), pages))
}

const _: () = assert!(BLOCK_PAGES <= u64::BITS as u64);
