//! Disks: which one a file lies on, and what a cgroup reads of it.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::Cgroup;
use crate::machine::proc::{read_text, write_text};

/// A disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl Device {
    /// The disk that a file lies on, of which a partition is a part.
    pub(crate) fn of(path: &Path) -> Result<Device> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
        let number = std::os::unix::fs::MetadataExt::dev(&metadata);
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let part = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !part.exists() {
            bail!("{} is on no disk that could be slowed down", path.display());
        }
        if !part.join("partition").exists() {
            return Ok(Device { major, minor });
        }
        let whole = fs::canonicalize(&part)?.join("../dev");
        let text = read_text(&whole)?;
        let (major, minor) = text.split_once(':').context("a disk without a number")?;
        Ok(Device { major: major.parse()?, minor: minor.parse()? })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Cgroup {
    /// Limits the reads of a disk, in bytes and in reads a second, from now on.
    pub(crate) fn slow_down(
        &self,
        device: Device,
        bytes_per_s: u64,
        reads_per_s: Option<u64>,
    ) -> Result<()> {
        let blkio =
            self.blkio.as_ref().context("no cgroup controller for disks is mounted (blkio)")?;
        if self.version == 2 {
            let reads = reads_per_s.map_or_else(|| "max".to_owned(), |reads| reads.to_string());
            return write_text(
                blkio.join("io.max"),
                &format!("{device} rbps={bytes_per_s} riops={reads}"),
            );
        }
        let write = |name: &str, value: u64| {
            write_text(blkio.join(format!("blkio.throttle.{name}")), &format!("{device} {value}"))
        };
        write("read_bps_device", bytes_per_s)?;
        reads_per_s.map_or(Ok(()), |reads| write("read_iops_device", reads))
    }

    /// Counts the reads of a disk from now on, as [`Cgroup::slow_down`] does too. Since Linux 6.10
    /// version 1 counts only for a disk with a limit. No disk reaches this one.
    pub(crate) fn count_reads(&self, device: Device) -> Result<()> {
        match self.version {
            1 => self.slow_down(device, 1 << 50, None),
            _ => Ok(()),
        }
    }

    /// Bytes that what runs in it has read from a disk.
    pub(crate) fn disk_read_bytes(&self, device: Device) -> Result<u64> {
        let blkio =
            self.blkio.as_ref().context("no cgroup controller for disks is mounted (blkio)")?;
        if self.version == 2 {
            return Ok(read_bytes_v2(&read_text(blkio.join("io.stat"))?, device));
        }
        Ok(read_bytes_v1(&read_text(blkio.join("blkio.throttle.io_service_bytes"))?, device))
    }
}

/// Of lines like `254:0 Read 4096`.
fn read_bytes_v1(text: &str, device: Device) -> u64 {
    let start = format!("{device} Read ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0)
}

/// Of lines like `254:0 rbytes=4096 wbytes=0`.
fn read_bytes_v2(text: &str, device: Device) -> u64 {
    let start = format!("{device} ");
    text.lines()
        .find_map(|line| {
            let mut words = line.strip_prefix(&start)?.split(' ');
            words.find_map(|word| word.strip_prefix("rbytes=")?.parse().ok())
        })
        .unwrap_or(0)
}
