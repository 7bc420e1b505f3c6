//! Data on a disk, and a cache over it in a cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::mounted::Mounted;
use super::{Cache, Disk};
use crate::cgroup::{Cgroup, Device, Swapping};
use crate::host::Host;
use crate::journal::{Setting, Undertaking};

/// The data on the disk.
pub struct Bed<'a> {
    host: &'a Host,
    source: PathBuf,
    device: Option<Device>,
    _folder: Undertaking,
}

/// What a cache gets.
pub struct Setup<'a> {
    pub memory_bytes: u64,
    pub disk: Option<Disk>,
    pub ramfold: &'a Path,
}

impl<'a> Bed<'a> {
    /// Has the files written into a new folder.
    pub fn new(host: &'a Host, write: impl FnOnce(&Path) -> Result<()>) -> Result<Bed<'a>> {
        let source = host.scratch.join("source");
        let folder = host.journal.undertake(Setting::Folder { path: source.clone() })?;
        fs::create_dir(&source).with_context(|| format!("cannot make {}", source.display()))?;
        write(&source)?;
        Ok(Bed { host, device: Device::of(&source).ok(), source, _folder: folder })
    }

    /// Where the files are on the disk.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Puts an empty cache over the files, in a cgroup that has no limit yet.
    pub fn stage(&self, cache: &Cache, setup: &Setup<'_>) -> Result<Stage<'_>> {
        drop_caches()?;
        let cgroup = self.host.cgroup()?.context("there is no memory cgroup to limit it with")?;
        if let Some(disk) = setup.disk {
            let device = self.device.context("the data is on no disk that could be slowed down")?;
            cgroup.slow_down(device, disk.bytes_per_s, disk.reads_per_s)?;
        } else if let Some(device) = self.device {
            cgroup.count_reads(device)?;
        }
        let mounted = match cache {
            Cache::PageCache | Cache::Disk => None,
            Cache::Ramfold { options } => Some(Mounted::new(
                self.host,
                &self.source,
                &cgroup,
                setup.ramfold,
                setup.memory_bytes,
                options,
            )?),
        };
        Ok(Stage { bed: self, mounted, cgroup })
    }
}

/// A cache over the files.
pub struct Stage<'a> {
    bed: &'a Bed<'a>,
    mounted: Option<Mounted>,
    cgroup: Cgroup,
}

impl Stage<'_> {
    /// Limits the memory of all that takes part.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.cgroup.configure(Some(bytes), Swapping::Forbidden)
    }

    /// Where the files are to be read.
    pub fn folder(&self) -> &Path {
        self.mounted.as_ref().map_or(&self.bed.source, |mounted| &mounted.mountpoint)
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// What ramfold's `--stats` says now.
    pub fn statistics(&self) -> Result<Option<Value>> {
        self.mounted.as_ref().map(Mounted::statistics).transpose()
    }

    /// Counts from now on.
    pub fn meter(&self) -> Result<Meter<'_>> {
        let (cpu, disk_bytes) = (self.cgroup.cpu_split()?, self.disk_bytes()?);
        Ok(Meter { stage: self, cpu, disk_bytes, started: Instant::now() })
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.bed.device.map_or(Ok(0), |device| self.cgroup.disk_read_bytes(device))
    }

    pub fn finish(self) -> Result<()> {
        if let Some(mounted) = self.mounted {
            mounted.finish()?;
        }
        self.cgroup.finish()
    }
}

/// Counters as they were at some time.
pub struct Meter<'a> {
    stage: &'a Stage<'a>,
    cpu: Option<(f64, f64)>,
    disk_bytes: u64,
    started: Instant,
}

/// What all that takes part has used since.
#[derive(Clone, Copy, Debug)]
pub struct Spent {
    pub seconds: f64,
    pub user_seconds: f64,
    pub system_seconds: f64,
    pub disk_bytes: u64,
}

impl Meter<'_> {
    pub fn spent(&self) -> Result<Spent> {
        let seconds = self.started.elapsed().as_secs_f64();
        let cpu = self.stage.cgroup.cpu_split()?.zip(self.cpu);
        let (user_seconds, system_seconds) =
            cpu.map(|(now, before)| (now.0 - before.0, now.1 - before.1)).unwrap_or_default();
        let disk_bytes = self.stage.disk_bytes()? - self.disk_bytes;
        Ok(Spent { seconds, user_seconds, system_seconds, disk_bytes })
    }
}

/// Has the kernel forget all files that nobody has changed.
fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    crate::machine::write_text("/proc/sys/vm/drop_caches", "3")
        .context("only root can start with an empty cache")
}
