//! `ramfold block`: a block device in RAM, its data compressed, as an NBD server.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use anyhow::{Context, bail};
use ramfold_block::kernel;
use ramfold_block::nbd::{self, Clients, Listener, Options, Server, Tls};
use ramfold_block::{BackedDisk, BackingConfig, BlockDevice, Disk, DiskConfig, SpillConfig};
use ramfold_codec::Choice;
use ramfold_launch::output_file;
use ramfold_sys::inherited;
use rustix::process::geteuid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::commands::block_backing::{self, BackingArguments};
use crate::commands::block_device::{self, KernelDevice, Plan, Wish};
use crate::commands::block_events::Waiting;
use crate::commands::run::codec_names;
use crate::say::say;
use crate::size::{Size, SizedPath, memory_bytes};

/// How much of the memory there is the device may take, where nothing else was asked for.
const MEMORY_SHARE: f64 = 0.5;
/// A device has whole pages.
const PAGE_BYTES: u64 = 4096;
/// The kernel's block devices have signed sizes.
const SIZE_BYTES_MAX: u64 = 1 << 62;

/// Serve a block device whose data stays compressed in RAM, over NBD.
///
/// The device is empty at first and gone at the end. Any NBD client can use it: qemu, nbd-client
/// and the kernel's /dev/nbd0, nbdcopy, fio. The URI to give them is printed when it is ready.
/// Only this user can connect to the socket. With --backing data stays in a file or on a disk.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold block --size 4G --memory 1G                    a device until Ctrl-C; prints its URI
  ramfold block --size 4G --socket /run/user/1000/disk.sock
  ramfold block --size 4G -- sh -c 'nbdcopy image.raw \"$uri\" && qemu-img info \"$uri\"'
  ramfold block --size 4G --listen 127.0.0.1:10809       for clients that know TCP only
  sudo ramfold block --size 4G --memory 1G --swap        swap space, undone at the end
  ramfold block --backing disk.img --memory 1G           a compressed cache before a file or a disk
  sudo ramfold block --size 4G --device auto             /dev/ublkbN or /dev/nbdN, for a file system

Signals: SIGINT and SIGTERM let the requests end that came before, and then the server; a second one
ends it at once. SIGUSR2 writes --stats. With --backing everything is written out at the end.

Exit status: 0; with PROGRAM its own, 128 + N when signal N ended it; 125 when ramfold itself
failed, 126 when PROGRAM cannot be executed, 127 when it was not found; 128 + N when a second signal
N ended ramfold and nothing was lost; 1 when data is lost: it could not be written to the backing at
the end, or a second signal came before it was.")]
pub(crate) struct Arguments {
    /// How large the device is: 4G, 512M; a multiple of 4096 bytes [with --backing, default: as
    /// large as that]
    #[arg(long, value_name = "SIZE", required_unless_present = "backing")]
    size: Option<Size>,
    /// What its data may cost in RAM, compressed: 1G, 40% (of the machine's RAM) [default: half of
    /// the control group's limit, or of the machine's RAM]
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<Size>,
    /// How pages are compressed
    #[arg(long, value_name = "NAME", default_value = "lz4", value_parser = codec_names())]
    codec: String,
    /// Let data for which there is no memory go to a file in folder DIR, encrypted: a disk, and
    /// SIZE of it at most [default: half of what is free]. Not with --swap
    #[arg(long, value_name = "DIR[:SIZE]")]
    spill: Option<SizedPath>,
    /// Keep equal pages each by itself
    #[arg(long)]
    no_dedup: bool,
    /// Compress each page by itself, also where pages are used in order and have become cold
    #[arg(long)]
    no_clusters: bool,
    /// Make it a device of the kernel's, as root, and print its path too
    #[arg(long, value_name = "KIND", value_enum)]
    device: Option<block_device::Kind>,
    /// Swap to it, with that priority (0 to 32767), until this ends; as --device auto. With
    /// --backing, to a disk or partition that holds a swap area (mkswap)
    #[arg(long, value_name = "PRIORITY", num_args = 0..=1, require_equals = true,
          default_missing_value = "100", conflicts_with = "read_only", value_parser = clap::value_parser!(u16).range(0..=32767))]
    swap: Option<u16>,
    /// The socket [default: a new one in $XDG_RUNTIME_DIR, or in a folder of its own below /tmp;
    /// none with --listen, --device or --swap, or with sockets of a service manager's (LISTEN_FDS)]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen on a TCP port too: 127.0.0.1:10809. Every user of the machine can connect to it;
    /// other addresses need --tls
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Encrypt TCP connections (TLS 1.3) with server-cert.pem and server-key.pem in folder DIR, and
    /// serve clients with a certificate that ca-cert.pem there has signed
    #[arg(long, value_name = "DIR")]
    tls: Option<PathBuf>,
    /// With --tls, serve clients without a certificate too
    #[arg(long, requires = "tls")]
    tls_any_client: bool,
    /// The name of the export; clients that name none get it too
    #[arg(long, value_name = "NAME", default_value = "")]
    export: String,
    /// Refuse what would change the device
    #[arg(long)]
    read_only: bool,
    /// Most clients at a time
    #[arg(long, value_name = "NUMBER", default_value_t = Options::default().connections_max,
          value_parser = connections)]
    connections: usize,
    /// Write what happened to FILE as JSON when it ends, and whenever this process gets SIGUSR2
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    #[command(flatten)]
    backing: BackingArguments,
    /// Run this program, with the URI in $uri and the kernel's device in $device, and end when it
    /// does
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn connections(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|number| (1..=1024).contains(number))
        .ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

/// The device, and what is known of it.
struct Device {
    device: Arc<dyn BlockDevice>,
    statistics: Box<dyn Fn() -> serde_json::Value + Send + Sync>,
    /// The device again, if it has a backing.
    backed: Option<Arc<BackedDisk>>,
}

/// Makes the device. All that this command knows of how data is kept is here.
fn open_device(arguments: &Arguments, size_bytes: Option<u64>) -> anyhow::Result<Device> {
    let memory_bytes = memory_bytes(arguments.memory, MEMORY_SHARE)?;
    let codec = arguments.codec.parse::<Choice>()?;
    let backing = &arguments.backing;
    if let Some(path) = &backing.backing {
        let disk = backing.open(BackingConfig {
            size_bytes,
            codec,
            read_only: arguments.read_only,
            for_swap: arguments.swap.is_some(),
            ..BackingConfig::new(std::path::absolute(path)?, memory_bytes)
        })?;
        if arguments.kernel_device().is_some() {
            block_backing::check_for_kernel(path, disk.size_bytes())?;
        }
        let device = Arc::new(disk);
        let shown = Arc::clone(&device);
        let statistics = Box::new(move || serde_json::json!(shown.backing_statistics()));
        return Ok(Device { device: device.clone(), statistics, backed: Some(device) });
    }
    let size_bytes = size_bytes.context("--size is missing")?;
    let spill = match &arguments.spill {
        Some(SizedPath { path, size }) => {
            let folder = path.clone();
            let described = || format!("cannot spill to {}", folder.display());
            let free = rustix::fs::statvfs(&folder).with_context(described)?;
            let free_bytes = free.f_bavail * free.f_frsize;
            let bytes = size.map_or(free_bytes / 2, |size| size.bytes(free_bytes));
            Some(SpillConfig { folder, bytes })
        }
        None => None,
    };
    let usual = DiskConfig::new(size_bytes, memory_bytes);
    let disk = Disk::new(DiskConfig {
        codec,
        deduplicate: !arguments.no_dedup,
        clusters: usual.clusters && !arguments.no_clusters,
        spill,
        for_swap: arguments.swap.is_some(),
        ..usual
    })?;
    let device = Arc::new(disk);
    let statistics = {
        let device = Arc::clone(&device);
        Box::new(move || serde_json::json!(device.statistics()))
    };
    Ok(Device { device, statistics, backed: None })
}

/// Serves the device until it is told to end.
///
/// # Errors
/// When there can be no such device, or nobody could connect to it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<i32> {
    let size_bytes = arguments.size.map(device_bytes).transpose()?;
    // It may go to another folder.
    let stats = arguments.stats.as_ref().map(std::path::absolute).transpose()?;
    if let Some(file) = &stats {
        output_file::check(file)
            .with_context(|| format!("cannot write --stats {}", file.display()))?;
    }
    // Before anybody can connect, so that none is missed.
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).context("handling signals")?;
    if arguments.kernel_device().is_some() {
        block_device::prepare(arguments.swap.is_some());
    }
    // Its thread must come after that, and before anything that may fail and leave much to do.
    let mut waiting = Waiting::begin(signals);
    let places = Places::new(arguments)?;
    let Device { device, statistics, backed } = open_device(arguments, size_bytes)?;
    if let Some(disk) = &backed {
        waiting.look_after(disk);
    }
    // The backing is this server's by now, and no client can write yet.
    let plan = plan_kernel_device(arguments, backed.as_ref())?;
    let options = Options {
        export: arguments.export.clone(),
        description: "ramfold block".into(),
        is_read_only: arguments.read_only,
        connections_max: arguments.connections,
        ..Options::default()
    };
    let Places { listeners, uris, _folder } = places;
    let server =
        Server::start(Arc::clone(&device), &options, listeners).context("starting the server")?;
    let write_stats = |nbd: &nbd::Statistics| match &stats {
        Some(file) => write_statistics(file, nbd, &statistics()),
        None => Ok(()),
    };
    let write_now = || write_stats(&server.statistics());
    let kernel_device = plan.map(|plan| KernelDevice::start(plan, &device, &server)).transpose();
    let served = kernel_device
        .and_then(|kernel_device| serve(arguments, kernel_device, &uris, &mut waiting, &write_now));
    // Also where something failed.
    waiting.begin_to_end();
    let nbd = server.stop();
    // What follows may take long, or be ended.
    drop(_folder);
    // Also where something failed: clients may have written before.
    let status = match &backed {
        Some(disk) => block_backing::write_out(disk, served.as_ref().map_or(0, |&status| status)),
        None => *served.as_ref().unwrap_or(&0),
    };
    let written = write_stats(&nbd);
    served.and(written).map(|()| status)
}

/// Decides on the device of the kernel's that is asked for, or that no device is in the way of this
/// server.
fn plan_kernel_device(
    arguments: &Arguments,
    backed: Option<&Arc<BackedDisk>>,
) -> anyhow::Result<Option<Plan>> {
    let (kind, waiting) = (arguments.kernel_device(), kernel::waiting());
    if kind.is_none() && waiting.is_empty() {
        return Ok(None);
    }
    let is_read_only = arguments.read_only;
    let backing = backed.map(|disk| disk.backing()).transpose();
    let backing = backing.context("cannot look at the backing")?;
    let Some(kind) = kind else {
        block_device::leave_alone(&waiting, backing.as_ref(), is_read_only)?;
        return Ok(None);
    };
    let wish = Wish { kind, is_read_only, swap_priority: arguments.swap, backing };
    Plan::new(wish, &waiting).map(Some)
}

/// Serves the device until it is told to end, or the program has ended. Returns the exit status.
fn serve(
    arguments: &Arguments,
    mut kernel_device: Option<KernelDevice>,
    uris: &[String],
    waiting: &mut Waiting,
    write_stats: &dyn Fn() -> anyhow::Result<()>,
) -> anyhow::Result<i32> {
    let path = kernel_device.as_ref().map(KernelDevice::path);
    let started = match arguments.program.as_slice() {
        [] => print_places(uris, path.as_deref()).map(|()| Started::Nothing),
        program => Ok(start_program(program, uris.first(), path.as_deref())),
    };
    let status = started.map(|started| match started {
        Started::Nothing => waiting.wait(write_stats),
        Started::Program(program) => {
            waiting.begin_program(program);
            waiting.wait(write_stats)
        }
        Started::Failed(status) => status,
    });
    // What is swapped out must come back before the device may go.
    while let Some(Err(error)) = kernel_device.as_mut().map(KernelDevice::swap_off) {
        say(format_args!("{error}; it is served on: the next signal tries again"));
        waiting.wait(write_stats);
    }
    waiting.begin_to_end();
    let ended = kernel_device.map_or(Ok(()), KernelDevice::end);
    status.and_then(|status| ended.map(|()| status))
}

/// What runs while the device is served.
enum Started {
    Nothing,
    Program(Child),
    /// It does not run; the exit status.
    Failed(i32),
}

impl Arguments {
    /// The device of the kernel's that is asked for.
    fn kernel_device(&self) -> Option<block_device::Kind> {
        self.device.or(self.swap.map(|_| block_device::Kind::Auto))
    }

    fn tls(&self) -> anyhow::Result<Option<Tls>> {
        let clients = if self.tls_any_client { Clients::Any } else { Clients::Certified };
        let from = |folder: &PathBuf| Tls::from_folder(folder, clients).context("--tls");
        self.tls.as_ref().map(from).transpose()
    }
}

fn device_bytes(size: Size) -> anyhow::Result<u64> {
    let Size::Bytes(bytes) = size else {
        bail!("--size is how large the device is, and no share of anything: write 4G or 512M");
    };
    if bytes == 0 {
        bail!("--size 0 is no device: it needs one page of {PAGE_BYTES} bytes at least");
    }
    if !bytes.is_multiple_of(PAGE_BYTES) {
        let below = bytes / PAGE_BYTES * PAGE_BYTES;
        bail!(
            "--size {bytes} is no multiple of {PAGE_BYTES} bytes; the next that are: {below} and {}",
            below + PAGE_BYTES
        );
    }
    if bytes > SIZE_BYTES_MAX {
        bail!("--size {bytes} is too large: a device has at most {SIZE_BYTES_MAX} bytes");
    }
    Ok(bytes)
}

/// Where clients connect.
struct Places {
    listeners: Vec<Listener>,
    uris: Vec<String>,
    /// Dropped after the socket in it.
    _folder: Option<PrivateFolder>,
}

impl Places {
    fn new(arguments: &Arguments) -> anyhow::Result<Places> {
        let mut places = Places { listeners: Vec::new(), uris: Vec::new(), _folder: None };
        let export = &arguments.export;
        let tls = arguments.tls()?;
        for socket in inherited::listening_sockets() {
            let listener = Listener::inherited(socket, tls.clone());
            places.listeners.push(listener.context("a socket of the service manager's")?);
        }
        if tls.is_some()
            && arguments.listen.is_empty()
            && places.listeners.iter().all(|listener| listener.tcp_address().is_none())
        {
            bail!("--tls is for TCP: name an address too, as --listen 0.0.0.0:10809");
        }
        let socket = match &arguments.socket {
            None if arguments.kernel_device().is_some() => None,
            None if !places.listeners.is_empty() || !arguments.listen.is_empty() => None,
            None => Some(places.private_path()?),
            Some(path) => Some(std::path::absolute(path)?),
        };
        if let Some(path) = socket {
            places.listeners.push(Listener::unix(&path)?);
            places.uris.push(unix_uri(&path, export));
        }
        for &address in &arguments.listen {
            let listener = Listener::tcp(address, tls.clone()).context("--listen")?;
            let address = listener.tcp_address().unwrap_or(address);
            let scheme = if tls.is_some() { "nbds" } else { "nbd" };
            places.uris.push(format!("{scheme}://{address}/{}", in_uri(export.as_bytes())));
            places.listeners.push(listener);
        }
        Ok(places)
    }

    /// A path that no other user can reach.
    fn private_path(&mut self) -> anyhow::Result<PathBuf> {
        let name = format!("ramfold-block-{}", std::process::id());
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        if let Some(folder) = runtime.filter(|folder| folder.is_absolute() && folder.is_dir()) {
            return Ok(folder.join(format!("{name}.sock")));
        }
        let folder = PrivateFolder::new(&std::env::temp_dir(), &name).with_context(|| {
            let folder = std::env::temp_dir();
            format!("making a folder for the socket in {}; --socket names a path", folder.display())
        })?;
        let path = folder.0.join("nbd.sock");
        self._folder = Some(folder);
        Ok(path)
    }
}

/// A folder that only this user can open. Removed on drop, if it is empty then.
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new(parent: &Path, name: &str) -> io::Result<PrivateFolder> {
        let mut tries = 0;
        loop {
            // Somebody else's may be there, or one of a killed process with the same number.
            let path = parent.join(format!("{name}-{}-{tries}", geteuid().as_raw()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < 100 => {
                    tries += 1;
                }
                made => return made.map(|()| PrivateFolder(path)),
            }
        }
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn unix_uri(path: &Path, export: &str) -> String {
    let (export, path) = (in_uri(export.as_bytes()), in_uri(path.as_os_str().as_bytes()));
    format!("nbd+unix:///{export}?socket={path}")
}

/// Bytes as a part of a URI (RFC 3986).
fn in_uri(bytes: &[u8]) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    bytes
        .iter()
        .map(|&byte| match is_plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}

/// Prints where the device is.
fn print_places(uris: &[String], device: Option<&Path>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let device = device.map(|path| path.display().to_string());
    for place in device.iter().chain(uris) {
        writeln!(out, "{place}").context("printing where the device is")?;
    }
    out.flush().context("printing where the device is")
}

fn start_program(program: &[OsString], uri: Option<&String>, device: Option<&Path>) -> Started {
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    for variable in inherited::VARIABLES {
        command.env_remove(variable);
    }
    if let Some(uri) = uri {
        command.env("uri", uri);
    }
    if let Some(device) = device {
        command.env("device", device);
    }
    match command.spawn() {
        Ok(child) => Started::Program(child),
        Err(error) => {
            say(format_args!("cannot run {}: {error}", program[0].display()));
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            Started::Failed(if is_missing { 127 } else { 126 })
        }
    }
}

fn write_statistics(
    file: &Path,
    nbd: &nbd::Statistics,
    device: &serde_json::Value,
) -> anyhow::Result<()> {
    let all = serde_json::json!({ "device": device, "nbd": nbd });
    let mut text = serde_json::to_vec_pretty(&all)?;
    text.push(b'\n');
    output_file::write(file, &text)
        .with_context(|| format!("cannot write --stats {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_quoted_in_a_uri() {
        assert_eq!(
            unix_uri(Path::new("/run/a b&c"), "x/ü"),
            "nbd+unix:///x/%C3%BC?socket=/run/a%20b%26c"
        );
    }

    #[test]
    fn a_device_has_whole_pages() {
        assert_eq!(device_bytes(Size::Bytes(8192)).unwrap(), 8192);
        for (size, what) in [
            (Size::Bytes(0), "no device"),
            (Size::Bytes(5000), "4096 and 8192"),
            (Size::Fraction(0.5), "4G"),
            (Size::Bytes((1 << 62) + 4096), "too large"),
        ] {
            let error = device_bytes(size).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
