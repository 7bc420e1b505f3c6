//! Plain swap to a file on the local disk.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::{Account, Active, Budget, Peer};
use crate::harness::measure::Outcome;
use crate::machine::host::Host;
use crate::machine::journal::Undertaking;
use crate::machine::{knobs, swap};

pub(super) struct SwapFile {
    pub(super) area: Rc<DiskArea>,
}

impl Peer for SwapFile {
    fn name(&self) -> &str {
        "swap"
    }

    fn about(&self) -> &'static str {
        "swap to a file on the local disk, uncompressed"
    }

    fn needs_root(&self) -> bool {
        true
    }

    fn missing(&self, _host: &Host) -> Option<String> {
        None
    }

    fn budget(&self, _host: &Host) -> Budget {
        Budget::Limit
    }

    fn set_up(&self, host: &Host, need_bytes: u64, _limit: u64) -> Result<Box<dyn Active>> {
        let zswap = knobs::without_zswap(&host.journal)?;
        let swap = self.area.activate(host, need_bytes)?;
        Ok(Box::new(ActiveSwap { swap, zswap }))
    }
}

struct ActiveSwap {
    // Dropped in this order.
    swap: Undertaking,
    zswap: Option<Undertaking>,
}

impl Active for ActiveSwap {
    fn account(&self, _outcome: &Outcome) -> Result<Account> {
        Ok(Account::default())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.swap.finish()?;
        self.zswap.map_or(Ok(()), Undertaking::finish)
    }
}

/// A swap file that is written once and used for many runs. It lies in the
/// scratch folder and goes with it.
#[derive(Default)]
pub(super) struct DiskArea {
    written: RefCell<Option<(u64, u128)>>,
}

impl DiskArea {
    /// Swaps to the file. It is written if it is missing or too small.
    pub(super) fn activate(&self, host: &Host, need_bytes: u64) -> Result<Undertaking> {
        let path = host.scratch.join("swapfile");
        let wanted_bytes = area_bytes(need_bytes);
        let mut written = self.written.borrow_mut();
        let uuid = match *written {
            Some((bytes, uuid)) if bytes >= wanted_bytes && path.exists() => uuid,
            _ => {
                if path.exists() {
                    fs::remove_file(&path)
                        .with_context(|| format!("cannot remove {}", path.display()))?;
                }
                let uuid = swap::fresh_uuid();
                swap::create_file(&path, wanted_bytes, uuid)?;
                *written = Some((wanted_bytes, uuid));
                uuid
            }
        };
        swap::swapon(&host.journal, &path, uuid)
    }
}

/// Swap space for a program: all it needs, and room for the slots that the
/// kernel keeps for pages that are in memory again.
pub(super) fn area_bytes(need_bytes: u64) -> u64 {
    (need_bytes + need_bytes / 2 + (32 << 20)).next_multiple_of(1 << 20)
}
