//! zswap in front of the swap file on the local disk.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use ramfold_sys::cgroup::machine_memory_bytes;

use super::swap_file::DiskArea;
use super::{Account, Active, Budget, Peer};
use crate::harness::measure::Outcome;
use crate::machine::Gauge;
use crate::machine::counters::zswap_pool_bytes;
use crate::machine::host::Host;
use crate::machine::journal::Undertaking;
use crate::machine::knobs;
use crate::machine::proc::read_text;

/// Codecs from the one wanted to the one every kernel has.
const CODECS: [&str; 2] = ["lz4", "lzo"];
/// Bounds of zswap's own limit, in percent of the machine's memory.
const POOL_PERCENT: std::ops::RangeInclusive<u64> = 20..=80;

pub(super) struct Zswap {
    pub(super) area: Rc<DiskArea>,
}

impl Peer for Zswap {
    fn name(&self) -> &str {
        "zswap"
    }

    fn about(&self) -> &'static str {
        "zswap (codec lz4, or lzo where there is none) in front of the swap file"
    }

    fn needs_root(&self) -> bool {
        true
    }

    fn missing(&self, _host: &Host) -> Option<String> {
        if !Path::new(knobs::ZSWAP_PARAMETERS).exists() {
            return Some("this kernel has no zswap".to_owned());
        }
        // Linux 5.19 and later tell the size of the pool without debugfs.
        zswap_pool_bytes().err().map(|error| format!("{error:#}"))
    }

    fn budget(&self, host: &Host) -> Budget {
        match &host.hierarchy {
            Ok(hierarchy) if hierarchy.charges_zswap() => Budget::Limit,
            _ => Budget::LimitAndPool,
        }
    }

    fn set_up(&self, host: &Host, need_bytes: u64, _limit: u64) -> Result<Box<dyn Active>> {
        let mut knobs = Vec::new();
        let mut set = |name: &str, value: &str| -> Result<()> {
            knobs.extend(knobs::set_knob(&host.journal, &knobs::zswap_parameter(name), value)?);
            Ok(())
        };
        // Before zswap is enabled for the first time it takes any name and falls
        // back later, so it is enabled first.
        set("enabled", "Y")?;
        // Its limit is for the machine; what is measured is the cgroup's. The
        // pool must never be the reason why pages go to disk.
        let memory = machine_memory_bytes().context("finding out how much RAM there is")?;
        let percent = (need_bytes * 100).checked_div(memory).unwrap_or(0);
        let percent = percent.clamp(*POOL_PERCENT.start(), *POOL_PERCENT.end());
        set("max_pool_percent", &percent.to_string())?;
        if !CODECS.iter().any(|codec| set("compressor", codec).is_ok()) {
            bail!("zswap takes none of the codecs {CODECS:?}");
        }
        // Parameters that some kernels do not have.
        if knobs::zswap_parameter("shrinker_enabled").exists() {
            set("shrinker_enabled", "N")?;
        }
        if knobs::zswap_parameter("zpool").exists() {
            set("zpool", "zsmalloc")?;
        }
        // Reading ahead is for disks: here it decompresses, and evicts for it,
        // pages that nobody asked for. zram never reads ahead.
        knobs.extend(knobs::set_knob(&host.journal, Path::new(knobs::PAGE_CLUSTER), "0")?);
        let swap = self.area.activate(host, need_bytes)?;
        let others_bytes = zswap_pool_bytes()?;
        Ok(Box::new(ActiveZswap { swap, knobs, others_bytes }))
    }
}

struct ActiveZswap {
    // Dropped in this order.
    swap: Undertaking,
    knobs: Vec<Undertaking>,
    /// In the pool before the run, where the machine itself uses zswap.
    others_bytes: u64,
}

impl Active for ActiveZswap {
    fn gauge(&self) -> Option<Gauge> {
        Some(Box::new(zswap_pool_bytes))
    }

    fn account(&self, outcome: &Outcome) -> Result<Account> {
        let pool_bytes_peak = outcome.pool_bytes_sampled.saturating_sub(self.others_bytes);
        let codec = Some(read_text(knobs::zswap_parameter("compressor"))?);
        Ok(Account { pool_bytes_peak, codec, ..Account::default() })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.swap.finish()?;
        self.knobs.into_iter().rev().try_for_each(Undertaking::finish)
    }
}
