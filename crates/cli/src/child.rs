//! The program's process, between fork and exec.
#![expect(unsafe_code, reason = "what runs there is the caller's to keep safe")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{SigHandler, Signal, signal};
use nix::unistd::execve;

/// Changes to an environment: a variable, and what it is set to.
pub type Changes<'a> = [(&'a str, &'a [u8])];

/// A command that executes `path` with these arguments (the first is the program's name to itself), in
/// the order and with the oddities that this process's environment has, and ignores these signals.
///
/// # Errors
/// When an argument has a zero byte in it, or this process's environment cannot be read.
pub fn command(
    path: &Path,
    arguments: &[impl AsRef<std::ffi::OsStr>],
    changes: &Changes<'_>,
    ignored: Vec<Signal>,
) -> io::Result<Command> {
    let program = CString::new(path.as_os_str().as_bytes())?;
    let arguments = { arguments.iter() }
        .map(|argument| CString::new(argument.as_ref().as_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let environment = { changed(&fs::read("/proc/self/environ")?, changes).into_iter() }
        .map(CString::new)
        .collect::<Result<Vec<_>, _>>()?;
    let mut command = Command::new(path);
    // SAFETY: this process has no other thread yet that could hold a lock of the allocator's, and all
    // of this may be called after fork.
    unsafe {
        command.pre_exec(move || {
            for &number in &ignored {
                // SAFETY: no handler is installed.
                signal(number, SigHandler::SigIgn)?;
            }
            // The standard library would sort the variables.
            Err(execve(&program, &arguments, &environment).unwrap_err().into())
        });
    }
    Ok(command)
}

/// An environment, as the kernel has it, with some variables set: where they are, or at the end.
fn changed(environment: &[u8], changes: &Changes<'_>) -> Vec<Vec<u8>> {
    let assignment = |&(name, value): &(&str, &[u8])| [name.as_bytes(), b"=", value].concat();
    let mut left: Vec<_> = changes.iter().collect();
    let mut entries: Vec<Vec<u8>> = environment
        .split_inclusive(|&byte| byte == 0)
        .map(|entry| {
            let entry = entry.strip_suffix(b"\0").unwrap_or(entry);
            let sets = |change: &&&(&str, &[u8])| {
                entry.strip_prefix(change.0.as_bytes()).is_some_and(|rest| rest.starts_with(b"="))
            };
            match left.iter().position(|change| sets(&change)) {
                Some(place) => assignment(left.remove(place)),
                None => entry.to_vec(),
            }
        })
        .collect();
    entries.extend(left.into_iter().map(assignment));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_keeps_its_order_and_its_oddities() {
        let before = b"Z=1\0A=2\0odd\0Z=3\0B=x\0\0";
        let changes: &Changes<'_> = &[("A", b"new"), ("N", b"7")];
        let after = changed(before, changes).join(&b"|"[..]);
        assert_eq!(String::from_utf8(after).unwrap(), "Z=1|A=new|odd|Z=3|B=x||N=7");
        assert_eq!(changed(b"", &[]), Vec::<Vec<u8>>::new());
    }
}
