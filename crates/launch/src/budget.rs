//! How the memory of a run is divided.

use std::sync::atomic::Ordering;

use ramfold_session::Session;

use crate::Size;

/// The program keeps at least a tenth of the memory.
const POOL_SHARE_MAX: (u64, u64) = (9, 10);
/// A reserve takes at most the memory / this.
const RESERVE_SHARE_MAX: u64 = 4;
/// Of the memory, what compressed pages may take before the oldest of them go to the spill file. A
/// page that comes back from the pool takes a tenth of the time that one from a disk takes: half of
/// the memory for the pool and no more made scans of twice the memory 2 to 3 times slower.
const SPILL_POOL_SHARE: f64 = 0.7;

/// What was asked for. It is kept because a change of the cap changes the parts too.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Budget {
    /// What is kept for compressed pages.
    pub(crate) pool: Option<Size>,
    /// What each pool keeps ready.
    pub(crate) reserve: Option<Size>,
}

/// Why a part of the memory cannot be as large as was asked.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetError {
    /// [`Launch::pool`](crate::Launch::pool) is too much.
    #[error(
        "a pool of {} MiB leaves the program less than a tenth of its {} MiB of memory",
        pool_bytes >> 20,
        memory_bytes >> 20
    )]
    Pool {
        /// What was asked for.
        pool_bytes: u64,
        /// All memory.
        memory_bytes: u64,
    },
    /// [`Launch::reserve`](crate::Launch::reserve) is too much.
    #[error(
        "a reserve of {} MiB is more than a quarter of the {} MiB of memory",
        reserve_bytes >> 20,
        memory_bytes >> 20
    )]
    Reserve {
        /// What was asked for.
        reserve_bytes: u64,
        /// All memory.
        memory_bytes: u64,
    },
}

/// The parts, in bytes.
pub(crate) struct Parts {
    memory: u64,
    pool_kept: u64,
    reserve: u64,
    /// What the pools may take where there is a spill file.
    pool_before_spilling: u64,
}

impl Budget {
    /// The parts of so much memory.
    ///
    /// # Errors
    /// [`BudgetError`].
    pub(crate) fn parts(&self, memory_bytes: u64) -> Result<Parts, BudgetError> {
        let pool = self.pool.map(|pool| pool.bytes(memory_bytes));
        if let Some(pool_bytes) = pool
            && pool_bytes > memory_bytes / POOL_SHARE_MAX.1 * POOL_SHARE_MAX.0
        {
            return Err(BudgetError::Pool { pool_bytes, memory_bytes });
        }
        let reserve = self.reserve.map(|reserve| reserve.bytes(memory_bytes));
        if let Some(reserve_bytes) = reserve
            && reserve_bytes > memory_bytes / RESERVE_SHARE_MAX
        {
            return Err(BudgetError::Reserve { reserve_bytes, memory_bytes });
        }
        Ok(Parts {
            memory: memory_bytes,
            pool_kept: pool.unwrap_or(0),
            reserve: reserve.unwrap_or_else(|| Session::usual_reserve_bytes(memory_bytes)),
            pool_before_spilling: pool.unwrap_or((memory_bytes as f64 * SPILL_POOL_SHARE) as u64),
        })
    }
}

impl Parts {
    /// Tells the session.
    pub(crate) fn store(&self, session: &Session) {
        session.memory_cap_bytes.store(self.memory, Ordering::Relaxed);
        session.target_bytes.store(self.memory, Ordering::Relaxed);
        session.pool_kept_bytes.store(self.pool_kept, Ordering::Relaxed);
        session.reserve_bytes.store(self.reserve, Ordering::Relaxed);
        session.spill.pool_bytes.store(self.pool_before_spilling, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_leave_too_little_are_refused() {
        let parts = |pool, reserve| Budget { pool, reserve }.parts(1000).map(|parts| parts.reserve);
        assert_eq!(parts(Some(Size::Bytes(900)), Some(Size::Fraction(0.25))), Ok(250));
        assert_eq!(
            parts(Some(Size::Bytes(901)), None),
            Err(BudgetError::Pool { pool_bytes: 901, memory_bytes: 1000 })
        );
        assert_eq!(
            parts(None, Some(Size::Bytes(251))),
            Err(BudgetError::Reserve { reserve_bytes: 251, memory_bytes: 1000 })
        );
    }

    #[test]
    fn shares_are_of_the_memory_and_the_rest_is_as_usual() {
        let parts =
            Budget { pool: Some(Size::Fraction(0.5)), reserve: None }.parts(1 << 30).unwrap();
        assert_eq!((parts.pool_kept, parts.pool_before_spilling), (1 << 29, 1 << 29));
        assert_eq!(parts.reserve, 4 << 20);
        let parts = Budget::default().parts(1 << 30).unwrap();
        assert_eq!(parts.pool_kept, 0);
        assert!((512 << 20..1 << 30).contains(&parts.pool_before_spilling));
    }
}
