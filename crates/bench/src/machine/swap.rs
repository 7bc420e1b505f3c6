//! Swap areas: the header, swapon and swapoff.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::interrupt;
use super::journal::{Journal, Setting, Undertaking};
use super::proc::read_text;
use crate::content::random::mix;

/// The highest priority swapon(8) takes: the kernel fills areas in the order of
/// their priority, so ours is used even where the machine has swap of its own.
const PRIORITY: &str = "32767";

// Layout of a version 1 swap area (Linux, include/linux/swap.h, union
// swap_header): 1,024 bytes for a boot block, then version, last_page,
// nr_badpages, uuid, volume name; the magic word ends the first page.
const INFO_OFFSET: usize = 1024;
const UUID_OFFSET: usize = INFO_OFFSET + 12;
const LABEL_OFFSET: usize = UUID_OFFSET + 16;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";
const LABEL: &[u8; 13] = b"ramfold-bench";

/// A number that no other swap area has.
pub(crate) fn fresh_uuid() -> u128 {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let process = u64::from(std::process::id()) << 32;
    u128::from(mix(clock)) << 64 | u128::from(mix(clock ^ process)) | 1
}

pub(super) fn header(area_bytes: u64, uuid: u128) -> Result<Vec<u8>> {
    let page = rustix::param::page_size();
    let last_page = (area_bytes / page as u64)
        .checked_sub(1)
        .and_then(|last| u32::try_from(last).ok())
        .filter(|&last| last >= 10)
        .with_context(|| format!("{area_bytes} bytes make no swap area"))?;
    let mut header = vec![0; page];
    header[INFO_OFFSET..][..4].copy_from_slice(&1u32.to_ne_bytes());
    header[INFO_OFFSET + 4..][..4].copy_from_slice(&last_page.to_ne_bytes());
    header[UUID_OFFSET..][..16].copy_from_slice(&uuid.to_be_bytes());
    header[LABEL_OFFSET..][..LABEL.len()].copy_from_slice(LABEL);
    header[page - MAGIC.len()..].copy_from_slice(MAGIC);
    Ok(header)
}

/// The UUID field of a swap area, `None` if the file does not exist. Zero where
/// nothing was written yet.
pub(crate) fn header_uuid(path: &Path) -> Result<Option<u128>> {
    let describe = || format!("cannot read the swap header of {}", path.display());
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(describe)?,
    };
    let mut uuid = [0; 16];
    file.read_exact_at(&mut uuid, UUID_OFFSET as u64).with_context(describe)?;
    Ok(Some(u128::from_be_bytes(uuid)))
}

/// Writes a swap file full of zeros (the kernel refuses files with holes).
pub(crate) fn create_file(path: &Path, area_bytes: u64, uuid: u128) -> Result<()> {
    let describe = || format!("cannot write the swap file {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(describe)?;
    file.write_all(&header(area_bytes, uuid)?).with_context(describe)?;
    let zeros = vec![0; 1 << 20];
    let mut left = area_bytes - rustix::param::page_size() as u64;
    while left > 0 {
        let part = left.min(zeros.len() as u64) as usize;
        file.write_all(&zeros[..part]).with_context(describe)?;
        left -= part as u64;
        interrupt::check()?;
    }
    file.sync_all().with_context(describe)
}

/// Swaps to `path`, which carries our header with `uuid`.
pub(crate) fn swapon(journal: &Journal, path: &Path, uuid: u128) -> Result<Undertaking> {
    let undertaking = journal.undertake(Setting::Swap { path: path.to_owned(), uuid })?;
    let arguments = [OsStr::new("-p"), OsStr::new(PRIORITY), path.as_os_str()];
    system_command("swapon", &arguments).with_context(|| {
        format!(
            "{} cannot be swapped to; a swap file needs a local ext4 or xfs file system \
             (name a folder on one with --scratch)",
            path.display()
        )
    })?;
    Ok(undertaking)
}

pub(crate) fn swapoff(path: &Path) -> Result<()> {
    system_command("swapoff", &[path.as_os_str()])
}

/// Runs a command of util-linux, which is also found where PATH lacks sbin.
fn system_command(name: &str, arguments: &[&OsStr]) -> Result<()> {
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(name));
    let output = Command::new(&found)
        .args(arguments)
        // swapoff(2) gives up on a signal: keep the terminal's ^C away from it.
        .process_group(0)
        .output()
        .with_context(|| format!("cannot run {name} (Debian package mount)"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Devices and files that are swapped to now.
pub(crate) fn active_swaps() -> Result<Vec<PathBuf>> {
    Ok(parse_swaps(&read_text("/proc/swaps")?))
}

fn parse_swaps(text: &str) -> Vec<PathBuf> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next())
        // The kernel writes blanks in names as octal escapes.
        .map(|name| PathBuf::from(name.replace("\\040", " ").replace("\\011", "\t")))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn header_is_what_the_kernel_reads() {
        let page = rustix::param::page_size();
        let uuid = fresh_uuid();
        let bytes = header(100 * page as u64 + 17, uuid).unwrap();
        assert_eq!(bytes.len(), page);
        assert_eq!(&bytes[page - 10..], b"SWAPSPACE2");
        assert_eq!(bytes[1028..1032], 99u32.to_ne_bytes());
        assert!(header(page as u64, uuid).is_err());

        let path = std::env::temp_dir().join(format!("ramfold-swap-{}", std::process::id()));
        create_file(&path, 20 * page as u64, uuid).unwrap();
        assert_eq!(header_uuid(&path).unwrap(), Some(uuid));
        assert_eq!(fs::metadata(&path).unwrap().len(), 20 * page as u64);
        fs::remove_file(&path).unwrap();
        assert_eq!(header_uuid(&path).unwrap(), None);
    }

    #[test]
    fn names_of_swaps_are_read() {
        let text =
            "Filename Type Size Used Priority\n/dev/zram1 partition 1 2 3\n/a\\040b file 1 2 3\n";
        assert_eq!(parse_swaps(text), [PathBuf::from("/dev/zram1"), PathBuf::from("/a b")]);
    }
}
