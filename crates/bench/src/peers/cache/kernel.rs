//! The kernel's page cache, and the disk without it.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::{Active, Cache, Place};

struct Kernel {
    name: &'static str,
    is_direct: bool,
}

pub(super) fn page_cache(name: &str, settings: Option<&str>) -> Result<Box<dyn Cache>> {
    ensure!(settings.is_none(), "'{name}': the page cache has no settings");
    Ok(Box::new(Kernel { name: "page-cache", is_direct: false }))
}

pub(super) fn disk(name: &str, settings: Option<&str>) -> Result<Box<dyn Cache>> {
    ensure!(settings.is_none(), "'{name}': the disk has no settings");
    Ok(Box::new(Kernel { name: "disk", is_direct: true }))
}

impl Cache for Kernel {
    fn name(&self) -> &str {
        self.name
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>> {
        Ok(Box::new(Source(place.source.to_owned())))
    }
}

/// The folder itself.
struct Source(PathBuf);

impl Active for Source {
    fn folder(&self) -> &Path {
        &self.0
    }
}
