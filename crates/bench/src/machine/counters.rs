//! What the kernel counts for the machine as a whole.

use anyhow::{Context, Result};
use ramfold_sys::processors::Times;

use super::proc::{field, read_text};

/// Counters of the whole machine; differences of two readings are meaningful.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// CPU time spent in anything but idling, in seconds: other programs and
    /// kernel threads included.
    pub(crate) busy_seconds: f64,
    pub(crate) swap_in_pages: u64,
    pub(crate) swap_out_pages: u64,
}

impl Counters {
    pub(crate) fn read() -> Result<Self> {
        let vmstat = read_text("/proc/vmstat")?;
        // Pages served by zswap are not in pswpin (Linux 6.18, mm/page_io.c).
        let sum = |names: [&str; 2]| names.iter().filter_map(|name| field(&vmstat, name)).sum();
        Ok(Self {
            busy_seconds: Times::now().context("reading /proc/stat")?.busy_s,
            swap_in_pages: sum(["pswpin", "zswpin"]),
            swap_out_pages: sum(["pswpout", "zswpout"]),
        })
    }

    /// What was counted since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self {
            busy_seconds: (self.busy_seconds - earlier.busy_seconds).max(0.0),
            swap_in_pages: self.swap_in_pages.saturating_sub(earlier.swap_in_pages),
            swap_out_pages: self.swap_out_pages.saturating_sub(earlier.swap_out_pages),
        }
    }
}

/// Memory that programs can have without swapping.
pub(crate) fn available_bytes() -> Result<u64> {
    of_meminfo("MemAvailable")
}

/// Compressed bytes held by zswap now, machine-wide.
pub(crate) fn zswap_pool_bytes() -> Result<u64> {
    of_meminfo("Zswap")
}

fn of_meminfo(name: &str) -> Result<u64> {
    field(&read_text("/proc/meminfo")?, name)
        .map(|kilobytes| kilobytes * 1024)
        .with_context(|| format!("no line '{name}' in /proc/meminfo"))
}
