//! A forked child in a simulation: it is a process of its own, with a copy of all that its parent
//! has. One of the two has its turn at a time.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, WaitOptions, waitpid};

/// The other process.
pub(super) struct Relative {
    turns: UnixStream,
    /// Of the child.
    pid: Option<Pid>,
}

/// Which of the two processes this is.
pub(super) enum Forked {
    Parent(Relative),
    Child(Relative),
}

/// Copies this process. The parent goes on, and the child waits for its turn.
pub(super) fn fork() -> Forked {
    let (parents, childs) = UnixStream::pair().unwrap();
    // SAFETY: the child goes on with what this thread has, and ends without the others.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork(2): {}", std::io::Error::last_os_error());
    if pid > 0 {
        return Forked::Parent(Relative { turns: parents, pid: Pid::from_raw(pid) });
    }
    drop(parents);
    // What a test prints is its parent's.
    std::panic::set_hook(Box::new(|failed| {
        let text = format!("in a forked child: {failed}\n");
        // SAFETY: the text is readable. A lock of the standard library's may be a parent's
        // thread's.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    }));
    let mut relative = Relative { turns: childs, pid: None };
    relative.wait();
    Forked::Child(relative)
}

/// Ends the child's process.
pub(super) fn end(is_well: bool) -> ! {
    // SAFETY: no handlers of exit are run, which are for the parent's threads.
    unsafe { libc::_exit(i32::from(!is_well)) }
}

impl Relative {
    pub(super) fn is_child(&self) -> bool {
        self.pid.is_some()
    }

    /// The other goes on until it passes the turn back. `false`: it has ended.
    pub(super) fn pass_turn(&mut self) -> bool {
        self.turns.write_all(&[0]).is_ok() && self.wait()
    }

    fn wait(&mut self) -> bool {
        let has_turn = matches!(self.turns.read(&mut [0]), Ok(1));
        if !has_turn && self.pid.is_none() {
            // The parent has failed.
            end(false);
        }
        has_turn
    }

    /// In the parent: the child comes to its end.
    pub(super) fn finish(mut self) {
        while self.pass_turn() {}
        let ended = waitpid(self.pid, WaitOptions::empty()).unwrap();
        let status = ended.and_then(|(_, status)| status.exit_status());
        assert_eq!(status, Some(0), "a forked child has failed: see above");
    }
}
