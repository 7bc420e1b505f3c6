//! Data on a disk, and a cache over it in a cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Disk;
use crate::machine::cgroup::{Cgroup, Device, Swapping};
use crate::machine::host::Host;
use crate::machine::journal::{Setting, Undertaking};
use crate::machine::proc::write_text;
use crate::peers::cache::{Active, Cache, Place};

/// The data on the disk.
pub(in crate::experiments) struct Bed<'a> {
    host: &'a Host,
    source: PathBuf,
    device: Option<Device>,
    _folder: Undertaking,
}

/// What a cache gets.
pub(in crate::experiments) struct Setup<'a> {
    pub(in crate::experiments) memory_bytes: u64,
    pub(in crate::experiments) disk: Option<Disk>,
    pub(in crate::experiments) ramfold: &'a Path,
}

impl<'a> Bed<'a> {
    /// Has the files written into a new folder.
    pub(in crate::experiments) fn new(
        host: &'a Host,
        write: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Bed<'a>> {
        let source = host.scratch.join("source");
        let folder = host.journal.undertake(Setting::Folder { path: source.clone() })?;
        fs::create_dir(&source).with_context(|| format!("cannot make {}", source.display()))?;
        write(&source)?;
        Ok(Bed { host, device: Device::of(&source).ok(), source, _folder: folder })
    }

    /// Where the files are on the disk.
    pub(in crate::experiments) fn source(&self) -> &Path {
        &self.source
    }

    /// Puts an empty cache over the files, in a cgroup that has no limit yet.
    pub(in crate::experiments) fn stage(
        &self,
        cache: &dyn Cache,
        setup: &Setup<'_>,
    ) -> Result<Stage<'_>> {
        drop_caches()?;
        let cgroup = self.host.cgroup()?.context("there is no memory cgroup to limit it with")?;
        if let Some(disk) = setup.disk {
            let device = self.device.context("the data is on no disk that could be slowed down")?;
            cgroup.slow_down(device, disk.bytes_per_s, disk.reads_per_s)?;
        } else if let Some(device) = self.device {
            cgroup.count_reads(device)?;
        }
        let active = cache.start(&Place {
            host: self.host,
            source: &self.source,
            cgroup: &cgroup,
            memory_bytes: setup.memory_bytes,
            ramfold: setup.ramfold,
        })?;
        Ok(Stage { bed: self, cache: active, cgroup })
    }
}

/// A cache over the files.
pub(in crate::experiments) struct Stage<'a> {
    bed: &'a Bed<'a>,
    cache: Box<dyn Active>,
    cgroup: Cgroup,
}

impl Stage<'_> {
    /// Limits the memory of all that takes part.
    pub(in crate::experiments) fn limit(&self, bytes: u64) -> Result<()> {
        self.cgroup.configure(Some(bytes), Swapping::Forbidden)
    }

    /// Where the files are to be read.
    pub(in crate::experiments) fn folder(&self) -> &Path {
        self.cache.folder()
    }

    pub(in crate::experiments) fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// What the cache says of itself now, if it does.
    pub(in crate::experiments) fn statistics(&self) -> Result<Option<Value>> {
        self.cache.statistics()
    }

    /// Counts from now on.
    pub(in crate::experiments) fn meter(&self) -> Result<Meter<'_>> {
        let (cpu, disk_bytes) = (self.cgroup.cpu_split()?, self.disk_bytes()?);
        Ok(Meter { stage: self, cpu, disk_bytes, started: Instant::now() })
    }

    fn disk_bytes(&self) -> Result<u64> {
        self.bed.device.map_or(Ok(0), |device| self.cgroup.disk_read_bytes(device))
    }

    pub(in crate::experiments) fn finish(self) -> Result<()> {
        self.cache.finish()?;
        self.cgroup.finish()
    }
}

/// Counters as they were at some time.
pub(in crate::experiments) struct Meter<'a> {
    stage: &'a Stage<'a>,
    cpu: Option<(f64, f64)>,
    disk_bytes: u64,
    started: Instant,
}

/// What all that takes part has used since.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiments) struct Spent {
    pub(in crate::experiments) seconds: f64,
    pub(in crate::experiments) user_seconds: f64,
    pub(in crate::experiments) system_seconds: f64,
    pub(in crate::experiments) disk_bytes: u64,
}

impl Meter<'_> {
    pub(in crate::experiments) fn spent(&self) -> Result<Spent> {
        let seconds = self.started.elapsed().as_secs_f64();
        let cpu = self.stage.cgroup.cpu_split()?.zip(self.cpu);
        let (user_seconds, system_seconds) =
            cpu.map(|(now, before)| (now.0 - before.0, now.1 - before.1)).unwrap_or_default();
        let disk_bytes = self.stage.disk_bytes()? - self.disk_bytes;
        Ok(Spent { seconds, user_seconds, system_seconds, disk_bytes })
    }
}

/// Has the kernel drop the pages of all files that are not dirty.
fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    write_text("/proc/sys/vm/drop_caches", "3").context("only root can start with an empty cache")
}
