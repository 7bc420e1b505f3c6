//! Swap to a zram device.

use std::path::Path;

use anyhow::Result;

use super::swap_file::area_bytes;
use super::{Account, Active, Budget, Peer};
use crate::harness::measure::Outcome;
use crate::machine::Gauge;
use crate::machine::host::Host;
use crate::machine::journal::Undertaking;
use crate::machine::knobs;
use crate::machine::zram::ZramSwap;

pub(super) struct Zram {
    pub(super) name: &'static str,
    about: &'static str,
    codec: &'static str,
}

pub(super) const LZ4: Zram =
    Zram { name: "zram-lz4", about: "swap to a zram device of our own, codec lz4", codec: "lz4" };

pub(super) const LZO_RLE: Zram = Zram {
    name: "zram-lzo-rle",
    about: "swap to a zram device of our own, codec lzo-rle",
    codec: "lzo-rle",
};

impl Peer for Zram {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
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
        let zswap = knobs::without_zswap(&host.journal)?;
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
