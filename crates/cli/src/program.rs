//! The program to be run: where it is, and whether an agent can get into it.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use ramfold_sys::executable::{self, Executable};
use rustix::fs::{AtFlags, CWD};

/// A program that was not found or cannot be run: with the exit status that says so.
#[derive(Debug, thiserror::Error)]
pub enum NotRunnable {
    #[error("{program:?} was not found{}", .hint)]
    NotFound { program: OsString, hint: &'static str },
    #[error("{} is not executable", .0.display())]
    NotExecutable(PathBuf),
}

impl NotRunnable {
    pub fn exit_status(&self) -> i32 {
        match self {
            NotRunnable::NotFound { .. } => 127,
            NotRunnable::NotExecutable(_) => 126,
        }
    }
}

/// Finds a program as a shell would.
///
/// # Errors
/// [`NotRunnable`].
pub fn find(program: &OsStr) -> Result<PathBuf, NotRunnable> {
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match fs::metadata(&path) {
            Err(_) => Err(NotRunnable::NotFound { program: program.to_owned(), hint: "" }),
            Ok(metadata) if is_executable(&path, &metadata) => Ok(path),
            Ok(_) => Err(NotRunnable::NotExecutable(path)),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut unusable = None;
    for folder in std::env::split_paths(&search) {
        let path = folder.join(program);
        match fs::metadata(&path) {
            Ok(metadata) if is_executable(&path, &metadata) => return Ok(path),
            Ok(metadata) if metadata.is_file() => unusable = unusable.or(Some(path)),
            _ => {}
        }
    }
    Err(unusable.map_or_else(
        || NotRunnable::NotFound { program: program.to_owned(), hint: " in PATH" },
        NotRunnable::NotExecutable,
    ))
}

fn is_executable(path: &Path, metadata: &fs::Metadata) -> bool {
    metadata.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Will the loader take the agent into this program? `#!/usr/bin/env python3` runs python3, not env
/// alone. A file that cannot be read is left to the kernel to judge.
pub fn look(path: &Path) -> Executable {
    let mut start = [0; 256];
    let script = File::open(path).and_then(|mut file| file.read(&mut start));
    let by_env = script.ok().and_then(|length| program_of_env(&start[..length]));
    let path = by_env.as_deref().unwrap_or(path);
    CString::new(path.as_os_str().as_bytes())
        .ok()
        .and_then(|path| executable::look(CWD, &path, AtFlags::empty(), &mut [0; _]).ok())
        .filter(|executable| *executable != Executable::Unreadable)
        .unwrap_or(Executable::Open)
}

fn program_of_env(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    if Path::new(OsStr::from_bytes(words.next()?)).file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(name)).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write_script(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn programs_are_found_like_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let missing = find(OsStr::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(missing.exit_status(), 127);
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().exit_status(), 126);
        assert_eq!(find(OsStr::new("/no/such")).unwrap_err().exit_status(), 127);
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        assert_eq!(look(&find(OsStr::new("sh")).unwrap()), Executable::Open);
        let folder = tempfile::tempdir().unwrap();
        let (program, script) = (folder.path().join("program"), folder.path().join("script"));
        fs::write(folder.path().join("a.c"), "int main(void) { return 0; }\n").unwrap();
        let compiled = std::process::Command::new("cc")
            .arg("-static")
            .arg(folder.path().join("a.c"))
            .arg("-o")
            .arg(&program)
            .status();
        assert!(compiled.unwrap().success());
        for line in ["#!/usr/bin/env -S PROGRAM -e", "#!/usr/bin/env A=b PROGRAM", "#! PROGRAM"] {
            write_script(&script, &line.replace("PROGRAM", program.to_str().unwrap()));
            assert_eq!(look(&script), Executable::Static, "{line}");
        }
        write_script(&script, "#!/usr/bin/env no-such-program\n");
        assert_eq!(look(&script), Executable::Open);
    }
}
