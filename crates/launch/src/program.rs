//! The program to be run: where it is, and whether an agent can get into it.

use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ramfold_sys::executable::{self, Executable};
use rustix::fs::{Access, AtFlags, CWD, access};

use crate::error::StartError;

/// Where programs are looked for that are named without a folder, where `PATH` is not set.
const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Finds a program as a shell would, with `search` as `PATH`.
///
/// # Errors
/// [`StartError::NotFound`] and [`StartError::NotExecutable`].
pub(crate) fn find(program: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, StartError> {
    if program.as_bytes().contains(&b'/') {
        let path = PathBuf::from(program);
        return match fs::metadata(&path) {
            Err(_) => Err(StartError::NotFound { program: program.to_owned(), in_path: false }),
            Ok(metadata) if is_executable(&path, &metadata) => Ok(path),
            Ok(_) => Err(StartError::NotExecutable { path }),
        };
    }
    let mut unusable = None;
    for folder in std::env::split_paths(search.unwrap_or(OsStr::new(USUAL_PATH))) {
        let path = folder.join(program);
        match fs::metadata(&path) {
            Ok(metadata) if is_executable(&path, &metadata) => return Ok(path),
            Ok(metadata) if metadata.is_file() => unusable = unusable.or(Some(path)),
            _ => {}
        }
    }
    Err(unusable.map_or_else(
        || StartError::NotFound { program: program.to_owned(), in_path: true },
        |path| StartError::NotExecutable { path },
    ))
}

fn is_executable(path: &Path, metadata: &fs::Metadata) -> bool {
    metadata.is_file() && access(path, Access::EXEC_OK).is_ok()
}

/// Will the loader take the agent into this program? `#!/usr/bin/env python3` runs python3, which
/// is looked for as [`find`] does, not env alone. A file that cannot be read is left to the kernel
/// to judge.
pub(crate) fn look(path: &Path, search: Option<&OsStr>) -> Executable {
    let mut start = [0; 256];
    let script = File::open(path).and_then(|mut file| file.read(&mut start));
    let by_env = script.ok().and_then(|length| program_of_env(&start[..length], search));
    let path = by_env.as_deref().unwrap_or(path);
    CString::new(path.as_os_str().as_bytes())
        .ok()
        .and_then(|path| executable::look(CWD, &path, AtFlags::empty(), &mut [0; _]).ok())
        .filter(|executable| *executable != Executable::Unreadable)
        .unwrap_or(Executable::Open)
}

fn program_of_env(start: &[u8], search: Option<&OsStr>) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let mut words = line.split(|b| b.is_ascii_whitespace()).filter(|word| !word.is_empty());
    if Path::new(OsStr::from_bytes(words.next()?)).file_name() != Some(OsStr::new("env")) {
        return None;
    }
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(name), search).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write_script(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn found(program: &str) -> Result<PathBuf, StartError> {
        find(OsStr::new(program), std::env::var_os("PATH").as_deref())
    }

    fn seen(path: &Path) -> Executable {
        look(path, std::env::var_os("PATH").as_deref())
    }

    #[test]
    fn programs_are_found_like_a_shell_finds_them() {
        assert!(found("sh").unwrap().ends_with("sh"));
        assert!(find(OsStr::new("sh"), None).unwrap().ends_with("sh"));
        for (program, searched) in [("no-such-program-anywhere", true), ("/no/such", false)] {
            let missing = found(program).unwrap_err();
            let is_right =
                matches!(missing, StartError::NotFound { in_path, .. } if in_path == searched);
            assert!(is_right, "{program}: {missing}");
        }
        let refused = found("/etc/passwd").unwrap_err();
        assert!(matches!(refused, StartError::NotExecutable { .. }), "{refused}");
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        assert_eq!(seen(&found("sh").unwrap()), Executable::Open);
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
            assert_eq!(seen(&script), Executable::Static, "{line}");
        }
        write_script(&script, "#!/usr/bin/env no-such-program\n");
        assert_eq!(seen(&script), Executable::Open);
    }
}
