//! Memory that was never written to and is read: the kernel's one page of zeros, which costs
//! nothing.
//!
//! A write to it makes a page of the process's own, and tells nobody: a program that had read 100
//! MiB before it filled them passed a cap of 40 by 60. So where the page of zeros is mapped, writes
//! are reported (UFFDIO_WRITEPROTECT), counted, and wait for room as first touches do.

use core::ops::Range;

use ramfold_sys::PAGE_SIZE;
use ramfold_sys::pagemap::{PageRegion, Pages};
use ramfold_sys::uffd::Partial;

use crate::agent::Active;
use crate::kernel::Kernel;

const RUNS_MAX: usize = 16;

/// Maps the page of zeros at so many pages, of which a thread waits for the first, and wakes it.
///
/// # Errors
/// As [`Uffd::copy`](ramfold_sys::uffd::Uffd::copy), where the first page could not be mapped.
pub(crate) fn map(active: &Active, address: usize, pages: usize) -> Result<usize, Partial> {
    let mapped = match active.kernel.zeropage_without_wake(address, pages * PAGE_SIZE) {
        Err(partial) if partial.done == 0 => return Err(partial),
        Err(partial) => partial.done,
        Ok(()) => pages * PAGE_SIZE,
    };
    let range = address..address + mapped;
    // Where that is refused because an event waits to be read, a page or some grow unseen.
    let _ = active.kernel.write_protect(range.clone(), true);
    // It fails only for ranges that cannot be.
    let _ = active.kernel.wake(range);
    Ok(mapped / PAGE_SIZE)
}

/// Protects what the kernel has mapped so before the range was registered, or before a fork.
pub(crate) fn protect(active: &Active, range: Range<usize>) {
    let mut at = range.start;
    while at < range.end {
        let mut runs = [PageRegion::default(); RUNS_MAX];
        let Ok(found) = active.kernel.present(at..range.end, usize::MAX, &mut runs, Pages::Zeros)
        else {
            return;
        };
        for run in &runs[..found.runs] {
            // What has changed since is told by an event.
            let _ = active.kernel.write_protect(run.start as usize..run.end as usize, true);
        }
        at = found.end.max(at + PAGE_SIZE);
    }
}

/// At how many of these pages, few of them, the page of zeros is mapped.
pub(crate) fn count(active: &Active, range: Range<usize>) -> usize {
    let mut runs = [PageRegion::default(); RUNS_MAX];
    let found = active.kernel.present(range, usize::MAX, &mut runs, Pages::Zeros);
    let runs = &runs[..found.map_or(0, |found| found.runs)];
    runs.iter().map(|run| (run.end - run.start) as usize / PAGE_SIZE).sum()
}
