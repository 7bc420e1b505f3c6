//! A running process, with all its threads, and without its children.

use std::fs;

use ramfold_sys::Errno;
use ramfold_sys::cgroup;
use ramfold_sys::other_process::OtherProcess;

use super::watch::{Target, Watch};
use super::{Error, Options, empty, machine};
use crate::observation::{Observation, Subject};
use crate::progress::Progress;

/// Measures a process of the user's own; as root, any.
///
/// # Errors
/// When there is no such process, it cannot be looked at, or ends too early.
pub fn measure(pid: u32, options: &Options, progress: &Progress) -> Result<Observation, Error> {
    let name = check(pid)?;
    let limit = cgroup::tightest_of(pid).map(|limited| limited.bytes);
    let machine = machine(1, limit)?;
    let subject = Subject::Process { pid, name: name.clone(), arguments: arguments(pid) };
    let mut observation = empty(subject, machine);
    let target = Target {
        name: format!("process {pid} ({name})"),
        is_group: false,
        list: &|| vec![pid],
        anonymous_bytes: &|| None,
    };
    observation.not_seen.push(
        "memory of the process's children, files and shared memory are not in here".to_owned(),
    );
    Watch::new(target, options, progress).run(&mut observation)?;
    Ok(observation)
}

/// The name of a process that can be looked at.
fn check(pid: u32) -> Result<String, Error> {
    let refused = |why: &str| Error::Process { pid, why: why.to_owned() };
    if pid == 0 {
        return Err(refused("0 is the number of no process"));
    }
    if pid == std::process::id() {
        return Err(refused("that is this ramfold itself"));
    }
    let status = OtherProcess::open(pid).and_then(|process| process.status());
    let status = status.map_err(|errno| match errno {
        Errno::NOENT | Errno::SRCH => refused("there is no such process"),
        errno => refused(&format!("/proc/{pid}/status cannot be read: {errno}")),
    })?;
    if status.thread_group != pid {
        let process = status.thread_group;
        return Err(refused(&format!("that is a thread of process {process}: name the process")));
    }
    match (status.anonymous_bytes, status.state) {
        (Some(_), _) => Ok(status.name),
        (None, b'Z' | b'X') => Err(refused("it has ended, and waits for its parent to notice")),
        (None, _) => Err(refused("it is a thread of the kernel, which has no memory of its own")),
    }
}

/// The command line of a process; none where it shows none.
fn arguments(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let Some(line) = line.strip_suffix(b"\0") else { return Vec::new() };
    line.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
