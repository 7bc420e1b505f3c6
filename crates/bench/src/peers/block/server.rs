//! Devices that are a process with a socket: ramfold, in RAM or before a file, and nbdkit.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::file::{self, is_no_disk};
use super::{Active, Device, Place, Target};
use crate::machine::host::Host;
use crate::machine::journal::Undertaking;
use crate::machine::processes::{anonymous_bytes_of_tree, cpu_seconds};
use crate::machine::program::{Program, enter_command, found_in_path};
use crate::machine::wait;

/// How long it may take to listen.
const READY: Duration = Duration::from_secs(30);
/// What `ramfold block` may take beyond the size of the device, so that nothing is refused.
const MEMORY_MORE: u64 = 128 << 20;
/// The cache before a file takes this part of the device, unless it is told how much.
const CACHE_PART: u64 = 4;
const CACHE_MIN: u64 = 8 << 20;

enum Server {
    Nbdkit(&'static [&'static str]),
    Ramfold(Vec<String>),
    /// Before a file.
    Backing(Vec<String>),
}

struct Kind {
    name: String,
    server: Server,
}

fn nbdkit_with(
    name: &str,
    settings: Option<&str>,
    arguments: &'static [&'static str],
) -> Result<Box<dyn Device>> {
    ensure!(settings.is_none(), "'{name}': nbdkit has no settings");
    Ok(Box::new(Kind { name: name.to_owned(), server: Server::Nbdkit(arguments) }))
}

/// nbdkit's memory plugin, without compression.
pub(super) fn nbdkit(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    nbdkit_with(name, settings, &[])
}

/// The same, compressed by zstd.
pub(super) fn nbdkit_zstd(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    nbdkit_with(name, settings, &["allocator=zstd"])
}

/// `ramfold block`, with settings like `codec=lz4`.
pub(super) fn ramfold(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    let server = Server::Ramfold(options(name, settings)?);
    Ok(Box::new(Kind { name: name.to_owned(), server }))
}

/// `ramfold block --backing` before a file, with such settings.
pub(super) fn ramfold_backing(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    let server = Server::Backing(options(name, settings)?);
    Ok(Box::new(Kind { name: name.to_owned(), server }))
}

fn options(name: &str, settings: Option<&str>) -> Result<Vec<String>> {
    let mut options = Vec::new();
    for setting in settings.unwrap_or("").split(':').filter(|setting| !setting.is_empty()) {
        ensure!(
            !setting.starts_with(['-', '=']),
            "'{name}': write NAME:OPTION=VALUE or NAME:OPTION with options of ramfold block, \
             without dashes"
        );
        options.push(format!("--{setting}"));
    }
    Ok(options)
}

impl Device for Kind {
    fn name(&self) -> &str {
        &self.name
    }

    fn missing(&self, host: &Host) -> Option<String> {
        match self.server {
            Server::Nbdkit(_) if found_in_path("nbdkit").is_none() => {
                Some("there is no nbdkit in PATH (apt-get install nbdkit)".to_owned())
            }
            Server::Backing(_) => is_no_disk(host),
            Server::Nbdkit(_) | Server::Ramfold(_) => None,
        }
    }

    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>> {
        let (folder, undertaking) = place.make_folder()?;
        let socket = folder.join("socket");
        let command = self.command(place, &socket)?;
        let program = Program { command, environment: Vec::new() };
        let process = enter_command(place.host, None, &program)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", self.name))?;
        let mut running = Running { process, socket, _folder: undertaking };
        wait::until(READY, || {
            if let Some(status) = running.process.try_wait()? {
                bail!("{} ended with {status}", self.name);
            }
            Ok(match running.socket.exists() {
                true => Ok(()),
                false => Err(anyhow::anyhow!("{} does not make its socket", self.name)),
            })
        })?;
        Ok(Box::new(running))
    }
}

impl Kind {
    fn command(&self, place: &Place<'_>, socket: &std::path::Path) -> Result<Vec<OsString>> {
        let bytes = place.bytes.to_string();
        match &self.server {
            Server::Nbdkit(arguments) => {
                let mut command: Vec<OsString> = vec!["nbdkit".into(), "--foreground".into()];
                command.extend(["--unix".into(), socket.into(), "memory".into(), bytes.into()]);
                command.extend(arguments.iter().map(Into::into));
                Ok(command)
            }
            Server::Ramfold(options) => {
                let memory = (place.bytes + MEMORY_MORE).to_string();
                let mut command: Vec<OsString> = vec![place.ramfold.into(), "block".into()];
                command.extend(["--size".into(), bytes.into(), "--memory".into(), memory.into()]);
                command.extend(["--socket".into(), socket.into()]);
                command.extend(options.iter().map(Into::into));
                Ok(command)
            }
            Server::Backing(options) => {
                let disk = socket.with_file_name("disk");
                file::make(&disk, place.bytes)?;
                let mut command: Vec<OsString> = vec![place.ramfold.into(), "block".into()];
                command.extend(["--backing".into(), disk.into()]);
                command.extend(["--socket".into(), socket.into()]);
                if !options.iter().any(|option| option.starts_with("--memory=")) {
                    let memory = (place.bytes / CACHE_PART).max(CACHE_MIN);
                    command.push(format!("--memory={memory}").into());
                }
                command.extend(options.iter().map(Into::into));
                Ok(command)
            }
        }
    }
}

/// A server that listens.
struct Running {
    process: Child,
    socket: PathBuf,
    _folder: Undertaking,
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

impl Active for Running {
    fn target(&self) -> Target {
        Target::Uri(format!("nbd+unix:///?socket={}", self.socket.display()))
    }

    fn memory_bytes(&self) -> Result<u64> {
        Ok(anonymous_bytes_of_tree(self.pid()))
    }

    fn cpu_seconds(&self) -> Result<Option<f64>> {
        cpu_seconds(self.pid()).map(Some)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        kill_process(self.pid(), Signal::TERM).context("the server has ended")?;
        let status = self.process.wait()?;
        ensure!(status.success(), "the server ended with {status}");
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
