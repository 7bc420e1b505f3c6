//! Will the loader take a library into a program that is about to be executed (`LD_PRELOAD`)?
//!
//! The file is looked at as the kernel and the loader will: scripts lead to their interpreters, and the
//! loader of a dynamic program takes the library in unless the program gains privileges.

use core::ffi::CStr;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat};

use crate::Errno;

/// Interpreters of interpreters the kernel follows.
const SCRIPT_DEPTH_MAX: usize = 5;
const LINE_BYTES: usize = 256;
const SEGMENTS_MAX: usize = 32;

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

/// What is known of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Executable {
    /// The loader takes the library in, as far as can be seen; also what cannot be read or is left to the
    /// kernel to judge.
    Open,
    /// Built with AddressSanitizer, whose library (of this version) must come before all others.
    Sanitized(SanitizerName),
    Static,
    Privileged,
    Foreign,
}

impl Executable {
    /// Why the loader takes no library in; `None` where it does.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Executable::Open | Executable::Sanitized(_) => None,
            Executable::Static => Some("it is statically linked"),
            Executable::Privileged => {
                Some("it gains privileges (setuid, setgid or file capabilities)")
            }
            Executable::Foreign => Some("it is built for another processor than ramfold"),
        }
    }

    /// A library that must come before all others.
    pub fn first_library(&self) -> Option<&str> {
        match self {
            Executable::Sanitized(name) => CStr::from_bytes_until_nul(name).ok()?.to_str().ok(),
            _ => None,
        }
    }
}

/// `libasan.so.8`
pub type SanitizerName = [u8; 16];

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    bytes: u64,
}

/// Looks at the file that execveat(2) would execute for these.
///
/// # Errors
/// What open(2) says: then the kernel will say something like it.
pub fn look(folder: impl AsFd, path: &CStr, flags: AtFlags) -> Result<Executable, Errno> {
    let open = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) {
        rustix::io::fcntl_dupfd_cloexec(&folder, 0)?
    } else {
        openat(&folder, path, open, Mode::empty())?
    };
    for _ in 0..SCRIPT_DEPTH_MAX {
        let mut start = [0; LINE_BYTES];
        let length = rustix::io::pread(&file, &mut start[..LINE_BYTES - 1], 0)?;
        match interpreter(&mut start[..length + 1]) {
            Some(interpreter) => file = openat(rustix::fs::CWD, interpreter, open, Mode::empty())?,
            None => return look_at_program(&file, &start[..length]),
        }
    }
    Ok(Executable::Open)
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

fn look_at_program(file: &OwnedFd, start: &[u8]) -> Result<Executable, Errno> {
    let status = fstat(file)?;
    let gains_group = MODE_SETGID | MODE_GROUP_EXECUTE;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if status.st_mode & MODE_SETUID != 0 && status.st_uid != user
        || status.st_mode & gains_group == gains_group && status.st_gid != group
        || user != 0
            && rustix::fs::fgetxattr(file, c"security.capability", &mut [0; 64][..]).is_ok()
    {
        return Ok(Executable::Privileged);
    }
    let Some(header) = start.get(..64).filter(|start| start.starts_with(b"\x7fELF")) else {
        return Ok(Executable::Open);
    };
    if header[4] != ELF_64 || u16_at(header, 18) != Some(MACHINE) {
        return Ok(Executable::Foreign);
    }
    let (offset, size, count) = (u64_at(header, 32), u16_at(header, 54), u16_at(header, 56));
    let (Some(offset), Some(56), Some(count)) = (offset, size, count) else {
        return Ok(Executable::Open);
    };
    let mut text = [0; SEGMENTS_MAX * 56];
    let wanted = (count as usize).min(SEGMENTS_MAX) * 56;
    let read = rustix::io::pread(file, &mut text[..wanted], offset)?;
    let segments = || {
        text[..read].chunks_exact(56).filter_map(|entry| {
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
        .and_then(|dynamic| find_sanitizer(file, dynamic, segments()));
    Ok(sanitizer.map_or(Executable::Open, Executable::Sanitized))
}

/// The library of AddressSanitizer among those that a program needs.
fn find_sanitizer(
    file: &OwnedFd,
    dynamic: Segment,
    mut segments: impl Iterator<Item = Segment>,
) -> Option<SanitizerName> {
    let mut table = [0; 1024];
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
            && (segment.address..segment.address + segment.bytes).contains(&strings)
    };
    let loaded = segments.find(holds)?;
    let strings = strings - loaded.address + loaded.offset;
    entries().filter(|(tag, _)| *tag == DT_NEEDED).find_map(|(_, name)| {
        let mut text = SanitizerName::default();
        let last = text.len() - 1;
        rustix::io::pread(file, &mut text[..last], strings + name).ok()?;
        let end = text.iter().position(|&b| b == 0)?;
        text[end..].fill(0);
        text.starts_with(b"libasan.so.").then_some(text)
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
        look(rustix::fs::CWD, &path, AtFlags::empty())
    }

    fn compile(folder: &Path, name: &str, options: &[&str]) -> std::path::PathBuf {
        let (source, program) = (folder.join("a.c"), folder.join(name));
        fs::write(&source, "int main(void) { return 0; }\n").unwrap();
        let compiled =
            Command::new("cc").args(options).arg(&source).arg("-o").arg(&program).status();
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
        assert_eq!(look_at(&folder.join("none")), Err(Errno::NOENT));
        let script = folder.join("script");
        for (text, expected) in [
            ("#!/bin/sh\n".to_owned(), Executable::Open),
            (format!("#! {} -x\n", fixed.display()), Executable::Static),
            (format!("#!{}", fixed.display()), Executable::Static),
            ("#!\n".to_owned(), Executable::Open),
            ("text".to_owned(), Executable::Open),
            ("\x7fELF".to_owned(), Executable::Open),
            (format!("\x7fELF{}", "\x01".repeat(80)), Executable::Foreign),
        ] {
            fs::write(&script, &text).unwrap();
            assert_eq!(look_at(&script), Ok(expected), "{text:?}");
        }
        // A script that leads to itself.
        fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(look_at(&script), Ok(Executable::Open));
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
