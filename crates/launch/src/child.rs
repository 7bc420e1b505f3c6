//! The program's process, between fork and exec.
#![expect(unsafe_code, reason = "between fork and exec only system calls may be made")]

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;

use libc::{SIG_ERR, SIG_IGN, c_char};

use crate::error::StartError;

/// A command that executes `path` with these arguments, of which the first is the program's name to
/// itself, and this environment, and ignores these signals from the start.
///
/// # Errors
/// [`StartError::ZeroByte`].
pub(crate) fn command(
    path: &Path,
    arguments: Vec<OsString>,
    environment: Vec<OsString>,
    ignored: Vec<i32>,
) -> Result<Command, StartError> {
    let image = Image::new(path, arguments, environment)?;
    let mut command = Command::new(path);
    // SAFETY: other threads of this process may hold the allocator's locks when it forks. What runs
    // in the child makes system calls only: it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            for &number in &ignored {
                // SAFETY: no handler is installed.
                if libc::signal(number, SIG_IGN) == SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            // The standard library would sort the variables.
            Err(image.execute())
        });
    }
    Ok(command)
}

/// What execve(2) is to be called with, laid out before the fork.
struct Image {
    path: CString,
    arguments: Strings,
    environment: Strings,
}

/// Strings, and the pointers to them, the last of which is null.
struct Strings {
    pointers: Vec<*const c_char>,
    _strings: Vec<CString>,
}

// SAFETY: the pointers lead to memory of the strings, which are here too and do not change.
unsafe impl Send for Strings {}
// SAFETY: as above.
unsafe impl Sync for Strings {}

impl Strings {
    fn new(strings: Vec<CString>) -> Strings {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Strings { pointers, _strings: strings }
    }
}

impl Image {
    fn new(
        path: &Path,
        arguments: Vec<OsString>,
        environment: Vec<OsString>,
    ) -> Result<Image, StartError> {
        let string = |part: OsString| {
            CString::new(part.into_vec()).map_err(|error| StartError::ZeroByte {
                program: path.as_os_str().to_owned(),
                part: OsString::from_vec(error.into_vec()),
            })
        };
        let strings = |parts: Vec<OsString>| {
            parts.into_iter().map(string).collect::<Result<_, _>>().map(Strings::new)
        };
        Ok(Image {
            path: string(path.as_os_str().to_owned())?,
            arguments: strings(arguments)?,
            environment: strings(environment)?,
        })
    }

    /// Executes the program; returns only where that fails. Makes one system call.
    fn execute(&self) -> io::Error {
        // SAFETY: the strings end with a zero byte, and the lists with a null pointer.
        unsafe {
            libc::execve(
                self.path.as_ptr(),
                self.arguments.pointers.as_ptr(),
                self.environment.pointers.as_ptr(),
            );
        }
        io::Error::last_os_error()
    }
}
