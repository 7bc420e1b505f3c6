//! Swap areas: the header, swapon and swapoff, zram devices, zswap's parameters.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::journal::{Journal, Setting, Undertaking};
use crate::machine::{self, read_text, write_text};
use crate::measure::Gauge;
use crate::random::mix;

pub const ZRAM_HOT_ADD: &str = "/sys/class/zram-control/hot_add";
pub const ZRAM_HOT_REMOVE: &str = "/sys/class/zram-control/hot_remove";
/// Pages read at once around the one wanted from swap, as a power of two.
pub const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
pub const ZSWAP_PARAMETERS: &str = "/sys/module/zswap/parameters";

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

pub fn zram_device(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{number}"))
}

pub fn zram_block(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}"))
}

pub fn zswap_parameter(name: &str) -> PathBuf {
    Path::new(ZSWAP_PARAMETERS).join(name)
}

/// A number that no other swap area has.
pub fn fresh_uuid() -> u128 {
    let clock = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64);
    let process = u64::from(std::process::id()) << 32;
    u128::from(mix(clock)) << 64 | u128::from(mix(clock ^ process)) | 1
}

fn header(area_bytes: u64, uuid: u128) -> Result<Vec<u8>> {
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
pub fn header_uuid(path: &Path) -> Result<Option<u128>> {
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
pub fn create_file(path: &Path, area_bytes: u64, uuid: u128) -> Result<()> {
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
        crate::interrupt::check()?;
    }
    file.sync_all().with_context(describe)
}

/// Swaps to `path`, which carries our header with `uuid`.
pub fn swapon(journal: &Journal, path: &Path, uuid: u128) -> Result<Undertaking> {
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

pub fn swapoff(path: &Path) -> Result<()> {
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

/// A zram device of ours that is swapped to.
pub struct ZramSwap {
    number: u32,
    // Dropped in this order.
    swap: Option<Undertaking>,
    device: Option<Undertaking>,
}

impl ZramSwap {
    /// Makes a device of `area_bytes` with the codec named `codec` and swaps to it.
    pub fn create(journal: &Journal, codec: &str, area_bytes: u64) -> Result<Self> {
        let uuid = fresh_uuid();
        let (number, device) = claim_zram(journal, uuid)?;
        let mut zram = Self { number, swap: None, device: Some(device) };
        let (node, block) = (zram_device(number), zram_block(number));
        write_text(block.join("comp_algorithm"), codec)
            .with_context(|| format!("this kernel's zram does not know the codec {codec}"))?;
        write_text(block.join("disksize"), &area_bytes.to_string())?;
        let start = Instant::now();
        while !node.exists() {
            if start.elapsed() > Duration::from_secs(5) {
                bail!("{} does not appear: is /dev a devtmpfs here?", node.display());
            }
            sleep(Duration::from_millis(5));
        }
        let mut file = OpenOptions::new()
            .write(true)
            .open(&node)
            .with_context(|| format!("cannot open {}", node.display()))?;
        file.write_all(&header(area_bytes, uuid)?)
            .and_then(|()| file.sync_all())
            .with_context(|| format!("cannot write {}", node.display()))?;
        drop(file);
        zram.swap = Some(swapon(journal, &node, uuid)?);
        Ok(zram)
    }

    /// The most memory the device's pool took, in bytes: `mem_used_max` of
    /// mm_stat. The device's table (24 bytes a page of its size) is not in it.
    pub fn pool_bytes_peak(&self) -> Result<u64> {
        mm_stat(self.number, 4)
    }

    /// The memory the pool takes now: `mem_used_total`.
    pub fn pool_gauge(&self) -> Gauge {
        let number = self.number;
        Box::new(move || mm_stat(number, 2))
    }

    /// The codec that the device says it uses.
    pub fn codec(&self) -> Result<String> {
        let path = zram_block(self.number).join("comp_algorithm");
        let text = read_text(&path)?;
        let codec = machine::chosen(&text).map(str::to_owned);
        codec.with_context(|| format!("{}: '{text}' has no choice", path.display()))
    }

    /// Takes swap and device back.
    pub fn finish(mut self) -> Result<()> {
        self.swap.take().map_or(Ok(()), Undertaking::finish)?;
        self.device.take().map_or(Ok(()), Undertaking::finish)
    }
}

/// A column of a device's mm_stat, the first being 0.
fn mm_stat(number: u32, column: usize) -> Result<u64> {
    let path = zram_block(number).join("mm_stat");
    let text = read_text(&path)?;
    text.split_ascii_whitespace()
        .nth(column)
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("{}: '{text}' has no column {}", path.display(), column + 1))
}

/// A device of our own, or an idle one where none can be added.
fn claim_zram(journal: &Journal, uuid: u128) -> Result<(u32, Undertaking)> {
    // Reading hot_add makes a device. A kill between this line and the next
    // leaves an idle device behind, which holds no memory.
    let (number, hot_added) = match fs::read_to_string(ZRAM_HOT_ADD) {
        Ok(number) => {
            (number.trim().parse().with_context(|| format!("hot_add gave '{number}'"))?, true)
        }
        Err(error) => {
            let idle = idle_zram().context("no idle zram device")?;
            (
                idle.with_context(|| format!("{ZRAM_HOT_ADD}: {error}; no zram device is idle"))?,
                false,
            )
        }
    };
    Ok((number, journal.undertake(Setting::Zram { number, hot_added, uuid })?))
}

fn idle_zram() -> Result<Option<u32>> {
    let swaps = machine::active_swaps()?;
    for entry in fs::read_dir("/sys/block").context("cannot list /sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("zram")?.parse().ok());
        if let Some(number) = number
            && read_text(zram_block(number).join("initstate"))? == "0"
            && !swaps.contains(&zram_device(number))
        {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Sets a kernel knob until the undertaking ends; `None` if it has the value
/// already.
pub fn set_knob(journal: &Journal, path: &Path, value: &str) -> Result<Option<Undertaking>> {
    let before = read_text(path)?;
    if before == value {
        return Ok(None);
    }
    let undertaking = journal.undertake(Setting::Knob {
        path: path.to_owned(),
        before,
        ours: value.to_owned(),
    })?;
    write_text(path, value)?;
    Ok(Some(undertaking))
}

/// Keeps zswap from standing in front of another peer's swap.
pub fn without_zswap(journal: &Journal) -> Result<Option<Undertaking>> {
    let enabled = zswap_parameter("enabled");
    if enabled.exists() { set_knob(journal, &enabled, "N") } else { Ok(None) }
}

#[cfg(test)]
mod tests {
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
}
