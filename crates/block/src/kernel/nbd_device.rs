//! `/dev/nbdN`: the kernel's NBD client on sockets whose other ends this process serves.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::set_socket_send_buffer_size;

use super::error::{KernelError, Tried};
use super::netlink::{Attributes, Netlink, attributes, number};
use crate::nbd::protocol::{
    CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
};

const FAMILY: &str = "nbd";
const VERSION: u8 = 1;

const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;

const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_SIZE_BYTES: u16 = 3;
const TIMEOUT_SECONDS: u16 = 4;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_CONNECTION_TIMEOUT_SECONDS: u16 = 8;
const BACKEND_IDENTIFIER: u16 = 10;
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

/// Longer requests, in KiB, are not made of a device that is swap: its server does these with
/// memory that it has.
const SWAP_REQUEST_KIB_MAX: &str = "32";
/// What is on its way to a server of swap, or from there, waits in buffers of this size, which the
/// kernel doubles.
pub(crate) const SWAP_BUFFER_BYTES: usize = 32 << 10;

/// Where the kernel lists block devices.
const DEVICES: &str = "/sys/block";
/// How the identifier of a device of ours begins; the server's process follows.
const OURS: &str = "ramfold ";

/// How a device is attached.
#[derive(Clone, Copy, Debug)]
pub struct NbdConfig {
    /// The number in `/dev/nbdN`; the next free one without.
    pub device: Option<u32>,
    /// The size, whole blocks.
    pub bytes: u64,
    /// The size of a block, a power of two from 512 to the page's.
    pub block_bytes: u32,
    /// Sockets, each with a hardware queue of its own.
    pub connections: usize,
    /// Nothing may be written.
    pub read_only: bool,
    /// It will be swap: few bytes are under way, since they take memory that the kernel keeps back
    /// for what frees memory. [`NbdDevice::limit_requests`] belongs to it.
    pub for_swap: bool,
    /// After so long without an answer the kernel gives a connection up, and its requests to
    /// another or to nobody. Zero: it waits for ever, as swap must.
    pub timeout: Duration,
    /// How long requests wait for a server when all connections are gone. Zero: they fail at once.
    pub dead_connection_timeout: Duration,
}

impl Default for NbdConfig {
    fn default() -> NbdConfig {
        NbdConfig {
            device: None,
            bytes: 0,
            block_bytes: 4096,
            connections: 1,
            read_only: false,
            for_swap: false,
            timeout: Duration::ZERO,
            dead_connection_timeout: Duration::ZERO,
        }
    }
}

/// A device that is attached; dropping this detaches it.
///
/// When the process dies all sockets close. The kernel then fails each request with EIO, and the
/// device stays attached to nothing until somebody detaches it: [`clean_up`](super::clean_up) does.
#[derive(Debug)]
pub struct NbdDevice {
    index: u32,
    is_attached: bool,
    /// How long requests may be but for [`NbdDevice::limit_requests`].
    usual_limit: Option<String>,
}

impl NbdDevice {
    /// Attaches a device, and returns it with the ends of its connections that are to be served: by
    /// the transmission phase of NBD, without a handshake, with simple replies. The kernel sends
    /// READ, WRITE, FLUSH, TRIM, WRITE_ZEROES and DISC, with FUA.
    ///
    /// # Errors
    /// There is no nbd in the kernel, the device is in use, or this is not root.
    pub fn attach(config: &NbdConfig) -> Result<(NbdDevice, Vec<UnixStream>), KernelError> {
        let described = match config.device {
            Some(index) => format!("attach /dev/nbd{index}"),
            None => "attach an nbd device".to_owned(),
        };
        let mut pairs = Vec::with_capacity(config.connections);
        for _ in 0..config.connections {
            pairs.push(UnixStream::pair().tried(|| described.clone())?);
        }
        let (ours, kernels): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        if config.for_swap {
            for socket in &kernels {
                set_socket_send_buffer_size(socket, SWAP_BUFFER_BYTES)
                    .tried(|| described.clone())?;
            }
        }
        let asked = connect_request(config, &kernels);
        let reply = netlink(&described)?.request(CONNECT, &asked).map_err(|why| {
            let busy = why.kind() == io::ErrorKind::ResourceBusy;
            let error = KernelError::new(&described, why);
            if busy { error.advise("it is in use: choose another, or none") } else { error }
        })?;
        let index = attributes(&reply)
            .find(|&(kind, _)| kind == INDEX)
            .and_then(|(_, value)| number(value))
            .ok_or_else(|| io::Error::other("the kernel does not say which device it is"))
            .tried(|| described)?;
        Ok((NbdDevice { index: index as u32, is_attached: true, usual_limit: None }, ours))
    }

    /// Limits the kernel's requests to what a server of swap does with memory that it has. The
    /// device must be served already: the kernel waits for the requests under way.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn limit_requests(&mut self) -> Result<(), KernelError> {
        let limit = request_limit(self.index);
        let usual = fs::read_to_string(&limit).tried(|| format!("read {}", limit.display()))?;
        self.usual_limit = Some(usual);
        fs::write(&limit, SWAP_REQUEST_KIB_MAX).tried(|| format!("write {}", limit.display()))
    }

    /// `/dev/nbdN`.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/nbd{}", self.index))
    }

    /// Whether the kernel still has it attached.
    pub fn is_attached(&self) -> bool {
        Attached::of(self.index).is_some()
    }

    /// Detaches it. The kernel asks on each connection to disconnect, and closes it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn detach(mut self) -> Result<(), KernelError> {
        self.is_attached = false;
        self.lift_limit();
        detach(self.index)
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        if self.is_attached {
            self.lift_limit();
            // The kernel does not know it any more, then.
            let _ = detach(self.index);
        }
    }
}

impl NbdDevice {
    /// The limit of a device outlives what it was attached to.
    fn lift_limit(&mut self) {
        if let Some(usual) = self.usual_limit.take() {
            // What is slower then is not worth an error.
            let _ = fs::write(request_limit(self.index), usual.trim_end());
        }
    }
}

pub(super) fn detach(index: u32) -> Result<(), KernelError> {
    let described = format!("detach /dev/nbd{index}");
    let mut asked = Attributes::default();
    asked.u32(INDEX, index);
    netlink(&described)?.request(DISCONNECT, &asked).tried(|| described).map(drop)
}

/// Where the kernel has the length of the longest request that it makes.
fn request_limit(index: u32) -> PathBuf {
    Path::new(DEVICES).join(format!("nbd{index}/queue/max_sectors_kb"))
}

fn netlink(described: &str) -> Result<Netlink, KernelError> {
    Netlink::open(FAMILY, VERSION).map_err(|why| {
        let is_missing = why.kind() == io::ErrorKind::NotFound;
        let error = KernelError::new(described, why);
        match is_missing {
            true => error.advise("the kernel's nbd is not loaded: `modprobe nbd` as root loads it"),
            false => error,
        }
    })
}

fn connect_request(config: &NbdConfig, sockets: &[UnixStream]) -> Attributes {
    let mut asked = Attributes::default();
    if let Some(index) = config.device {
        asked.u32(INDEX, index);
    }
    asked.u64(SIZE_BYTES, config.bytes);
    asked.u64(BLOCK_SIZE_BYTES, config.block_bytes.into());
    asked.u64(TIMEOUT_SECONDS, config.timeout.as_secs());
    asked.u64(DEAD_CONNECTION_TIMEOUT_SECONDS, config.dead_connection_timeout.as_secs());
    let read_only = if config.read_only { READ_ONLY } else { 0 };
    // All connections see the same data, and a flush on one covers all.
    let offered = SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES | CAN_MULTI_CONN;
    asked.u64(SERVER_FLAGS, (HAS_FLAGS | offered | read_only).into());
    asked.string(BACKEND_IDENTIFIER, &format!("{OURS}{}", std::process::id()));
    let mut items = Attributes::default();
    for socket in sockets {
        let mut item = Attributes::default();
        item.u32(SOCKET_FD, socket.as_raw_fd() as u32);
        items.nested(SOCKET_ITEM, &item);
    }
    asked.nested(SOCKETS, &items);
    asked
}

/// A device that the kernel has attached to a server of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) index: u32,
    /// The process, also when it has ended.
    pub(super) server: u32,
}

impl Attached {
    fn of(index: u32) -> Option<Attached> {
        Attached::listed(Path::new(DEVICES), index)
    }

    fn listed(devices: &Path, index: u32) -> Option<Attached> {
        let folder = devices.join(format!("nbd{index}"));
        // Only what is attached has this file.
        fs::metadata(folder.join("pid")).ok()?;
        let identifier = fs::read_to_string(folder.join("backend")).ok()?;
        let server = identifier.trim_end().strip_prefix(OURS)?.parse().ok()?;
        Some(Attached { index, server })
    }

    /// Whether this number is still attached to this server.
    pub(super) fn is_still_there(&self) -> bool {
        self.is_still_in(Path::new(DEVICES))
    }

    fn is_still_in(&self, devices: &Path) -> bool {
        Attached::listed(devices, self.index).as_ref() == Some(self)
    }

    /// All of them.
    pub(super) fn all() -> Vec<Attached> {
        Attached::all_in(Path::new(DEVICES))
    }

    fn all_in(devices: &Path) -> Vec<Attached> {
        let names = fs::read_dir(devices).into_iter().flatten().flatten();
        names
            .filter_map(|entry| {
                let index = entry.file_name().to_str()?.strip_prefix("nbd")?.parse().ok()?;
                Attached::listed(devices, index)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_ours_are_told_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str, files: &[(&str, &str)]| {
            fs::create_dir(folder.path().join(name)).unwrap();
            for (file, text) in files {
                fs::write(folder.path().join(name).join(file), text).unwrap();
            }
        };
        add("nbd0", &[("pid", "17\n"), ("backend", "ramfold 17\n")]);
        add("nbd1", &[("pid", "18\n"), ("backend", "another\n")]);
        add("nbd2", &[("pid", "19\n")]);
        // Detached.
        add("nbd3", &[("backend", "ramfold 17\n")]);
        add("sda", &[("pid", "20\n"), ("backend", "ramfold 20\n")]);
        let found = Attached { index: 0, server: 17 };
        assert_eq!(Attached::all_in(folder.path()), [found]);
        assert!(found.is_still_in(folder.path()));
        // Another server has the number now.
        fs::write(folder.path().join("nbd0/backend"), "ramfold 21\n").unwrap();
        assert!(!found.is_still_in(folder.path()));
        fs::remove_file(folder.path().join("nbd0/pid")).unwrap();
        assert!(!found.is_still_in(folder.path()));
    }

    #[test]
    fn a_kernel_without_nbd_is_said_so() {
        if Path::new("/sys/module/nbd").exists() {
            return eprintln!("SKIPPED: this kernel has nbd");
        }
        let config = NbdConfig { bytes: 1 << 20, device: Some(7), ..NbdConfig::default() };
        let error = NbdDevice::attach(&config).unwrap_err().to_string();
        assert!(error.starts_with("cannot attach /dev/nbd7: "), "{error}");
    }
}
