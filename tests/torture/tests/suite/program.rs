//! Running the program and reading what it says.

use std::os::unix::process::CommandExt;
use std::process::Command;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ramfold-torture");

/// What a run has come to.
#[derive(Debug)]
pub(crate) struct End {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A machine that is busy with other things is not to be taken for a program that hangs.
pub(crate) const PATIENCE: [&str; 2] = ["--hang-seconds", "600"];

fn command(arguments: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(PATIENCE).args(arguments.split_ascii_whitespace());
    command
}

/// Runs a command to its end.
pub(crate) fn end(mut command: Command) -> std::io::Result<End> {
    let output = command.output()?;
    Ok(End {
        status: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// Runs the program with arguments separated by spaces.
pub(crate) fn run(arguments: &str) -> End {
    end(command(arguments)).expect("the program starts")
}

/// As `run`, without the privileges of root. Returns nothing where that cannot be done: when the
/// tests have none to give up, or others may not execute the program.
pub(crate) fn run_unprivileged(arguments: &str) -> Option<End> {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return None;
    }
    let mut command = command(arguments);
    command.uid(65534).gid(65534);
    match end(command) {
        Ok(end) => Some(end),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(error) => panic!("the program does not start: {error}"),
    }
}

impl End {
    /// Requires that the run found all bytes right. Returns its last line.
    pub(crate) fn passed(&self) -> &str {
        assert_eq!(self.status, Some(0), "{self:#?}");
        assert_eq!(self.out.lines().count(), 1, "{self:#?}");
        assert!(self.out.starts_with("ramfold-torture: ok, "), "{self:#?}");
        self.out.trim_end()
    }
}
