//! Programs: where they are, and how they are started in a cgroup.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::cgroup::Cgroup;
use super::enter_cgroup;
use super::host::Host;

/// A program with arguments and additions to its environment.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) command: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// The command that runs a program in a cgroup: `ramfold-bench enter-cgroup`, which becomes it.
pub(crate) fn enter_command(host: &Host, cgroup: Option<&Cgroup>, program: &Program) -> Command {
    enter_command_until(host, cgroup, program, Signal::KILL)
}

/// The same for a program that gets another signal when the harness is killed, because it has to
/// end its own children.
pub(crate) fn enter_command_until(
    host: &Host,
    cgroup: Option<&Cgroup>,
    program: &Program,
    death_signal: Signal,
) -> Command {
    let mut command = Command::new(&host.own_program);
    command.arg(enter_cgroup::NAME).arg("--parent").arg(std::process::id().to_string());
    command.arg("--death-signal").arg(death_signal.as_raw().to_string());
    for folder in cgroup.iter().flat_map(|cgroup| cgroup.folders()) {
        command.arg("--cgroup").arg(folder);
    }
    command.arg("--").args(&program.command);
    command.envs(program.environment.iter().map(|(name, value)| (*name, value)));
    command
}

/// The executable file in PATH with this name.
pub(crate) fn found_in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
}

/// Whether it is a file that can be executed.
pub(crate) fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
