//! The limit at which limit and pool together make the wanted total.
//!
//! A cgroup does not pay for the pool of zram (nor, in version 1, of zswap), so
//! a program limited to L costs L + pool(L), where pool grows as L shrinks. With
//! need N and compressed size c of what is swapped out,
//!
//! ```text
//! pool(L) = c * (N - L),   L + pool(L) = T   =>   L = (T - c * N) / (1 - c)
//! ```
//!
//! c is not known beforehand, so L is found by running: each run gives a better c.

use anyhow::{Result, bail};

use crate::harness::size::Bytes;
use crate::machine::say;

/// How far the cost of a run may be from the total where nothing else is asked, in percent of the
/// total.
pub(super) const TOLERANCE_PERCENT: f64 = 2.0;
/// Enough for a slope that is off by half at each step.
const STEP_LIMIT: usize = 8;
/// Below this share of the total the pool has eaten the memory it should extend.
const SMALLEST_SHARE: f64 = 0.05;
/// Limits that are closer than this share of the total are the same.
const NARROWEST_SHARE: f64 = 0.002;

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) cgroup_bytes_peak: u64,
    pub(super) pool_bytes_peak: u64,
}

impl Cost {
    pub(super) fn total_bytes(&self) -> u64 {
        self.cgroup_bytes_peak + self.pool_bytes_peak
    }
}

/// Finds the limit for a program that needs `need_bytes`, starting from
/// `compressed_size` (compressed / original), with which a run costs the total
/// to `tolerance` of it. `run` runs it under a limit and gives `None` if the
/// program was killed for want of memory.
pub(super) fn find_limit(
    total_bytes: u64,
    need_bytes: u64,
    compressed_size: f64,
    tolerance: f64,
    mut run: impl FnMut(u64) -> Result<Option<Cost>>,
) -> Result<u64> {
    let (total, need) = (total_bytes as f64, need_bytes as f64);
    // The cost grows with the limit. The wanted limit lies between these.
    let (mut low, mut high) = (total * SMALLEST_SHARE, total);
    let first = compressed_size.clamp(0.02, 0.9);
    let mut limit = ((total - first * need) / (1.0 - first)).clamp(low, high);
    let mut nearest: Option<u64> = None;
    for _ in 0..STEP_LIMIT {
        let limit_bytes = round_to_page(limit);
        let Some(cost) = run(limit_bytes)? else {
            low = low.max(limit);
            limit = (low + high) / 2.0;
            continue;
        };
        let (pool, cost_bytes) = (cost.pool_bytes_peak as f64, cost.total_bytes() as f64);
        let excess = cost_bytes - total;
        if excess.abs() <= tolerance * total {
            return Ok(limit_bytes);
        }
        // All is allowed and it costs less: it needs less than that.
        if excess < 0.0 && limit >= total {
            return Ok(limit_bytes);
        }
        if nearest.is_none_or(|nearest| excess.abs() < nearest.abs_diff(total_bytes) as f64) {
            nearest = Some(cost.total_bytes());
        }
        let swapped = (need - limit).max(pool).max(1.0);
        let slope = 1.0 - (pool / swapped).clamp(0.0, 0.9);
        let next = limit - excess / slope;
        if excess > 0.0 {
            high = high.min(limit)
        } else {
            low = low.max(limit)
        }
        if high - low < NARROWEST_SHARE * total {
            break;
        }
        limit = if (low..=high).contains(&next) { next } else { (low + high) / 2.0 };
    }
    match nearest {
        Some(nearest) => bail!(
            "no limit makes limit and pool cost {} together (the nearest run cost {}): \
             the data compresses too little for that, or is another in each run",
            Bytes(total_bytes),
            Bytes(nearest)
        ),
        None => bail!(
            "{} is not enough: the kernel killed the program under every limit tried",
            Bytes(total_bytes)
        ),
    }
}

/// Tells a person that a peer drifted from the total after its calibration.
pub(super) fn warn_of_drift(what: &str, total_bytes: u64, cost_bytes: u64, tolerance: f64) {
    let drift = cost_bytes as f64 / total_bytes as f64 - 1.0;
    if drift.abs() > 2.0 * tolerance {
        say(&format!(
            "ramfold-bench: {what} cost {} where {} was asked ({:+.1} %)",
            Bytes(cost_bytes),
            Bytes(total_bytes),
            drift * 100.0
        ));
    }
}

fn round_to_page(bytes: f64) -> u64 {
    let page = rustix::param::page_size() as u64;
    bytes as u64 / page * page
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1048576.0;
    const TOLERANCE: f64 = 0.02;

    /// A program of `need` whose pages compress to `c`, with the last pages
    /// compressing worse.
    fn model(need: f64, c: f64, curve: f64) -> impl Fn(u64) -> Result<Option<Cost>> {
        move |limit| {
            let out = (need - limit as f64).max(0.0);
            // The pool is never empty: it holds the header of the swap area.
            let pool = out * (c + curve * out / need) + 12288.0;
            Ok(Some(Cost {
                cgroup_bytes_peak: (limit as f64).min(need) as u64,
                pool_bytes_peak: pool as u64,
            }))
        }
    }

    #[test]
    fn limits_are_found_over_a_wide_range() {
        for need in [20.0 * MIB, 256.0 * MIB, 9000.0 * MIB] {
            for compressed in [0.01, 0.1, 0.35, 0.45] {
                for curve in [0.0, 0.1] {
                    for share in [0.6, 0.75, 0.9] {
                        let total = (need * share) as u64;
                        let run = model(need, compressed, curve);
                        let limit = find_limit(total, need as u64, 0.35, TOLERANCE, &run).unwrap();
                        let cost = run(limit).unwrap().unwrap().total_bytes() as f64;
                        assert!((cost / total as f64 - 1.0).abs() <= TOLERANCE, "{limit} {cost}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_equation_needs_one_run_when_its_constant_is_right() {
        let need = 256.0 * MIB;
        let mut runs = 0;
        let run = model(need, 0.37, 0.0);
        find_limit((need / 2.0) as u64, need as u64, 0.37, TOLERANCE, |limit| {
            runs += 1;
            run(limit)
        })
        .unwrap();
        assert_eq!(runs, 1);
    }

    #[test]
    fn any_cost_will_do_where_that_is_asked() {
        let (need, total) = (256.0 * MIB, 128.0 * MIB);
        let limit = find_limit(total as u64, need as u64, 0.2, 10.0, model(need, 0.45, 0.0));
        let expected = (total - 0.2 * need) / 0.8;
        assert_eq!(limit.unwrap(), round_to_page(expected));
    }

    #[test]
    fn a_program_that_fits_needs_no_search() {
        let run = model(100.0 * MIB, 0.4, 0.0);
        let total = (150.0 * MIB) as u64;
        assert_eq!(find_limit(total, (100.0 * MIB) as u64, 0.4, TOLERANCE, run).unwrap(), total);
    }

    #[test]
    fn an_impossible_total_is_an_error() {
        let run = model(256.0 * MIB, 0.8, 0.0);
        assert!(
            find_limit((100.0 * MIB) as u64, (256.0 * MIB) as u64, 0.4, TOLERANCE, run).is_err()
        );
        let fails = |_| bail!("no");
        assert!(find_limit(1 << 20, 1 << 21, 0.4, TOLERANCE, fails).is_err());
        let killed = |_| Ok(None);
        let error = find_limit(1 << 20, 1 << 21, 0.4, TOLERANCE, killed).unwrap_err();
        assert!(error.to_string().contains("killed"), "{error}");
    }

    #[test]
    fn a_kill_is_a_limit_too_small() {
        let (need, total) = (256.0 * MIB, 140.0 * MIB);
        let run = model(need, 0.3, 0.0);
        // The first guess is far too small, and small limits kill.
        let limit = find_limit(total as u64, need as u64, 0.5, TOLERANCE, |limit| {
            if (limit as f64) < 60.0 * MIB { Ok(None) } else { run(limit) }
        })
        .unwrap();
        let cost = run(limit).unwrap().unwrap().total_bytes() as f64;
        assert!((cost / total - 1.0).abs() <= TOLERANCE, "{limit} {cost}");
    }
}
