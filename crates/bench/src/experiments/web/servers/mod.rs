//! Web servers, started for a site and asked through a Unix socket.
//!
//! To add a server, add a file with `program`, which finds it, and `prepare`, which writes its
//! configuration, and a variant of [`ServerKind`].

mod nginx;
mod tomcat;

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::client::Client;
use super::site::Item;
use crate::machine::cgroup::Cgroup;
use crate::machine::host::Host;
use crate::machine::journal::{Setting, Undertaking};
use crate::machine::program::{Program, enter_command_until};
use crate::machine::{interrupt, wait};

/// How long a server may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of what it says, for an error.
const SAID_BYTES: u64 = 2 << 10;
/// The name of a Unix socket, a zero at its end included.
const SOCKET_NAME_BYTES: usize = 108;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ServerKind {
    Nginx,
    Tomcat,
}

/// Where the files of a server are, what it serves, and to how many.
struct Place<'a> {
    /// Of its own: configuration, socket, what it says.
    pub(super) folder: &'a Path,
    pub(super) socket: &'a Path,
    pub(super) site: &'a Path,
    pub(super) sessions: usize,
}

impl ServerKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            ServerKind::Nginx => "nginx",
            ServerKind::Tomcat => "tomcat",
        }
    }

    /// # Errors
    /// Says what to install, unless it is.
    pub(super) fn is_here(self) -> Result<()> {
        match self {
            ServerKind::Nginx => nginx::program().map(drop),
            ServerKind::Tomcat => tomcat::programs().map(drop),
        }
    }

    /// Writes its configuration; what is to be started.
    fn prepare(self, place: &Place<'_>) -> Result<Program> {
        match self {
            ServerKind::Nginx => nginx::prepare(place),
            ServerKind::Tomcat => tomcat::prepare(place),
        }
    }
}

/// A server that runs; ended, with its children, on drop.
pub(super) struct Server {
    process: Child,
    kind: ServerKind,
    socket: PathBuf,
    _folder: Undertaking,
}

impl Server {
    /// Starts it in a cgroup, and waits until it has given a page.
    pub(super) fn start(
        host: &Host,
        kind: ServerKind,
        cgroup: &Cgroup,
        site: &Path,
        sessions: usize,
        page: &Item,
    ) -> Result<Server> {
        let folder = host.scratch.join(kind.name());
        let socket = folder.join("socket");
        ensure!(
            socket.as_os_str().len() < SOCKET_NAME_BYTES,
            "{} is too long for the name of a socket; choose a shorter folder with --scratch",
            socket.display()
        );
        let undertaking = host.journal.undertake(Setting::Folder { path: folder.clone() })?;
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let place = Place { folder: &folder, socket: &socket, site, sessions };
        let program = kind.prepare(&place)?;
        let said = folder.join("said");
        let output =
            fs::File::create(&said).with_context(|| format!("cannot write {}", said.display()))?;
        let describe = || format!("cannot start {}", kind.name());
        // By SIGTERM it ends its children too, when the harness is killed. In a group of their own
        // they do not get the ^C of the terminal, which is for the harness.
        let process = enter_command_until(host, Some(cgroup), &program, Signal::TERM)
            .stdin(Stdio::null())
            .stdout(output.try_clone().with_context(describe)?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(describe)?;
        let mut server = Server { process, kind, socket, _folder: undertaking };
        server.wait_for(page).with_context(|| {
            let said = end_of(&said).unwrap_or_else(|error| format!("{error:#}"));
            format!("{} does not serve; it says: {}", kind.name(), said.trim())
        })?;
        Ok(server)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    fn wait_for(&mut self, page: &Item) -> Result<()> {
        wait::until(PATIENCE, || {
            interrupt::check()?;
            if let Some(status) = self.process.try_wait()? {
                bail!("it has ended with {status}");
            }
            let answer = Client::connect(&self.socket)
                .and_then(|mut client| client.get(page, || interrupt::check().is_ok(), |_| ()));
            Ok(answer.map(drop))
        })?;
        Ok(interrupt::check()?)
    }

    /// Ends it.
    pub(super) fn finish(mut self) -> Result<()> {
        let name = self.kind.name();
        kill_process(Pid::from_child(&self.process), Signal::TERM)
            .with_context(|| format!("{name} has ended"))?;
        wait::until(PATIENCE, || {
            let ended = self.process.try_wait()?;
            Ok(ended.map(drop).with_context(|| format!("{name} does not end")))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing is left of it after `finish`, and nothing can be done if it cannot be killed.
        if let Ok(None) = self.process.try_wait() {
            let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

fn end_of(path: &Path) -> Result<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
