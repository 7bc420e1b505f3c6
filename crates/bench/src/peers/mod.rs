//! The memory systems that a program is put under, and the caches that keep files.
//!
//! To add a peer, add a file with a type that implements [`Peer`], and a line in [`all`]. `none` is
//! the shortest example, `zram` one that sets something on the machine for each run.
//!
//! [`Peer::budget`] says how its total memory is limited and counted: that is what makes a
//! comparison fair. [`Peer::set_up`] puts it in force for one run, as an [`Active`]. What it sets
//! goes through the journal (`host.journal`), so that nothing is left behind whatever happens.
//! Settings that a name carries (`ramfold:lz4`) are [`Peer::variant`]'s.
//!
//! Caches of files ([`cache`]) and block devices ([`block`]) have traits and lists of their own.

pub(crate) mod block;
pub(crate) mod cache;
mod none;
mod ramfold;
mod swap_file;
mod zram;
mod zswap;

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Result, bail};

pub(crate) use ramfold::{Ramfold, Statistics};

use crate::harness::measure::Outcome;
use crate::machine::Gauge;
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::program::Program;

/// A memory system.
pub(crate) trait Peer {
    fn name(&self) -> &str;

    /// One line for `--list`.
    fn about(&self) -> &'static str;

    /// Whether it changes settings of the kernel.
    fn needs_root(&self) -> bool;

    /// Whether nothing is measured without it, even where it was not asked for by name.
    fn is_indispensable(&self) -> bool {
        false
    }

    /// The same peer with the setting that follows its name and a colon; `None` if it has none.
    fn variant(&self, _setting: &str) -> Option<Result<Box<dyn Peer>>> {
        None
    }

    /// Why it cannot run here, apart from the lack of root.
    fn missing(&self, host: &Host) -> Option<String>;

    fn budget(&self, host: &Host) -> Budget;

    fn swapping(&self) -> Swapping {
        Swapping::Allowed
    }

    /// Sets it up for one run of a program that needs `need_bytes` and is
    /// limited to `limit_bytes`.
    fn set_up(&self, host: &Host, need_bytes: u64, limit_bytes: u64) -> Result<Box<dyn Active>>;
}

/// Every peer, in the order of the results; `ramfold` is the binary to measure, if one was named.
pub(crate) fn all(ramfold: Option<PathBuf>) -> Vec<Box<dyn Peer>> {
    // One file on disk for both peers that swap to it.
    let area = Rc::new(swap_file::DiskArea::default());
    vec![
        Box::new(none::NoCap),
        Box::new(swap_file::SwapFile { area: Rc::clone(&area) }),
        Box::new(zram::LZ4),
        Box::new(zram::LZO_RLE),
        Box::new(zswap::Zswap { area }),
        Box::new(Ramfold::new(ramfold)),
    ]
}

pub(crate) const NONE: &str = "none";
/// The peers of which the better one is what ratios to zram are of.
pub(crate) const ZRAM: [&str; 2] = [zram::LZ4.name, zram::LZO_RLE.name];

/// A memory system in force, for one run.
pub(crate) trait Active {
    /// Puts the program under it.
    fn wrap(&self, program: &Program) -> Program {
        program.clone()
    }

    /// What has to be sampled, because there is no counter of its peak.
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
pub(crate) struct Account {
    /// The most bytes its pool of compressed pages took.
    pub(crate) pool_bytes_peak: u64,
    /// Pages it brought in and took out, where it counts them itself.
    pub(crate) swap_in_pages: Option<u64>,
    pub(crate) swap_out_pages: Option<u64>,
    /// What the pool is compressed with.
    pub(crate) codec: Option<String>,
    pub(crate) statistics: Option<Statistics>,
}

/// How the total memory of a run is divided and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Budget {
    /// No limit.
    Unlimited,
    /// The cgroup's limit is the total.
    Limit,
    /// The cgroup is not charged for the pool: limit + pool is the total, and the
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
    /// The cgroup's limit of a peer with this limit. There is none where the kernel is not to end
    /// a program over the cap.
    pub(crate) fn cgroup_limit(self, limit_bytes: u64, ends_over_cap: bool) -> Option<u64> {
        match self {
            Self::Unlimited => None,
            Self::Limit | Self::LimitAndPool => Some(limit_bytes),
            Self::Cap if !ends_over_cap => None,
            Self::Cap => Some(limit_bytes + limit_bytes / 100 * CAP_MARGIN_PERCENT),
        }
    }
}

/// The peers to run, and those of the default set that cannot run here with the
/// reason. A peer that was asked for by name and cannot run is an error.
pub(crate) struct Selection {
    pub(crate) peers: Vec<Box<dyn Peer>>,
    pub(crate) skipped: Vec<(String, String)>,
}

pub(crate) fn select(host: &Host, ramfold: Option<PathBuf>, names: &[String]) -> Result<Selection> {
    let mut all = all(ramfold);
    for name in names {
        if all.iter().any(|peer| peer.name() == name) {
            continue;
        }
        let variant = name.split_once(':').and_then(|(peer, setting)| {
            all.iter().find(|known| known.name() == peer)?.variant(setting)
        });
        match variant {
            Some(peer) => all.push(peer?),
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
            Some(reason) if named || peer.is_indispensable() => {
                bail!("the peer {} cannot run: {reason}", peer.name())
            }
            Some(reason) => selection.skipped.push((peer.name().to_owned(), reason)),
        }
    }
    Ok(selection)
}

/// Why a peer cannot run here.
pub(crate) fn obstacle(host: &Host, peer: &dyn Peer) -> Option<String> {
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
