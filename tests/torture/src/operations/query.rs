//! Asking the kernel about the memory.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::PAGE;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("query-mincore", 3, "mincore and getrusage", mincore),
    operation("query-maps", 3, "the region is in /proc/self/maps, readable and writable", maps),
];

fn mincore(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    let pages = region.pages();
    region.remember(0, pages);
    let mut present = vec![0_u8; pages];
    let span = region.span(0, pages);
    // SAFETY: the vector has a byte for each page.
    if unsafe { libc::mincore(span.void(), span.bytes(), present.as_mut_ptr()) } != 0 {
        fail!("mincore of region {} gave {}", region.index(), Errno::last());
    }
    // SAFETY: all bit patterns are valid for the C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 || usage.ru_maxrss <= 0 {
        fail!("getrusage gave {}, {} KiB", Errno::last(), usage.ru_maxrss);
    }
    region.check(turn.rng.below(pages), 1);
    Ok(())
}

fn maps(turn: &mut Turn<'_>) -> Outcome {
    let region = turn.region();
    let (mut at, end) = (region.address(), region.address() + region.pages() * PAGE);
    let text = std::fs::read_to_string("/proc/self/maps")
        .map_err(|error| Skip::errno("reading /proc/self/maps", error.into()))?;
    current::beat();
    for line in text.lines() {
        let Some((from, to, protection)) = parse(line) else {
            fail!("a line of /proc/self/maps is not understood: {line}");
        };
        if at < end && from <= at && at < to {
            if protection != "rw-p" {
                fail!("region {} at {at:#x} is mapped {protection}", region.index());
            }
            at = to;
        }
    }
    if at < end {
        fail!("region {} is not mapped at {at:#x}", region.index());
    }
    Ok(())
}

/// Start, end and protection of a line of /proc/self/maps.
fn parse(line: &str) -> Option<(usize, usize, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let protection = words.next()?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?, protection))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lines_of_maps() {
        let line = "7ffff000-80000000 rw-p 00000000 00:00 0    [heap]";
        assert_eq!(parse(line), Some((0x7fff_f000, 0x8000_0000, "rw-p")));
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse(""), None);
    }
}
