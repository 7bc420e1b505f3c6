//! Places where clients connect.

use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_socket_reuseaddr, set_tcp_keepcnt, set_tcp_keepidle,
    set_tcp_keepintvl, set_tcp_nodelay,
};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    getsockname, listen, socket_with,
};

use super::tls::Tls;

/// Clients that wait until they are accepted.
const BACKLOG: i32 = 64;
/// TCP keepalive: after this time without a byte the kernel asks whether the client is there, then
/// at this interval, and closes the connection after this number of questions without an answer.
const KEEP_IDLE: Duration = Duration::from_secs(60);
const KEEP_INTERVAL: Duration = Duration::from_secs(15);
const KEEP_COUNT: u32 = 4;
/// Another server that looks at the same socket file gets so long.
const LOCK_TIME_MAX: Duration = Duration::from_secs(1);

/// Why there is no such place.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// A server is there.
    #[error("{} is in use: another server answers there; end it or name another path", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error(
        "{} is there and is no socket; it is left alone: remove it or name another path",
        path.display()
    )]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The kernel takes no longer path.
    #[error(
        "{} is too long for a socket: the kernel takes paths of 107 bytes; name a shorter one",
        path.display()
    )]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("cannot make the socket {}: {source}", path.display())]
    Unix {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Anybody could read and change the device there.
    #[error(
        "cannot listen on {address} without TLS: anybody who can reach it could read and change the \
         device; --tls DIR encrypts and asks clients for a certificate, or name an address of this \
         machine, as 127.0.0.1:10809"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// It is neither.
    #[error("a socket that is given is neither a UNIX nor a TCP socket: these are served")]
    Other,
    /// The address could not be had.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A socket that listens. A socket file that was made for it is removed on drop.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// How clients of it are served, if that is encrypted.
    tls: Option<Tls>,
    is_tcp: bool,
    _made: Option<SocketFile>,
}

impl Listener {
    /// A UNIX socket that only this user can connect to. One that a killed server has left is
    /// replaced.
    ///
    /// # Errors
    /// When another server or another file is there, or it cannot be made.
    pub fn unix(path: &Path) -> Result<Listener, ListenError> {
        let failed = |source: io::Error| ListenError::Unix { path: path.into(), source };
        let address = SocketAddrUnix::new(path).map_err(|error| match error {
            Errno::NAMETOOLONG => ListenError::TooLong { path: path.into() },
            error => failed(error.into()),
        })?;
        let new_socket = || {
            let flags = SocketFlags::CLOEXEC;
            socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        };
        let socket = new_socket().map_err(|error| failed(error.into()))?;
        // The file gets the socket's mode, so that nobody can connect in between.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
        let _locked = lock_folder(path);
        let mut bound = bind(&socket, &address);
        if bound == Err(Errno::ADDRINUSE) {
            let there = fs::symlink_metadata(path).map_err(failed)?;
            if !there.file_type().is_socket() {
                return Err(ListenError::NoSocket { path: path.into() });
            }
            let other = new_socket().map_err(|error| failed(error.into()))?;
            match connect(&other, &address) {
                Err(Errno::CONNREFUSED) => {}
                Err(error) => return Err(failed(error.into())),
                Ok(()) => return Err(ListenError::InUse { path: path.into() }),
            }
            fs::remove_file(path).map_err(failed)?;
            bound = bind(&socket, &address);
        }
        bound.and_then(|()| listen(&socket, BACKLOG)).map_err(|error| failed(error.into()))?;
        let made = Some(SocketFile::new(path).map_err(failed)?);
        Ok(Listener { socket, tls: None, is_tcp: false, _made: made })
    }

    /// A TCP port: with TLS of any address, without it of one that only this machine can reach.
    ///
    /// # Errors
    /// When the address is another, in use or not permitted.
    pub fn tcp(address: SocketAddr, tls: Option<Tls>) -> Result<Listener, ListenError> {
        check_reach(address, tls.as_ref())?;
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let listening = || {
            let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &address)?;
            listen(&socket, BACKLOG)?;
            Ok(socket)
        };
        let socket = listening()
            .map_err(|error: Errno| ListenError::Tcp { address, source: error.into() })?;
        Ok(Listener { socket, tls, is_tcp: true, _made: None })
    }

    /// A socket that somebody else has made and listens on (sd_listen_fds(3)). TLS is for TCP.
    ///
    /// # Errors
    /// When other machines can reach it and there is no TLS, or it is of another kind.
    pub fn inherited(socket: OwnedFd, tls: Option<Tls>) -> Result<Listener, ListenError> {
        if let Some(address) = tcp_address(&socket) {
            check_reach(address, tls.as_ref())?;
            return Ok(Listener { socket, tls, is_tcp: true, _made: None });
        }
        match getsockname(&socket) {
            Ok(address) if address.address_family() == AddressFamily::UNIX => {
                Ok(Listener { socket, tls: None, is_tcp: false, _made: None })
            }
            _ => Err(ListenError::Other),
        }
    }

    /// Where it listens, if that is a TCP port: the kernel chooses where 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        tcp_address(&self.socket)
    }

    /// How its clients are served, if that is encrypted.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The next client. Blocks where there is none.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        let socket = accept_with(&self.socket, SocketFlags::CLOEXEC)?;
        if self.is_tcp {
            // It makes things faster, or is as it was.
            let _ = set_tcp_nodelay(&socket, true);
            // A machine that is gone would keep its place for ever, as where this is refused.
            let _ = set_tcp_keepidle(&socket, KEEP_IDLE)
                .and_then(|()| set_tcp_keepintvl(&socket, KEEP_INTERVAL))
                .and_then(|()| set_tcp_keepcnt(&socket, KEEP_COUNT))
                .and_then(|()| set_socket_keepalive(&socket, true));
        }
        Ok(socket)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn tcp_address(socket: &OwnedFd) -> Option<SocketAddr> {
    let address = getsockname(socket).ok()?;
    let is_tcp = matches!(address.address_family(), AddressFamily::INET | AddressFamily::INET6);
    is_tcp.then(|| address.try_into().ok()).flatten()
}

fn check_reach(address: SocketAddr, tls: Option<&Tls>) -> Result<(), ListenError> {
    match tls.is_some() || address.ip().is_loopback() {
        true => Ok(()),
        false => Err(ListenError::NotLoopback { address }),
    }
}

/// Lets one server at a time look at what is at the path. Where that is not possible two that
/// start at the same moment might both replace what a third has left.
fn lock_folder(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).ok()?;
    let deadline = Instant::now() + LOCK_TIME_MAX;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(folder),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(_) => return None,
        }
    }
}

/// A socket file that is this server's. Removed on drop, unless another has taken its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<SocketFile> {
        // The process may go to another folder.
        let path = std::path::absolute(path)?;
        let identity = SocketFile::identity(&path)?;
        Ok(SocketFile { path, identity })
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let there = fs::symlink_metadata(path)?;
        Ok((there.dev(), there.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if SocketFile::identity(&self.path).is_ok_and(|identity| identity == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
