//! Programs of which only a curve is known: faults of LRU by resident pages.
//!
//! ramfold's policy is not LRU. Where LRU loses everything at once, as with a loop that is a little
//! larger than memory, it keeps what has room: its faults go straight from the one corner of the
//! curve to the other. So the curve that counts is the greatest convex one below that of LRU. What
//! streams have brought in and what is to be compressed takes a part of the memory then
//! ([`STREAMED_SHARE`]), which nothing is kept in.
//!
//! Held against the policy itself in tests: within 5 % of the accesses for loops, for accesses at
//! random, and for those that favour a part of the pages. Where a loop goes on beside other
//! accesses the policy does better than that: it keeps the loop's pages apart from them.

use ramfold_codec::PAGE_SIZE;

use super::{Input, finite};
use crate::curve::{MissCurve, Point};
use crate::simulate::program::{Counts, Overhead};

/// Pages of streams wait to be taken in a 16th of the cap, and to be compressed in a 64th.
const STREAMED_SHARE: f64 = 1.0 / 16.0 + 1.0 / 64.0;
/// More pages than there can be.
pub(super) const PAGES_MAX: f64 = (1u64 << 52) as f64;

/// Faults of ramfold's policy by resident pages under a cap, from the curve of LRU.
pub(super) fn faults(curve: &MissCurve, resident: f64, cap_pages: f64) -> f64 {
    let kept = (resident - STREAMED_SHARE * cap_pages).max(0.0);
    convex(curve).faults(kept).min(curve.faults(resident)).max(0.0)
}

/// The greatest convex curve that is nowhere above this one.
pub(super) fn convex(curve: &MissCurve) -> MissCurve {
    let mut hull: Vec<Point> = Vec::new();
    for &point in curve.points() {
        while let [.., one, other] = hull[..]
            && cross(one, other, point) <= 0.0
        {
            hull.pop();
        }
        hull.push(point);
    }
    MissCurve::new(hull, curve.cold().max(0.0), 0.0)
}

/// Above 0 where the way from one point over the next to the third turns upwards.
fn cross(one: Point, other: Point, third: Point) -> f64 {
    (other.pages - one.pages) * (third.faults - one.faults)
        - (other.faults - one.faults) * (third.pages - one.pages)
}

/// What a page that is out takes in the pool, on average.
fn mean_charged(input: &Input<'_>) -> f64 {
    input.sizes.mean_bytes().map_or(PAGE_SIZE as f64, |[_, dense]| dense)
}

/// Resident pages of a program that has `pages`, in memory of this size.
pub(super) fn resident_pages(input: &Input<'_>, pages: f64, memory_bytes: u64) -> f64 {
    let page = PAGE_SIZE as f64;
    let Overhead { fixed_bytes, entry_bytes, page_table_bytes, fragmentation, .. } = input.overhead;
    let object = mean_charged(input) * (1.0 + fragmentation) + entry_bytes;
    let high = crate::simulate::program::high_mark(memory_bytes) as f64;
    let reserve = input.overhead.reserve_of(memory_bytes);
    let room = high - fixed_bytes - page_table_bytes * pages - reserve;
    // room = resident * page + (pages - resident) * object
    if pages * page <= room {
        pages
    } else if object >= page {
        0.0
    } else {
        ((room - pages * object) / (page - object)).clamp(0.0, pages)
    }
}

/// What a memory of a size comes to for as long as the program was looked at.
pub(super) fn counts(
    input: &Input<'_>,
    curve: &MissCurve,
    pages: f64,
    memory_bytes: u64,
) -> Counts {
    let page = PAGE_SIZE as f64;
    let pages = finite(pages).clamp(0.0, PAGES_MAX);
    let Overhead { fixed_bytes, entry_bytes, page_table_bytes, fragmentation, .. } = input.overhead;
    let charged = mean_charged(input);
    let resident = resident_pages(input, pages, memory_bytes);
    let out = pages - resident;
    let is_held = out <= 0.0 || resident > 0.0;
    let cap_pages = memory_bytes as f64 / page;
    let faults_s = if out > 0.0 { faults(curve, resident, cap_pages) } else { 0.0 };
    let faults = finite(faults_s * input.run.wall_s);
    let pool = out * charged * (1.0 + fragmentation);
    let resident_bytes = resident * page;
    Counts {
        faults_alone: faults,
        dense_back: faults,
        taken: faults,
        compressed: faults,
        objects: out,
        pool_bytes: pool,
        pool_bytes_max: pool,
        pool_bytes_mean: pool,
        table_bytes: fixed_bytes + out * entry_bytes + pages * page_table_bytes,
        resident_bytes,
        resident_bytes_mean: resident_bytes,
        not_held_us: (!is_held).then_some(0),
        ..Counts::default()
    }
}
