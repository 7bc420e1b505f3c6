//! The memory systems a program is put under.

mod none;
mod ramfold;
mod swap_file;
mod zram;
mod zswap;

use std::rc::Rc;

use anyhow::{Result, bail};

pub use ramfold::{Ramfold, Statistics};

use crate::cgroup::Swapping;
use crate::host::Host;
use crate::measure::{Gauge, Outcome, Program};

/// How the total memory of a run is divided and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// No limit.
    Unlimited,
    /// The cgroup's limit is the total.
    Limit,
    /// The pool lies outside of the cgroup: limit + pool is the total, and the
    /// limit has to be found.
    LimitAndPool,
    /// The program's memory system keeps the total itself. The cgroup's limit is
    /// somewhat above, so that the kernel ends a run that does not keep it.
    Cap,
}

/// What the cgroup of a peer with [`Budget::Cap`] may hold above the cap, in
/// percent of the cap: file pages, page tables and an excess that is reported.
const CAP_MARGIN_PERCENT: u64 = 10;

impl Budget {
    /// The cgroup's limit when the peer is told `limit_bytes`. Where a program is not to be ended
    /// over the cap it has none.
    pub fn cgroup_limit(self, limit_bytes: u64, ends_over_cap: bool) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Limit | Self::LimitAndPool => Some(limit_bytes),
            Self::Cap if !ends_over_cap => None,
            Self::Cap => Some(limit_bytes + limit_bytes / 100 * CAP_MARGIN_PERCENT),
        }
    }
}

/// A memory system.
pub trait Peer {
    fn name(&self) -> &str;

    /// One line for `--list`.
    fn about(&self) -> &'static str;

    /// Whether it changes settings of the kernel.
    fn needs_root(&self) -> bool;

    /// Why it cannot run here, beside the lack of root.
    fn missing(&self, host: &Host) -> Option<String>;

    fn budget(&self, host: &Host) -> Budget;

    fn swapping(&self) -> Swapping {
        Swapping::Allowed
    }

    /// Sets it up for one run of a program that needs `need_bytes` and is
    /// limited to `limit_bytes`.
    fn set_up(&self, host: &Host, need_bytes: u64, limit_bytes: u64) -> Result<Box<dyn Active>>;
}

/// A memory system in force, for one run.
pub trait Active {
    /// Puts the program under it.
    fn wrap(&self, program: &Program) -> Program {
        program.clone()
    }

    /// What has to be sampled for want of a peak counter.
    fn gauge(&self) -> Option<Gauge> {
        None
    }

    /// What its pool outside of the cgroup holds now, even if it has a peak counter.
    fn pool_gauge(&self) -> Option<Gauge> {
        self.gauge()
    }

    /// What it can tell after a run, and whether its own part failed.
    fn account(&self, outcome: &Outcome) -> Result<Account>;

    /// Takes back what was set. (Dropping does the same but cannot fail loudly.)
    fn finish(self: Box<Self>) -> Result<()>;
}

/// What a peer knows about a run.
#[derive(Debug, Default)]
pub struct Account {
    /// The most bytes its pool of compressed pages took.
    pub pool_bytes_peak: u64,
    /// Pages it brought in and took out, where it counts them itself.
    pub swap_in_pages: Option<u64>,
    pub swap_out_pages: Option<u64>,
    /// What the pool is compressed with.
    pub codec: Option<String>,
    pub statistics: Option<Statistics>,
}

/// Every peer, in the order of the table.
pub fn all(ramfold: Ramfold) -> Vec<Box<dyn Peer>> {
    // One file on disk for both peers that swap to it.
    let area = Rc::new(swap_file::DiskArea::default());
    vec![
        Box::new(none::NoCap),
        Box::new(swap_file::SwapFile { area: Rc::clone(&area) }),
        Box::new(zram::Zram { name: ZRAM_LZ4, codec: "lz4" }),
        Box::new(zram::Zram { name: ZRAM_LZO_RLE, codec: "lzo-rle" }),
        Box::new(zswap::Zswap { area }),
        Box::new(ramfold),
    ]
}

pub const NONE: &str = "none";
pub const RAMFOLD: &str = "ramfold";
pub const ZRAM_LZ4: &str = "zram-lz4";
pub const ZRAM_LZO_RLE: &str = "zram-lzo-rle";

/// The peers to run, and those of the default set that cannot run here with the
/// reason. A peer that was asked for by name and cannot run is an error.
pub struct Selection {
    pub peers: Vec<Box<dyn Peer>>,
    pub skipped: Vec<(String, String)>,
}

pub fn select(host: &Host, ramfold: Ramfold, names: &[String]) -> Result<Selection> {
    let mut all = all(ramfold.clone());
    for name in names {
        if all.iter().any(|peer| peer.name() == name) {
            continue;
        }
        match ramfold.with_option(name) {
            Some(ramfold) => all.push(Box::new(ramfold?)),
            None => bail!("there is no peer '{name}' (ramfold-bench run --list names them)"),
        }
    }
    let mut selection = Selection { peers: Vec::new(), skipped: Vec::new() };
    for peer in all {
        let named = names.iter().any(|name| name == peer.name());
        if !names.is_empty() && !named {
            continue;
        }
        match obstacle(host, peer.as_ref()) {
            None => selection.peers.push(peer),
            // ramfold is what the bench is about: its absence is no detail.
            Some(reason) if named || peer.name() == RAMFOLD => {
                bail!("the peer {} cannot run: {reason}", peer.name())
            }
            Some(reason) => selection.skipped.push((peer.name().to_owned(), reason)),
        }
    }
    Ok(selection)
}

/// Why a peer cannot run here.
pub fn obstacle(host: &Host, peer: &dyn Peer) -> Option<String> {
    if peer.needs_root() && !host.root {
        return Some(
            "it sets up swap and limits the kernel's memory for the program, which only root \
             may do; run the same command with sudo, or choose --peer none,ramfold"
                .to_owned(),
        );
    }
    if peer.needs_root()
        && let Err(reason) = &host.hierarchy
    {
        return Some(format!("it needs a memory cgroup: {reason}"));
    }
    peer.missing(host)
}
