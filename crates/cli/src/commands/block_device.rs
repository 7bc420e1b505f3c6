//! Devices of the kernel that `ramfold block` serves, and swap on them.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use ramfold_block::BlockDevice;
use ramfold_block::kernel::{
    AfterKill, Fate, KernelError, NbdConfig, NbdDevice, Protection, Swap, UblkConfig, UblkDevice,
    clean_up, protect_server,
};
use ramfold_block::nbd::Server;

use crate::say::say;

/// How the kernel reaches the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// ublk where the kernel has it, else nbd
    Auto,
    /// /dev/ublkbN (Linux 6.0)
    Ublk,
    /// /dev/nbdN
    Nbd,
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
/// what servers left that were killed.
pub(crate) fn prepare(is_swap: bool) {
    for leftover in clean_up() {
        let path = leftover.path.display();
        match leftover.fate {
            Fate::Removed => say(format_args!("{path} was left by a killed server: removed")),
            Fate::Waiting => say(format_args!("{path} waits for another server")),
            Fate::Failed(error) => say(format_args!("{path} was left by a killed server: {error}")),
        }
    }
    if !is_swap {
        return;
    }
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
    /// Makes the device, and swaps to it with that priority.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn start(
        kind: Kind,
        device: &Arc<dyn BlockDevice>,
        server: &Server,
        is_read_only: bool,
        swap_priority: Option<u16>,
    ) -> anyhow::Result<KernelDevice> {
        let after_kill = match swap_priority {
            Some(_) => AfterKill::Fail,
            None => AfterKill::Remove,
        };
        let ublk = || {
            let mut config =
                UblkConfig { read_only: is_read_only, after_kill, ..UblkConfig::default() };
            if swap_priority.is_some() {
                // Its buffers are locked. Swap writes single pages, and reads eight at most.
                (config.queue_depth, config.request_bytes_max) = (32, 64 << 10);
            }
            UblkDevice::start(Arc::clone(device), &config)
                .map(|device| Served::Ublk(Box::new(device)))
        };
        let served = match kind {
            Kind::Nbd if swap_priority.is_some() => {
                bail!("swap on /dev/nbdN hangs where memory is short: leave --device out, for ublk")
            }
            Kind::Auto if swap_priority.is_some() => {
                ublk().context("swap needs ublk (Linux 6.0, modprobe ublk_drv)")?
            }
            Kind::Ublk => ublk()?,
            Kind::Nbd => nbd(device.size_bytes(), server, is_read_only)?,
            Kind::Auto => match ublk() {
                Ok(served) => served,
                Err(no_ublk) => nbd(device.size_bytes(), server, is_read_only)
                    .with_context(|| format!("neither: {no_ublk}; nor"))?,
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
