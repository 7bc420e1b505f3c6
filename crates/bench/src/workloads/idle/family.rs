//! Forked children that sleep.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::process::exit;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Forked children that sleep until their parent lets them go on, or ends.
pub(super) struct Family {
    children: Vec<Pid>,
    /// Ends when the parent drops its writing end.
    end: (PipeReader, Option<PipeWriter>),
}

/// A forked child: how it tells that it sleeps, and is told to go on.
pub(super) struct Child {
    asleep: PipeWriter,
    end: PipeReader,
}

impl Family {
    pub(super) fn new() -> Result<Family> {
        let (reader, writer) = io::pipe().context("cannot make a pipe")?;
        Ok(Family { children: Vec::new(), end: (reader, Some(writer)) })
    }

    /// Forks a child, which does `work` and ends, and waits until it sleeps. Returns how long the
    /// call of fork took.
    pub(super) fn fork(&mut self, work: impl FnOnce(Child) -> Result<()>) -> Result<Duration> {
        let (mut is_asleep, asleep) = io::pipe().context("cannot make a pipe")?;
        let end = self.end.0.try_clone().context("cannot copy a pipe")?;
        let start = Instant::now();
        let child = fork()?;
        let took = start.elapsed();
        let Some(child) = child else {
            self.end.1 = None;
            let ended = work(Child { asleep, end });
            if let Err(error) = &ended {
                eprintln!("ramfold-bench: a forked process: {error:#}");
            }
            exit(i32::from(ended.is_err()));
        };
        self.children.push(child);
        drop(asleep);
        is_asleep.read_exact(&mut [0]).context("a forked process ended early")?;
        Ok(took)
    }

    /// Lets the children go on, and waits for their end.
    pub(super) fn finish(mut self) -> Result<()> {
        self.end.1 = None;
        for child in self.children {
            let ended = waitpid(Some(child), WaitOptions::empty())
                .context("cannot wait for a forked process")?;
            let status = ended.and_then(|(_, status)| status.exit_status());
            ensure!(status == Some(0), "a forked process failed");
        }
        Ok(())
    }
}

impl Child {
    /// Returns when the parent lets the child go on, or has ended.
    pub(super) fn sleep(mut self) -> Result<()> {
        self.asleep.write_all(&[0]).context("cannot write to the parent")?;
        io::copy(&mut self.end, &mut io::sink()).context("cannot wait for the parent")?;
        Ok(())
    }
}

/// The child's process id, or `None` in the child.
#[allow(unsafe_code, reason = "the C library's fork is called")]
fn fork() -> Result<Option<Pid>> {
    // SAFETY: this process has one thread, so nothing is locked or half done in the child.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error()).context("cannot fork");
    }
    Ok(Pid::from_raw(pid))
}
