//! Counts different pages in 64 KiB, whatever their number, with a standard error of 0.4 %.
//!
//! HyperLogLog (Flajolet and others, 2007) with Ertl's estimate (2017), which needs no table and no
//! other way of counting for few pages.

use crate::{PageNumber, hash};

/// Registers, as a power of two.
const REGISTER_BITS: u32 = 16;
/// Bits of the hash that are not the register's number, and one: the greatest rank.
const RANK_MAX: u8 = (u64::BITS - REGISTER_BITS + 1) as u8;

/// Pages so far.
#[derive(Debug)]
pub struct Distinct {
    registers: Vec<u8>,
    /// Registers by their rank.
    ranks: [u32; RANK_MAX as usize + 1],
}

impl Default for Distinct {
    fn default() -> Self {
        let mut ranks = [0; RANK_MAX as usize + 1];
        ranks[0] = 1 << REGISTER_BITS;
        Distinct { registers: vec![0; 1 << REGISTER_BITS], ranks }
    }
}

impl Distinct {
    /// A page. Returns whether that changes how many there are.
    pub fn note(&mut self, page: PageNumber) -> bool {
        // Not the hash by which pages are sampled: what is sampled would have the same ranks.
        let hash = hash(!hash(page));
        let register = &mut self.registers[(hash >> (u64::BITS - REGISTER_BITS)) as usize];
        let rank = ((hash << REGISTER_BITS).leading_zeros() as u8 + 1).min(RANK_MAX);
        let is_new = rank > *register;
        if is_new {
            self.ranks[usize::from(*register)] -= 1;
            self.ranks[usize::from(rank)] += 1;
            *register = rank;
        }
        is_new
    }

    /// About how many pages.
    pub fn pages(&self) -> f64 {
        let registers = f64::from(1u32 << REGISTER_BITS);
        let part = |rank: u8| f64::from(self.ranks[usize::from(rank)]) / registers;
        let full = registers * tau(1.0 - part(RANK_MAX));
        let above = (1..RANK_MAX).rev().map(part);
        let sum = above.fold(full, |sum, part| 0.5 * (sum + part * registers));
        let sum = sum + registers * sigma(part(0));
        registers * registers / (2.0 * std::f64::consts::LN_2 * sum)
    }
}

/// Of the part of the registers that nothing came to.
fn sigma(part: f64) -> f64 {
    if part >= 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut sum) = (part, 1.0, part);
    loop {
        x *= x;
        let before = sum;
        sum += x * y;
        y += y;
        if sum == before {
            return sum;
        }
    }
}

/// Of the part of the registers that have not the greatest rank.
fn tau(part: f64) -> f64 {
    if part <= 0.0 || part >= 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut sum) = (part, 1.0, 1.0 - part);
    loop {
        x = x.sqrt();
        let before = sum;
        y *= 0.5;
        sum -= (1.0 - x).powi(2) * y;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_counted_to_within_a_part() {
        let mut distinct = Distinct::default();
        assert_eq!(distinct.pages(), 0.0);
        let mut next = 1u64;
        for page in 0..3_000_000u64 {
            distinct.note(page * 4096 + 7);
            distinct.note(page / 2 * 4096 + 7);
            if page + 1 == next {
                next *= 3;
                let error = distinct.pages() / (page + 1) as f64 - 1.0;
                assert!(error.abs() < 0.012, "{page} {error}");
            }
        }
    }
}
