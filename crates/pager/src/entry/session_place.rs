//! Where a session is found: in the launcher, or in whoever else has it open.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ramfold_sys::path::Path;
use ramfold_sys::{Errno, credentials, proc};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{Access, Mode, OFlags, access, open};

/// The value of the session's variable: `PID:FD:KEY`, or `fd:FD:KEY` for a descriptor that was
/// handed down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SessionPlace {
    /// Zero: the descriptor is this process's.
    pub pid: u32,
    pub fd: i32,
    pub key: u64,
}

const HANDED_DOWN: &str = "fd";

impl SessionPlace {
    pub(crate) fn parse(value: &[u8]) -> Option<SessionPlace> {
        let mut parts = core::str::from_utf8(value).ok()?.split(':');
        let pid = parts.next()?;
        Some(SessionPlace {
            pid: if pid == HANDED_DOWN { 0 } else { pid.parse().ok()? },
            fd: parts.next()?.parse().ok()?,
            key: u64::from_str_radix(parts.next()?, 16).ok()?,
        })
    }

    /// # Errors
    /// What open(2) says. What was handed down is the caller's from now on.
    pub(crate) fn open(&self) -> Result<OwnedFd, Errno> {
        if self.pid == 0 {
            // SAFETY: opened for this process by the one before it in it, and known to nobody else.
            return Ok(unsafe { OwnedFd::from_raw_fd(self.fd) });
        }
        open(self.path()?.as_c_str(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
    }

    fn path(&self) -> Result<Path, Errno> {
        Path::new(format_args!("/proc/{}/fd/{}", self.pid, self.fd))
    }

    #[inline(never)]
    fn open_for_execution(&self) -> Result<OwnedFd, Errno> {
        open(self.path()?.as_c_str(), OFlags::RDWR, Mode::empty())
    }

    /// Can it be opened from here? Not inlined: the program's stack may be small.
    #[inline(never)]
    fn is_reachable(&self) -> bool {
        self.pid != 0
            && self.path().is_ok_and(|path| {
                access(path.as_c_str(), Access::READ_OK | Access::WRITE_OK).is_ok()
            })
    }
}

impl fmt::Display for SessionPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "{HANDED_DOWN}:{}:{:016x}", self.fd, self.key),
            pid => write!(f, "{pid}:{}:{:016x}", self.fd, self.key),
        }
    }
}

/// Whom a process can have the session from: the launcher, or its own agent's process, which keeps
/// it open. The first may be out of sight, in another namespace of processes or behind chroot(2).
/// Zeroed memory: nobody.
///
/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `launcher`, `key` | who starts the agent | all | by the start of the agent's process |
/// | `handed_down` | who starts the agent; again when the agent's process has the descriptor | the agent's process | by its start, and by [`Process::agent_pid`](crate::session::Process::agent_pid), which it writes after it has read this |
/// | `agent` | the agent's process | threads of the program | nothing: number and descriptor are one word; a forked child finds its parent's until then |
#[repr(C)]
pub(crate) struct SessionHolders {
    launcher: Holder,
    agent: Holder,
    key: AtomicU64,
    /// The descriptor that was handed down to this process, and one more, until the agent's process
    /// has it.
    handed_down: AtomicU32,
}

/// The number of a process, and a descriptor of it.
struct Holder(AtomicU64);

impl Holder {
    fn set(&self, pid: u32, fd: i32) {
        self.0.store(u64::from(pid) << 32 | u64::from(fd as u32), Ordering::Relaxed);
    }

    fn get(&self) -> (u32, i32) {
        let word = self.0.load(Ordering::Relaxed);
        ((word >> 32) as u32, word as i32)
    }
}

impl SessionHolders {
    /// At the start of the agent, when the session is open.
    pub(crate) fn begin(&self, place: &SessionPlace, file: &OwnedFd) {
        if place.pid == 0 {
            self.handed_down.store(file.as_raw_fd() as u32 + 1, Ordering::Relaxed);
        }
        self.launcher.set(place.pid, place.fd);
        self.key.store(place.key, Ordering::Relaxed);
    }

    /// What the agent's process must keep of the program's descriptors.
    pub(crate) fn handed_down(&self) -> Option<i32> {
        Some(self.handed_down.load(Ordering::Relaxed).checked_sub(1)? as i32)
    }

    /// The agent's process has it.
    pub(crate) fn note_handed_on(&self) {
        self.handed_down.store(0, Ordering::Relaxed);
    }

    fn of(&self, holder: &Holder) -> SessionPlace {
        let (pid, fd) = holder.get();
        SessionPlace { pid, fd, key: self.key.load(Ordering::Relaxed) }
    }

    fn open_any(&self) -> Result<OwnedFd, Errno> {
        let places = [self.of(&self.launcher), self.of(&self.agent)];
        // What was handed down is closed since, in the program's own table.
        let mut held = places.iter().filter(|place| place.pid != 0);
        held.find_map(|place| place.open().ok()).ok_or(Errno::NOENT)
    }

    /// For the agent's process: keeps the session open, if it does not yet. A forked child has it
    /// from its parent's.
    pub(crate) fn hold(&self) {
        let pid = proc::own_pid();
        if self.agent.get().0 == pid {
            return;
        }
        let open = || self.open_any().map(IntoRawFd::into_raw_fd);
        if let Ok(file) = self.handed_down().map_or_else(open, Ok) {
            // As long as this process lives.
            self.agent.set(pid, file);
        }
    }

    /// Where a program finds the session that is about to be executed in this process. The
    /// descriptor, if one is returned, is for that program, and is to be closed if it is not
    /// executed after all.
    ///
    /// # Errors
    /// What open(2) says where it cannot be reached in any way.
    pub(crate) fn for_execution(&self) -> Result<(SessionPlace, Option<OwnedFd>), Errno> {
        let launcher = self.of(&self.launcher);
        let is_reachable = launcher.is_reachable();
        // What is executed may find less than the caller.
        if is_reachable && !credentials::loses_by_execution() {
            return Ok((launcher, None));
        }
        let holder = if is_reachable { launcher } else { self.of(&self.agent) };
        if holder.pid == 0 {
            return Err(Errno::NOENT);
        }
        let file = holder.open_for_execution()?;
        Ok((SessionPlace { pid: 0, fd: file.as_raw_fd(), ..holder }, Some(file)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written() {
        for place in [
            SessionPlace { pid: 123, fd: 4, key: 0xabc },
            SessionPlace { pid: 0, fd: 7, key: u64::MAX },
        ] {
            let text = place.to_string();
            assert_eq!(SessionPlace::parse(text.as_bytes()), Some(place));
            assert_eq!(SessionPlace::parse(format!("{text}:spd").as_bytes()), Some(place));
        }
        for bad in ["", "1:2", "x:2:3", "1:2:xyz", "fd::0"] {
            assert_eq!(SessionPlace::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn who_is_out_of_sight_is_passed_by() {
        // SAFETY: zeroed memory is valid.
        let holders: SessionHolders = unsafe { core::mem::zeroed() };
        let file = tempfile_descriptor();
        let me = proc::own_pid();
        holders.begin(&SessionPlace { pid: me, fd: file.as_raw_fd(), key: 5 }, &file);
        let (place, handed_down) = holders.for_execution().unwrap();
        assert_eq!((place.pid, place.key), (me, 5));
        assert!(handed_down.is_none());
        holders.hold();
        holders.begin(&SessionPlace { pid: u32::MAX >> 2, fd: 3, key: 5 }, &file);
        let (place, handed_down) = holders.for_execution().unwrap();
        let handed_down = handed_down.unwrap();
        assert_eq!((place.pid, place.fd), (0, handed_down.as_raw_fd()));
        assert!(rustix::io::fcntl_getfd(&handed_down).unwrap().is_empty());
    }

    fn tempfile_descriptor() -> OwnedFd {
        rustix::fs::memfd_create(c"session", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }
}
