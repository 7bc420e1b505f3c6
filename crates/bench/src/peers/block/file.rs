//! The plain disk: a file, read and written past the page cache.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ramfold_sys::file::is_in_ram;
use rustix::fs::statfs;

use super::{Active, Device, Place, Target};
use crate::machine::host::Host;
use crate::machine::journal::Undertaking;

struct Plain;

pub(super) fn named(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    ensure!(settings.is_none(), "'{name}': a file has no settings");
    Ok(Box::new(Plain))
}

/// Why the folder for content is no place for a disk.
pub(super) fn is_no_disk(host: &Host) -> Option<String> {
    let is_in_ram = statfs(&host.scratch).is_ok_and(|found| is_in_ram(found.f_type as u64));
    is_in_ram.then(|| {
        format!("{} is in RAM; --scratch names a folder on a disk", host.scratch.display())
    })
}

/// Makes an empty file of the size of the device.
pub(super) fn make(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create(path).and_then(|file| file.set_len(bytes));
    file.with_context(|| format!("cannot make {}", path.display()))
}

impl Device for Plain {
    fn name(&self) -> &str {
        "file"
    }

    fn missing(&self, host: &Host) -> Option<String> {
        is_no_disk(host)
    }

    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>> {
        let (folder, undertaking) = place.make_folder()?;
        let path = folder.join("disk");
        make(&path, place.bytes)?;
        Ok(Box::new(Made { path, folder: undertaking }))
    }
}

struct Made {
    path: PathBuf,
    folder: Undertaking,
}

impl Active for Made {
    fn target(&self) -> Target {
        Target::File(self.path.clone())
    }

    fn memory_bytes(&self) -> Result<u64> {
        Ok(0)
    }

    fn cpu_seconds(&self) -> Result<Option<f64>> {
        Ok(None)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.folder.finish()
    }
}
