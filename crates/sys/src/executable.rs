//! Whether the loader will load a library into a program that is about to be executed
//! (`LD_PRELOAD`).
//!
//! The file is examined as the kernel and the loader will do it: scripts lead to their
//! interpreters, and the loader of a dynamic program loads the library unless the program gains
//! privileges. Only what the kernel may execute is opened, since opening a FIFO or a device has
//! effects, or waits.

use core::ffi::CStr;

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, openat, statat};

use crate::Errno;
use crate::path::Path;

/// Interpreters of interpreters the kernel follows.
const SCRIPT_DEPTH_MAX: usize = 5;
const LINE_BYTES: usize = 256;
const SEGMENTS_MAX: usize = 32;
const SEGMENT_BYTES: usize = 56;
const SEGMENTS_END: usize = LINE_BYTES + SEGMENTS_MAX * SEGMENT_BYTES;

/// Bytes that [`look`] works in. They are not on the stack, which may be a small one of the
/// program's.
pub const WORK_BYTES: usize = 8192;
/// The start of the file and the program headers leave half of it for the dynamic section.
const _: () = assert!(SEGMENTS_END <= WORK_BYTES / 2);
/// What [`look`] works in. Its content does not matter.
pub type Work = [u8; WORK_BYTES];

const ELF_64: u8 = 2;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const MODE_SETUID: u32 = 0o4000;
const MODE_SETGID: u32 = 0o2000;
const MODE_GROUP_EXECUTE: u32 = 0o10;
const MODE_EXECUTE: u32 = 0o111;

/// What is known of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executable {
    /// The loader will load the library, as far as can be seen. Also files that only the kernel can
    /// judge.
    Open,
    /// Built with AddressSanitizer, whose library (of this name) must be loaded before all others.
    Sanitized(SanitizerName),
    /// It, or its interpreter, cannot be opened.
    Unreadable,
    /// Statically linked.
    Static,
    /// It gains privileges: setuid, setgid, or capabilities of the file.
    Privileged,
    /// Built for another processor.
    OtherProcessor,
}

impl Executable {
    /// Why the loader will not load a library; `None` where it will.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Executable::Open | Executable::Sanitized(_) => None,
            Executable::Unreadable => Some("it cannot be opened for reading"),
            Executable::Static => Some("it is statically linked"),
            Executable::Privileged => {
                Some("it gains privileges (setuid, setgid or file capabilities)")
            }
            Executable::OtherProcessor => Some("it is built for another processor than ramfold"),
        }
    }

    /// The name of a library that must be loaded before all others.
    pub fn first_library(&self) -> Option<&str> {
        match self {
            Executable::Sanitized(name) => CStr::from_bytes_until_nul(name).ok()?.to_str().ok(),
            _ => None,
        }
    }
}

/// `libasan.so.8` (gcc), `libclang_rt.asan-x86_64.so` or `libclang_rt.asan.so` (clang).
pub type SanitizerName = [u8; 64];

/// Parts of the names by which these runtimes check that they are first.
const SANITIZERS: [&[u8]; 2] = [b"libasan.so", b"libclang_rt.asan"];

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Whether there is a file for execveat(2) to execute. Where there is none the kernel will say why.
#[inline(never)]
pub fn is_candidate(folder: impl AsFd, path: &CStr, flags: AtFlags) -> bool {
    // It executes no other kind of file, for root neither.
    statat(folder, path, flags).is_ok_and(|status| {
        FileType::from_raw_mode(status.st_mode) == FileType::RegularFile
            && status.st_mode & MODE_EXECUTE != 0
    })
}

/// Looks at the file that execveat(2) would execute with these arguments.
///
/// # Errors
/// Where the kernel will refuse to execute it: an error like the kernel's.
#[inline(never)]
pub fn look(
    folder: impl AsFd,
    path: &CStr,
    flags: AtFlags,
    work: &mut Work,
) -> Result<Executable, Errno> {
    let folder = folder.as_fd();
    if !is_candidate(folder, path, flags) {
        return Err(Errno::ACCESS);
    }
    let opened = if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
        open_again(folder)
    } else {
        open_file(folder, path, flags)
    };
    let Ok(mut file) = opened else { return Ok(Executable::Unreadable) };
    for _ in 0..SCRIPT_DEPTH_MAX {
        // Another file may have taken its place.
        if !is_candidate(&file, c"", AtFlags::EMPTY_PATH) {
            return Err(Errno::ACCESS);
        }
        let start = &mut work[..LINE_BYTES];
        let length = rustix::io::pread(&file, &mut start[..LINE_BYTES - 1], 0)?;
        match interpreter(&mut start[..length + 1]) {
            Some(interpreter) => {
                if !is_candidate(CWD, interpreter, AtFlags::empty()) {
                    return Err(Errno::ACCESS);
                }
                match open_file(CWD, interpreter, AtFlags::empty()) {
                    Ok(interpreter) => file = interpreter,
                    Err(_) => return Ok(Executable::Unreadable),
                }
            }
            None => return look_at_program(&file, length, work),
        }
    }
    Ok(Executable::Open)
}

/// Opens what was a regular file a moment ago, and does not wait if it is another kind of file by
/// now.
fn open_file(folder: impl AsFd, path: &CStr, flags: AtFlags) -> Result<OwnedFd, Errno> {
    let mut open = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    open.set(OFlags::NOFOLLOW, flags.contains(AtFlags::SYMLINK_NOFOLLOW));
    openat(folder, path, open, Mode::empty())
}

/// Opens an open file for reading, whatever it is open for.
#[inline(never)]
fn open_again(file: impl AsFd) -> Result<OwnedFd, Errno> {
    let open = rustix::fs::fcntl_getfl(&file)?;
    if !open.contains(OFlags::PATH) && open & OFlags::ACCMODE != OFlags::WRONLY {
        return rustix::io::fcntl_dupfd_cloexec(&file, 0);
    }
    let number = file.as_fd().as_raw_fd();
    let path = Path::new(format_args!("/proc/thread-self/fd/{number}"))?;
    open_file(CWD, path.as_c_str(), AtFlags::empty())
}

/// The interpreter that a script's first line names. `start` ends with a byte to spare.
fn interpreter(start: &mut [u8]) -> Option<&CStr> {
    if !start.starts_with(b"#!") {
        return None;
    }
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let from = 2 + start[2..].iter().position(|b| !is_blank(b))?;
    let is_end = |b: &u8| is_blank(b) || matches!(b, b'\n' | 0);
    let to = from + start[from..].iter().position(is_end)?;
    start[to] = 0;
    CStr::from_bytes_with_nul(&start[from..to + 1]).ok().filter(|name| !name.is_empty())
}

/// `work` begins with the first `length` bytes of the file.
#[inline(never)]
fn look_at_program(file: &OwnedFd, length: usize, work: &mut Work) -> Result<Executable, Errno> {
    if gains_privileges(file)? {
        return Ok(Executable::Privileged);
    }
    let (start, work) = work.split_at_mut(LINE_BYTES);
    let (segments, dynamic) = work.split_at_mut(SEGMENTS_END - LINE_BYTES);
    let header = start[..length].get(..64).filter(|start| start.starts_with(b"\x7fELF"));
    let Some(header) = header else {
        return Ok(Executable::Open);
    };
    if header[4] != ELF_64 || u16_at(header, 18) != Some(MACHINE) {
        return Ok(Executable::OtherProcessor);
    }
    let (offset, size, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
    let (Some(offset), Some(56), Some(count)) = (offset, size, count) else {
        return Ok(Executable::Open);
    };
    let wanted = (count as usize).min(SEGMENTS_MAX) * SEGMENT_BYTES;
    let read = rustix::io::pread(file, &mut segments[..wanted], offset)?;
    let segments = || {
        segments[..read].chunks_exact(SEGMENT_BYTES).filter_map(|entry| {
            Some(Segment {
                kind: u32_at(entry, 0)?,
                offset: u64_at(entry, 8)?,
                address: u64_at(entry, 16)?,
                bytes: u64_at(entry, 32)?,
            })
        })
    };
    if !segments().any(|segment| segment.kind == PT_INTERP) {
        return Ok(Executable::Static);
    }
    let sanitizer = segments()
        .find(|segment| segment.kind == PT_DYNAMIC)
        .and_then(|segment| find_sanitizer(file, segment, segments(), dynamic));
    Ok(sanitizer.map_or(Executable::Open, Executable::Sanitized))
}

#[inline(never)]
fn gains_privileges(file: &OwnedFd) -> Result<bool, Errno> {
    let status = fstat(file)?;
    let gains_group = MODE_SETGID | MODE_GROUP_EXECUTE;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Ok(status.st_mode & MODE_SETUID != 0 && status.st_uid != user
        || status.st_mode & gains_group == gains_group && status.st_gid != group
        || user != 0
            && rustix::fs::fgetxattr(file, c"security.capability", &mut [0; 64][..]).is_ok())
}

/// The library of AddressSanitizer among those that a program needs.
fn find_sanitizer(
    file: &OwnedFd,
    dynamic: Segment,
    mut segments: impl Iterator<Item = Segment>,
    table: &mut [u8],
) -> Option<SanitizerName> {
    let wanted = (dynamic.bytes as usize).min(table.len());
    let read = rustix::io::pread(file, &mut table[..wanted], dynamic.offset).ok()?;
    let entries = || {
        table[..read]
            .chunks_exact(16)
            .filter_map(|entry| Some((u64_at(entry, 0)?, u64_at(entry, 8)?)))
    };
    let (_, strings) = entries().find(|(tag, _)| *tag == DT_STRTAB)?;
    let holds = |segment: &Segment| {
        segment.kind == PT_LOAD
            && strings.checked_sub(segment.address).is_some_and(|offset| offset < segment.bytes)
    };
    let loaded = segments.find(holds)?;
    let strings = (strings - loaded.address).checked_add(loaded.offset)?;
    entries().filter(|(tag, _)| *tag == DT_NEEDED).find_map(|(_, name)| {
        let mut text: SanitizerName = [0; _];
        rustix::io::pread(file, &mut text[..], strings.checked_add(name)?).ok()?;
        let end = text.iter().position(|&b| b == 0)?;
        text[end..].fill(0);
        let is_named = |name: &[u8]| text.windows(name.len()).any(|part| part == name);
        SANITIZERS.into_iter().any(is_named).then_some(text)
    })
}

fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn look_at(path: &Path) -> Result<Executable, Errno> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        look(CWD, &path, AtFlags::empty(), &mut [0; _])
    }

    fn write_script(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn compile(folder: &Path, name: &str, options: &[&str]) -> std::path::PathBuf {
        let (source, program) = (folder.join("a.c"), folder.join(name));
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let compiler = if name.starts_with("clang") { "clang" } else { "cc" };
        let compiled =
            Command::new(compiler).args(options).arg(&source).arg("-o").arg(&program).status();
        assert!(compiled.unwrap().success(), "{options:?}");
        program
    }

    #[test]
    fn programs_and_scripts_are_what_their_files_say() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(look_at(&compile(folder, "dynamic", &[])), Ok(Executable::Open));
        let fixed = compile(folder, "static", &["-static"]);
        assert_eq!(look_at(&fixed), Ok(Executable::Static));
        let sanitized = look_at(&compile(folder, "sanitized", &["-fsanitize=address"])).unwrap();
        assert!(sanitized.first_library().unwrap().starts_with("libasan.so."), "{sanitized:?}");
        assert!(look_at(&folder.join("none")).is_err());
        let script = folder.join("script");
        for (text, expected) in [
            ("#!/bin/sh\n".to_owned(), Executable::Open),
            (format!("#! {} -x\n", fixed.display()), Executable::Static),
            (format!("#!{}", fixed.display()), Executable::Static),
            ("#!\n".to_owned(), Executable::Open),
            ("text".to_owned(), Executable::Open),
            ("\x7fELF".to_owned(), Executable::Open),
            (format!("\x7fELF{}", "\x01".repeat(80)), Executable::OtherProcessor),
        ] {
            write_script(&script, &text);
            assert_eq!(look_at(&script), Ok(expected), "{text:?}");
        }
        // A script that leads to itself.
        write_script(&script, &format!("#!{}\n", script.display()));
        assert_eq!(look_at(&script), Ok(Executable::Open));
    }

    #[test]
    fn clangs_sanitizer_comes_first_too() {
        if Command::new("clang").arg("--version").output().is_err() {
            eprintln!("skipped: there is no clang");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let shared = ["-fsanitize=address", "-shared-libasan"];
        let sanitized = look_at(&compile(folder.path(), "clang-shared", &shared)).unwrap();
        let first = sanitized.first_library().unwrap();
        assert!(first.starts_with("libclang_rt.asan"), "{first}");
        let within = compile(folder.path(), "clang-static", &["-fsanitize=address"]);
        assert_eq!(look_at(&within), Ok(Executable::Open));
    }

    #[test]
    fn a_sanitizer_is_found_by_its_name_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for (name, is_first) in [
            ("libclang_rt.asan.so", true),
            ("libclang_rt.asan-x86_64.so", true),
            ("libasan.so.6", true),
            ("libclang_rt.hwasan-x86_64.so", false),
            ("libclang_rt.ubsan_standalone-x86_64.so", false),
            ("libtsan.so.2", false),
        ] {
            let library = folder.join(name);
            let soname = format!("-Wl,-soname,{name}");
            compile(folder, name, &["-shared", "-fPIC", &soname]);
            let options = ["-Wl,--no-as-needed", library.to_str().unwrap()];
            let found = look_at(&compile(folder, "program", &options)).unwrap();
            assert_eq!(found.first_library(), is_first.then_some(name));
        }
    }

    /// What is not a file that may be executed is not opened: that would wait for a writer,
    /// forever.
    #[test]
    fn only_what_the_kernel_may_execute_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let fifo = folder.join("fifo");
        assert!(Command::new("mkfifo").args(["-m", "755"]).arg(&fifo).status().unwrap().success());
        assert!(look_at(&fifo).is_err());
        let by_script = folder.join("script");
        write_script(&by_script, &format!("#!{}\n", fifo.display()));
        assert!(look_at(&by_script).is_err());
        for other in [folder, Path::new("/dev/null"), Path::new("/etc/passwd")] {
            assert!(look_at(other).is_err(), "{}", other.display());
        }
        // As fexecve(3) has it, of a descriptor that cannot be read.
        let file = openat(CWD, fifo.as_os_str().as_bytes(), OFlags::PATH, Mode::empty()).unwrap();
        assert!(look(&file, c"", AtFlags::EMPTY_PATH, &mut [0; _]).is_err());
        let program = compile(folder, "static", &["-static"]);
        let name = CString::new(program.as_os_str().as_bytes()).unwrap();
        for open in [OFlags::PATH, OFlags::RDONLY, OFlags::WRONLY] {
            let file = openat(CWD, &*name, open, Mode::empty()).unwrap();
            let found = look(&file, c"", AtFlags::EMPTY_PATH, &mut [0; _]);
            assert_eq!(found, Ok(Executable::Static), "{open:?}");
        }
        let link = folder.join("link");
        std::os::unix::fs::symlink(&program, &link).unwrap();
        assert_eq!(look_at(&link), Ok(Executable::Static));
        let link = CString::new(link.as_os_str().as_bytes()).unwrap();
        assert!(look(CWD, &link, AtFlags::SYMLINK_NOFOLLOW, &mut [0; _]).is_err());
    }

    #[test]
    fn what_cannot_be_read_is_not_refused() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path(), "program", &[]);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o111)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let expected = if is_root { Executable::Open } else { Executable::Unreadable };
        assert_eq!(look_at(&program), Ok(expected));
    }

    #[test]
    fn one_gains_nothing_by_ones_own_setuid_program() {
        let folder = tempfile::tempdir().unwrap();
        let program = compile(folder.path(), "program", &[]);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(look_at(&program), Ok(Executable::Open));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
            assert_eq!(look_at(&program), Ok(Executable::Privileged));
        }
    }
}
