//! The program to be run: where it is, and whether an agent can get into it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access, getegid, geteuid};
use object::elf::{FileHeader32, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};

/// Interpreters of interpreters the kernel follows.
const SCRIPT_DEPTH_MAX: usize = 5;

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

/// Why the agent will not be loaded into a program.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    #[error("{} is statically linked: ramfold cannot load its library into a static program", .0.display())]
    Static(PathBuf),
    #[error(
        "{} gains privileges when it runs (setuid, setgid or file capabilities): the loader takes nothing from the caller then",
        .0.display()
    )]
    Privileged(PathBuf),
    #[error("{} is built for another processor than ramfold", .0.display())]
    Foreign(PathBuf),
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

/// Will the loader take the agent into this program? Follows scripts to their interpreters. A file
/// that cannot be read is left to the kernel to judge.
///
/// # Errors
/// [`Closed`], when it is known that it will not.
pub fn is_open(path: &Path) -> Result<(), Closed> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPT_DEPTH_MAX {
        let mut start = [0; 256];
        let Ok(length) = File::open(&path).and_then(|mut file| file.read(&mut start)) else {
            break;
        };
        match script_interpreter(&start[..length]) {
            Some(interpreter) => path = find_interpreter(interpreter, &start[..length]),
            None => break,
        }
    }
    if gains_privileges(&path) {
        return Err(Closed::Privileged(path));
    }
    let Ok(file) = File::open(&path) else { return Ok(()) };
    // Reads what is asked for alone: a program can be larger than the memory it is to run in.
    let content = ReadCache::new(file);
    match has_loader(&content) {
        Some(true) => Ok(()),
        Some(false) => Err(Closed::Static(path)),
        None if content.read_bytes_at(0, 4) == Ok(b"\x7fELF") => Err(Closed::Foreign(path)),
        // Something that only the kernel (binfmt_misc) or execvp's fallback to sh knows to run.
        None => Ok(()),
    }
}

fn script_interpreter(start: &[u8]) -> Option<&OsStr> {
    let line = start.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
    let word = line.trim_ascii().split(|b| b.is_ascii_whitespace()).next()?;
    (!word.is_empty()).then(|| OsStr::from_bytes(word))
}

/// `#!/usr/bin/env python3` runs python3, not env alone.
fn find_interpreter(interpreter: &OsStr, start: &[u8]) -> PathBuf {
    let path = PathBuf::from(interpreter);
    if path.file_name() != Some(OsStr::new("env")) {
        return path;
    }
    let line = start.split(|&b| b == b'\n').next().unwrap_or_default();
    line.split(|b| b.is_ascii_whitespace())
        .skip(1)
        .find(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&b'='))
        .and_then(|word| find(OsStr::from_bytes(word)).ok())
        .unwrap_or(path)
}

fn gains_privileges(path: &Path) -> bool {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    let Ok(metadata) = fs::metadata(path) else { return false };
    (metadata.mode() & SETUID != 0 && metadata.uid() != geteuid().as_raw())
        || (metadata.mode() & SETGID != 0 && metadata.gid() != getegid().as_raw())
        || (!geteuid().is_root() && has_file_capabilities(path))
}

fn has_file_capabilities(path: &Path) -> bool {
    let mut value = [0u8; 64];
    rustix::fs::getxattr(path, "security.capability", &mut value).is_ok()
}

/// `Some(false)` for a static program, `None` for what is no program of this processor.
fn has_loader<'data, R: ReadRef<'data>>(content: R) -> Option<bool> {
    fn interpreted<'data, H, R>(content: R) -> Option<bool>
    where
        H: FileHeader<Endian = object::Endianness>,
        R: ReadRef<'data>,
    {
        let header = H::parse(content).ok()?;
        let endian = header.endian().ok()?;
        let native = if cfg!(target_arch = "x86_64") {
            object::elf::EM_X86_64
        } else {
            object::elf::EM_AARCH64
        };
        if header.e_machine(endian) != native {
            return None;
        }
        let segments = header.program_headers(endian, content).ok()?;
        Some(segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP))
    }
    interpreted::<FileHeader64<object::Endianness>, R>(content)
        .or_else(|| interpreted::<FileHeader32<object::Endianness>, R>(content).and(None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn programs_are_found_like_a_shell_finds_them() {
        assert!(find(OsStr::new("sh")).unwrap().ends_with("sh"));
        let missing = find(OsStr::new("no-such-program-anywhere")).unwrap_err();
        assert_eq!(missing.exit_status(), 127);
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().exit_status(), 126);
        assert_eq!(find(OsStr::new("/no/such")).unwrap_err().exit_status(), 127);
    }

    #[test]
    fn a_dynamic_program_and_its_scripts_are_open() {
        assert_eq!(is_open(&find(OsStr::new("sh")).unwrap()), Ok(()));
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/usr/bin/env -S sh -e\necho\n").unwrap();
        assert_eq!(is_open(&script), Ok(()));
        assert!(
            find_interpreter(OsStr::new("/usr/bin/env"), b"#!/usr/bin/env -i sh x").ends_with("sh")
        );
    }

    #[test]
    fn a_setuid_program_of_somebody_else_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        fs::copy(find(OsStr::new("sh")).unwrap(), &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
        // One's own setuid program gains nothing.
        assert_eq!(is_open(&copy), Ok(()));
        if geteuid().is_root() {
            std::os::unix::fs::chown(&copy, Some(65534), None).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(is_open(&copy), Err(Closed::Privileged(copy)));
        }
    }

    #[test]
    fn text_that_is_no_script_is_left_to_the_kernel() {
        assert_eq!(script_interpreter(b"#!\n"), None);
        assert_eq!(script_interpreter(b"echo"), None);
        assert_eq!(has_loader(&b"\x7fELF broken"[..]), None);
    }
}
