//! Swap to a zram device.

use std::path::Path;

use anyhow::Result;

use super::swap_file::area_bytes;
use super::{Account, Active, Budget, Peer};
use crate::host::Host;
use crate::journal::Undertaking;
use crate::measure::{Gauge, Outcome};
use crate::swap::{self, ZramSwap};

pub struct Zram {
    pub name: &'static str,
    pub codec: &'static str,
}

impl Peer for Zram {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &'static str {
        match self.codec {
            "lz4" => "swap to a zram device of our own, codec lz4",
            _ => "swap to a zram device of our own, codec lzo-rle",
        }
    }

    fn needs_root(&self) -> bool {
        true
    }

    fn missing(&self, _host: &Host) -> Option<String> {
        (!Path::new("/sys/class/zram-control").exists())
            .then(|| "this kernel has no zram (try: modprobe zram)".to_owned())
    }

    fn budget(&self, _host: &Host) -> Budget {
        Budget::LimitAndPool
    }

    fn set_up(&self, host: &Host, need_bytes: u64, _limit: u64) -> Result<Box<dyn Active>> {
        let zswap = swap::without_zswap(&host.journal)?;
        let device = ZramSwap::create(&host.journal, self.codec, area_bytes(need_bytes))?;
        Ok(Box::new(ActiveZram { device, zswap }))
    }
}

struct ActiveZram {
    // Dropped in this order.
    device: ZramSwap,
    zswap: Option<Undertaking>,
}

impl Active for ActiveZram {
    fn pool_gauge(&self) -> Option<Gauge> {
        Some(self.device.pool_gauge())
    }

    fn account(&self, _outcome: &Outcome) -> Result<Account> {
        let pool_bytes_peak = self.device.pool_bytes_peak()?;
        let codec = Some(self.device.codec()?);
        Ok(Account { pool_bytes_peak, codec, ..Account::default() })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.device.finish()?;
        self.zswap.map_or(Ok(()), Undertaking::finish)
    }
}
