//! Multiplication of square matrices, one of the four programs of paper 004, Table III.

use anyhow::Result;
use xxhash_rust::xxh3::Xxh3;

use super::{ChildOptions, ChildReport, Prepared, Settings, Timing, Workload};
use crate::content::random::{Random, mix};
use crate::machine::host::Host;

/// The three matrices take as much as --size / this.
const SIZE_SHARE: u64 = 8;
/// Multiplications for a scale of 1: some seconds with 256 MiB.
const ROUNDS: f64 = 8.0;

/// Numbers are small and whole, so that sums are exact and the result is the same everywhere.
const NUMBERS: usize = 101;

/// Multiplication of matrices.
pub(super) struct Matrix;

impl Workload for Matrix {
    fn name(&self) -> &'static str {
        "matrix"
    }

    fn about(&self) -> &'static str {
        "multiplies matrices of whole numbers that take an eighth of --size"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let rounds = ROUNDS * settings.scale;
        Ok(Prepared::synthetic(host, settings, self.name(), rounds, Timing::Whole))
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        let order = order(options.size_bytes / SIZE_SHARE);
        options.run_whole(ROUNDS as u64, |rounds| work(order, rounds, options.seed))
    }
}

/// Rows and columns of three matrices that take `bytes` together.
fn order(bytes: u64) -> usize {
    ((bytes / (3 * size_of::<f64>() as u64)).isqrt() as usize).max(1)
}

/// Multiplies two matrices, `rounds` times: after each the product, modulo a prime, takes the place
/// of the first matrix. Returns a hash of the last product.
fn work(order: usize, rounds: u64, seed: u64) -> String {
    let mut random = Random::new(mix(seed));
    let mut matrix =
        || -> Vec<f64> { (0..order * order).map(|_| random.below(NUMBERS) as f64).collect() };
    let (mut left, right) = (matrix(), matrix());
    let mut product = vec![0.0; order * order];
    for round in 0..rounds {
        if round > 0 {
            for (to, from) in left.iter_mut().zip(&product) {
                *to = from % NUMBERS as f64;
            }
        }
        multiply(&left, &right, &mut product, order);
    }
    let mut hasher = Xxh3::new();
    for number in product {
        hasher.update(&number.to_le_bytes());
    }
    format!("{:032x}", hasher.digest128())
}

/// A row of the product at a time, from all rows of the second matrix.
fn multiply(left: &[f64], right: &[f64], product: &mut [f64], order: usize) {
    for (row, sums) in left.chunks_exact(order).zip(product.chunks_exact_mut(order)) {
        sums.fill(0.0);
        for (factor, others) in row.iter().zip(right.chunks_exact(order)) {
            for (sum, other) in sums.iter_mut().zip(others) {
                *sum += factor * other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_right() {
        let mut product = [0.0; 4];
        multiply(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], &mut product, 2);
        assert_eq!(product, [19.0, 22.0, 43.0, 50.0]);
    }

    #[test]
    fn work_repeats_and_depends_on_its_seed() {
        assert_eq!(order(3 * 8 * 20 * 20), 20);
        assert_eq!(work(20, 2, 1), work(20, 2, 1));
        assert_ne!(work(20, 2, 1), work(20, 2, 2));
        assert_ne!(work(20, 1, 1), work(20, 2, 1));
        work(order(0), 1, 1);
    }
}
