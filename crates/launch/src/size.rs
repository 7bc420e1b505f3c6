//! How much memory a program may have, where nobody said or it was said as a share.

use std::io;

use ramfold_sys::cgroup;
use ramfold_sys::size::Size;

/// The memory that was asked for, in bytes; or this share of the control group's limit, or of the
/// machine's RAM where that is less or there is no limit.
///
/// # Errors
/// Where /proc/meminfo cannot be read, or does not tell how much RAM there is.
pub fn memory_bytes(asked: Option<Size>, share: f64) -> io::Result<u64> {
    let machine = cgroup::machine_memory_bytes()?;
    Ok(match asked {
        Some(size) => size.bytes(machine),
        None => {
            let limit = cgroup::memory_limit_bytes().map_or(machine, |limit| limit.min(machine));
            (limit as f64 * share) as u64
        }
    })
}
