//! Which pages are watched for accesses, when, and what that may cost.
//!
//! To watch a page is to take it out, uncompressed: the next access is a fault. So the pages are a
//! sample, and what the faults cost the program is bounded.
//!
//! Pages are sampled in aligned blocks of [`BLOCK_PAGES`]: streams go through a block, and
//! neighbours are alike. Of each aligned group of `2^level` blocks one is sampled, chosen by a hash
//! of the group's number. Three things follow: the sample of a level is part of that of the level
//! below; no stride of a program's falls in step with it; and the blocks of a sample, numbered by
//! their group, lie one behind the other as the program's blocks do, in a smaller address space.

/// Pages that are sampled together.
pub const BLOCK_PAGES: u64 = 8;
/// Pages that are watched at most, about: the next level halves them.
pub const PAGES_MAX: u64 = 2048;
/// The greatest level: one block in a million.
pub const LEVEL_MAX: u32 = 20;

/// How soon after an access to a block more of its pages are watched. The same for all blocks,
/// whether they are accessed often or not: each watch costs the program one fault, and pages that
/// are accessed often are most of what a program misses where memory is short.
pub const REST_NS: u64 = 50_000_000;

/// What a program may lose before anything can be said of what it loses in a second.
const ALLOWED_NS: u64 = 2_000_000;
const PARTS_PER_MILLION: u128 = 1_000_000;

/// The block that is sampled of a group.
pub fn block_of_group(group: u64, level: u32) -> u64 {
    (0..level).rev().fold(group, |block, at| block * 2 + side(block, at))
}

/// Whether a block is sampled.
pub fn is_sampled(block: u64, level: u32) -> bool {
    (0..level).all(|at| {
        let group = block >> (at + 1);
        block >> at & 1 == side(group, at)
    })
}

/// The level at which so many pages are few enough.
pub fn level_for(pages: u64) -> u32 {
    (0..LEVEL_MAX).find(|level| pages >> level <= PAGES_MAX).unwrap_or(LEVEL_MAX)
}

/// Which half of a group the sampled block is in.
fn side(group: u64, level: u32) -> u64 {
    let mut bits = group ^ u64::from(level + 1) << 58;
    bits = (bits ^ bits >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    bits = (bits ^ bits >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    (bits ^ bits >> 33) & 1
}

/// What watching may cost the program.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Of its time, in millionths.
    slowdown_ppm: u64,
    began_ns: u64,
    spent_ns: u64,
    /// What the pages that are out will cost when they are accessed.
    reserved_ns: u64,
}

impl Budget {
    /// A budget of that part of the time from now on.
    pub fn new(slowdown_ppm: u64, now_ns: u64) -> Budget {
        Budget { slowdown_ppm, began_ns: now_ns, spent_ns: 0, reserved_ns: 0 }
    }

    /// So much was spent.
    pub fn spend(&mut self, ns: u64) {
        self.spent_ns += ns;
    }

    /// What is to be left for the pages that are out. Without this, a program that accesses all of
    /// them at once would use up what it may lose in seconds to come, and would not be watched in
    /// these: what a garbage collector does would be seen now and then, or never.
    pub fn set_reserved(&mut self, ns: u64) {
        self.reserved_ns = ns;
    }

    /// A page more is out.
    pub fn reserve(&mut self, ns: u64) {
        self.reserved_ns += ns;
    }

    /// What is left by now.
    pub fn left_ns(&self, now_ns: u64) -> u64 {
        let elapsed = u128::from(now_ns.saturating_sub(self.began_ns));
        let allowed = elapsed * u128::from(self.slowdown_ppm) / PARTS_PER_MILLION;
        (allowed as u64 + ALLOWED_NS).saturating_sub(self.spent_ns + self.reserved_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_block_of_each_group_is_sampled_and_all_of_the_level_above() {
        for level in 0..8 {
            for group in 0..500u64 {
                let blocks = group << level..(group + 1) << level;
                let sampled: Vec<u64> = blocks.filter(|&block| is_sampled(block, level)).collect();
                assert_eq!(sampled, [block_of_group(group, level)]);
                assert!(level == 0 || is_sampled(sampled[0], level - 1));
            }
        }
    }

    #[test]
    fn no_stride_falls_in_step_with_the_sample() {
        for stride in [2, 3, 8, 16, 64, 1000, 4096] {
            for first in [0, 1, 12_345] {
                let blocks = (0..100_000u64).map(|nth| first + nth * stride);
                let sampled = blocks.filter(|&block| is_sampled(block, 4)).count() as f64;
                let expected = 100_000.0 / 16.0;
                assert!((sampled / expected - 1.0).abs() < 0.1, "{stride} {first} {sampled}");
            }
        }
    }

    #[test]
    fn the_level_follows_the_pages() {
        let levels = [0, 2048, 2049, 4097, 1 << 20, u64::MAX].map(level_for);
        assert_eq!(levels, [0, 0, 1, 1, 9, LEVEL_MAX]);
    }

    #[test]
    fn a_budget_grows_with_time() {
        let mut budget = Budget::new(10_000, 5_000_000_000);
        assert_eq!(budget.left_ns(5_000_000_000), ALLOWED_NS);
        budget.spend(ALLOWED_NS + 4_000_000);
        assert_eq!(budget.left_ns(5_400_000_000), 0);
        assert_eq!(budget.left_ns(6_000_000_000), 6_000_000);
        assert_eq!(budget.left_ns(0), 0);
        budget.set_reserved(1_000_000);
        budget.reserve(2_000_000);
        assert_eq!(budget.left_ns(6_000_000_000), 3_000_000);
        budget.set_reserved(0);
        assert_eq!(budget.left_ns(6_000_000_000), 6_000_000);
    }
}
