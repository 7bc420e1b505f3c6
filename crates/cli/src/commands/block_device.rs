//! Devices of the kernel that `ramfold block` serves, and swap on them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ramfold_block::BlockDevice;
use ramfold_block::kernel::{
    AfterKill, Backing, Fate, KernelError, Leftover, NbdConfig, NbdDevice, Protection, Swap,
    UblkConfig, UblkDevice, clean_up, protect_server,
};
use ramfold_block::nbd::Server;

use ramfold_sys::thread::RealTime;

use crate::say::say;

/// Each has some of the memory that the kernel keeps back.
const SWAP_CONNECTIONS_MAX: usize = 2;

/// How the kernel reaches the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// ublk where the kernel has it, else nbd
    Auto,
    /// /dev/ublkbN (Linux 6.4)
    Ublk,
    /// /dev/nbdN
    Nbd,
}

/// The device that is asked for.
pub(crate) struct Wish {
    pub(crate) kind: Kind,
    pub(crate) is_read_only: bool,
    pub(crate) swap_priority: Option<u16>,
    pub(crate) backing: Option<Backing>,
}

/// The device that is made, or taken over. It is decided before any client can change the data.
pub(crate) struct Plan {
    wish: Wish,
    /// The number of the one that is taken over.
    taken_over: Option<u32>,
}

impl Plan {
    /// Makes a device, or takes over the one of those that wait which has the same backing.
    ///
    /// # Errors
    /// A device waits that has this backing and is another.
    pub(crate) fn new(wish: Wish, waiting: &[Leftover]) -> anyhow::Result<Plan> {
        let taken_over = to_take_over(&wish, waiting)?;
        Ok(Plan { wish, taken_over })
    }
}

/// A device that is there.
pub(crate) struct KernelDevice {
    // Dropped in this order.
    swap: Option<Swap>,
    device: Served,
}

enum Served {
    Ublk(Box<UblkDevice>),
    Nbd(NbdDevice),
}

/// Makes this process one that can serve swap, before any of its threads is started, and takes away
/// what servers left that were killed. Devices that wait for another server stay.
pub(crate) fn prepare(is_swap: bool) {
    for leftover in clean_up() {
        let path = leftover.path.display();
        match &leftover.fate {
            Fate::Waiting => {}
            Fate::Failed(error) => say(format_args!("{path} was left by a killed server: {error}")),
            Fate::Removed => {
                let why = leftover.backing.as_ref().map_or(String::new(), why_removed);
                say(format_args!("{path} was left by a killed server: removed{why}"));
            }
        }
    }
    if is_swap {
        protect();
    }
}

/// Why nothing can go on with a device that had this backing.
fn why_removed(backing: &Backing) -> String {
    let path = backing.path.display();
    if backing.outlives_its_server() {
        format!(", as its backing is gone: {path} is missing or another file")
    } else if backing.read_only {
        String::new()
    } else {
        format!(
            ", as writes that had not reached {path} are lost; with --write-through the next \
             server takes the device over"
        )
    }
}

fn protect() {
    let Protection { memory, io_flusher, out_of_memory } = protect_server();
    let parts = [
        (memory, "its memory is not locked"),
        (io_flusher, "its requests may wait for writes"),
        (out_of_memory, "it may be ended for want of memory"),
    ];
    for (refused, so) in parts {
        if let Some(error) = refused {
            say(format_args!("swap may hang or fail where memory is short: {so}: {error}"));
        }
    }
}

impl KernelDevice {
    /// Makes the device, and swaps to it with that priority; or takes over the planned one.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn start(
        plan: Plan,
        device: &Arc<dyn BlockDevice>,
        server: &Server,
    ) -> anyhow::Result<KernelDevice> {
        let Plan { wish, taken_over } = plan;
        if let Some(number) = taken_over {
            let device = UblkDevice::recover(number, Arc::clone(device))?;
            say(format_args!("took over {} of a server that was killed", device.path().display()));
            return Ok(KernelDevice { swap: None, device: Served::Ublk(Box::new(device)) });
        }
        let Wish { kind, is_read_only, swap_priority, backing } = wish;
        // Nothing of it outlives a server of swap.
        let backing = backing.filter(|_| swap_priority.is_none());
        let after_kill = match (swap_priority, &backing) {
            (Some(_), _) => AfterKill::Fail,
            (None, Some(backing)) if backing.outlives_its_server() => AfterKill::Wait,
            (None, _) => AfterKill::Remove,
        };
        let ublk = || {
            let mut config = UblkConfig {
                read_only: is_read_only,
                after_kill,
                backing: backing.clone(),
                ..UblkConfig::default()
            };
            if swap_priority.is_some() {
                // Its buffers are locked. Swap writes single pages, and reads eight at most.
                (config.queue_depth, config.request_bytes_max) = (32, 64 << 10);
            }
            UblkDevice::start(Arc::clone(device), &config)
                .map(|device| Served::Ublk(Box::new(device)))
        };
        let nbd = || match swap_priority {
            Some(_) => nbd_for_swap(device.size_bytes(), server),
            None => nbd(device.size_bytes(), server, is_read_only),
        };
        let served = match kind {
            Kind::Ublk => ublk()?,
            Kind::Nbd => nbd()?,
            Kind::Auto => match ublk() {
                Ok(served) => served,
                Err(no_ublk) => nbd().with_context(|| format!("neither: {no_ublk}; nor"))?,
            },
        };
        let mut made = KernelDevice { swap: None, device: served };
        if let Some(priority) = swap_priority {
            made.swap = Some(Swap::on(&made.path(), priority)?);
        }
        Ok(made)
    }

    /// `/dev/ublkbN` or `/dev/nbdN`.
    pub(crate) fn path(&self) -> PathBuf {
        match &self.device {
            Served::Ublk(device) => device.path(),
            Served::Nbd(device) => device.path(),
        }
    }

    /// Turns swap off, where it is on. Until this has succeeded the device must be served.
    ///
    /// # Errors
    /// Memory does not hold what was swapped out.
    pub(crate) fn swap_off(&mut self) -> Result<(), KernelError> {
        let Some(swap) = &mut self.swap else { return Ok(()) };
        swap.off()?;
        self.swap = None;
        Ok(())
    }

    /// Takes the device away.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn end(self) -> anyhow::Result<()> {
        if self.swap.is_some() {
            bail!("{} is still swap", self.path().display());
        }
        match self.device {
            Served::Ublk(device) => device.stop()?,
            Served::Nbd(device) => device.detach()?,
        }
        Ok(())
    }
}

/// The number of the device, of those that wait, that a server like this can go on with. Says what
/// the others wait for.
///
/// # Errors
/// A device waits that has the same backing, but a server like this cannot go on with it: two
/// devices would change the file, each without the other.
fn to_take_over(wish: &Wish, waiting: &[Leftover]) -> anyhow::Result<Option<u32>> {
    let mut found = None;
    for leftover in waiting {
        match (&leftover.backing, &wish.backing) {
            (Some(noted), Some(wished)) if noted.is_same_file(wished) => {
                let is_fit = wish.swap_priority.is_none() && wish.kind != Kind::Nbd;
                let is_like = wished.outlives_its_server() && noted.bytes == wished.bytes;
                if !is_fit || !is_like {
                    bail!(in_the_way(leftover, noted));
                }
                found = found.or(leftover.number());
            }
            _ => say(format_args!("{}", waits(leftover))),
        }
    }
    Ok(found)
}

/// Says what devices wait for, which a server without a device of the kernel's leaves alone.
///
/// # Errors
/// A device waits that has the same backing: both would change the file.
pub(crate) fn leave_alone(
    waiting: &[Leftover],
    backing: Option<&Backing>,
    is_read_only: bool,
) -> anyhow::Result<()> {
    for leftover in waiting {
        match &leftover.backing {
            Some(noted) if !is_read_only && backing.is_some_and(|own| noted.is_same_file(own)) => {
                bail!(in_the_way(leftover, noted))
            }
            _ => say(format_args!("{}", waits(leftover))),
        }
    }
    Ok(())
}

/// That a device waits, and for what.
fn waits(leftover: &Leftover) -> String {
    let path = leftover.path.display();
    let Some(noted) = &leftover.backing else { return format!("{path} waits for another server") };
    format!(
        "{path} waits for another server: --backing {} --size {} --write-through --device ublk \
         takes it over",
        noted.path.display(),
        noted.bytes
    )
}

/// Why there can be no other server of a backing.
fn in_the_way(leftover: &Leftover, noted: &Backing) -> String {
    let (path, file) = (leftover.path.display(), noted.path.display());
    format!(
        "{path} of a server that was killed waits for another with {file}: take it over by \
         --backing {file} --size {} --write-through --device ublk; it can be ended then",
        noted.bytes
    )
}

/// A connection for each processor, each with a queue of its own.
fn nbd(bytes: u64, server: &Server, is_read_only: bool) -> anyhow::Result<Served> {
    let connections = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let config = NbdConfig { bytes, connections, read_only: is_read_only, ..NbdConfig::default() };
    let (device, sockets) = NbdDevice::attach(&config)?;
    for socket in sockets {
        server.serve_kernel(OwnedFd::from(socket)).context("serving an nbd device")?;
    }
    Ok(Served::Nbd(device))
}

/// Each reply needs memory for a socket's buffer, which only real-time threads get while all others
/// wait for memory (docs/design/kernel-devices.md).
fn nbd_for_swap(bytes: u64, server: &Server) -> anyhow::Result<Served> {
    let connections = std::thread::available_parallelism().map_or(1, usize::from);
    let connections = connections.min(SWAP_CONNECTIONS_MAX);
    let config = NbdConfig { bytes, connections, for_swap: true, ..NbdConfig::default() };
    let (mut device, sockets) = NbdDevice::attach(&config)?;
    let begun = RealTime::begin();
    let _begun = begun.context("swap on nbd needs real-time threads (CAP_SYS_NICE)")?;
    for socket in sockets {
        server.serve_swap(OwnedFd::from(socket)).context("serving an nbd device")?;
    }
    device.limit_requests()?;
    Ok(Served::Nbd(device))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;

    fn backing(path: &Path, bytes: u64, write_through: bool) -> Backing {
        Backing::of(File::open(path).unwrap(), bytes, write_through, false).unwrap()
    }

    fn wish(kind: Kind, backing: Option<Backing>) -> Wish {
        Wish { kind, is_read_only: false, swap_priority: None, backing }
    }

    #[test]
    fn a_server_takes_over_what_waits_for_it_or_does_not_start() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("file"), folder.path().join("other"));
        File::create(&path).unwrap();
        File::create(&other).unwrap();
        let waiting = |number: u32, backing| Leftover {
            path: format!("/dev/ublkb{number}").into(),
            fate: Fate::Waiting,
            backing: Some(backing),
        };
        let waiting =
            [waiting(2, backing(&other, 8192, true)), waiting(5, backing(&path, 8192, true))];
        let own = |bytes, write_through| Some(backing(&path, bytes, write_through));
        let taken_over = |kind, backing| {
            Plan::new(wish(kind, backing), &waiting).ok().map(|plan| plan.taken_over)
        };
        assert_eq!(taken_over(Kind::Ublk, own(8192, true)), Some(Some(5)));
        assert_eq!(taken_over(Kind::Auto, own(8192, true)), Some(Some(5)));
        assert_eq!(taken_over(Kind::Ublk, None), Some(None));
        for (kind, backing) in [
            (Kind::Nbd, own(8192, true)),
            (Kind::Ublk, own(4096, true)),
            (Kind::Ublk, own(8192, false)),
        ] {
            assert_eq!(taken_over(kind, backing), None);
        }
        let leave = |backing: Option<Backing>, is_read_only| {
            leave_alone(&waiting, backing.as_ref(), is_read_only).is_ok()
        };
        assert!(leave(None, false) && leave(own(8192, true), true));
        assert!(!leave(own(8192, true), false));
    }
}
