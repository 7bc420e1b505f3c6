//! The caches that keep what was read of files on a disk: peers of `ramfold mount`.
//!
//! To add a cache, add a file with a type that implements [`Cache`], and a line in [`ALL`].
//! `kernel` has the shortest examples, `ramfold_mount` one that is a process with a mount.
//!
//! Everything that takes part, the program that reads and the cache, is in one cgroup
//! ([`Place::cgroup`]), whose limit is the memory to compare with.

mod kernel;
mod ramfold_mount;

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::machine::cgroup::Cgroup;
use crate::machine::host::Host;

/// What keeps files.
pub(crate) trait Cache {
    /// As it was asked for.
    fn name(&self) -> &str;

    /// Whether files are read past every cache (O_DIRECT).
    fn is_direct(&self) -> bool {
        false
    }

    /// Where the memory is divided between two levels once and for all: the percent for compressed
    /// pages, and the other settings.
    fn fixed_share(&self) -> Option<(f64, Vec<&str>)> {
        None
    }

    /// Puts an empty cache over the files.
    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>>;
}

/// Where a cache is started, and what it may use.
pub(crate) struct Place<'a> {
    pub(crate) host: &'a Host,
    /// The folder with the files, on a disk.
    pub(crate) source: &'a Path,
    pub(crate) cgroup: &'a Cgroup,
    /// What the cgroup is going to be limited to.
    pub(crate) memory_bytes: u64,
    /// The binary to measure.
    pub(crate) ramfold: &'a Path,
}

/// A cache over the files.
pub(crate) trait Active {
    /// Where the files are to be read.
    fn folder(&self) -> &Path;

    /// What it says of itself now, if it does.
    fn statistics(&self) -> Result<Option<Value>> {
        Ok(None)
    }

    /// Takes it away. (Dropping does the same but cannot fail loudly.)
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Makes a cache of the whole name as it was typed, and of the settings in it.
type Make = fn(&str, Option<&str>) -> Result<Box<dyn Cache>>;

/// A kind of cache.
struct Kind {
    name: &'static str,
    make: Make,
}

/// Every kind of cache.
const ALL: &[Kind] = &[
    Kind { name: "page-cache", make: kernel::page_cache },
    Kind { name: "disk", make: kernel::disk },
    Kind { name: "ramfold", make: ramfold_mount::named },
];

/// The cache of that name: that of a kind, which settings may follow behind a colon.
///
/// # Errors
/// When there is none, or the settings are wrong.
pub(crate) fn named(name: &str) -> Result<Box<dyn Cache>> {
    let (kind, settings) = match name.split_once(':') {
        Some((kind, settings)) => (kind, Some(settings)),
        None => (name, None),
    };
    match ALL.iter().find(|known| known.name == kind) {
        Some(known) => (known.make)(name, settings),
        None => {
            let all: Vec<&str> = ALL.iter().map(|kind| kind.name).collect();
            bail!("there is no cache '{name}'; there are {}", all.join(", "))
        }
    }
}

/// The caches of these names.
///
/// # Errors
/// As those of [`named`].
pub(crate) fn all_named(names: &[String]) -> Result<Vec<Box<dyn Cache>>> {
    names.iter().map(|name| named(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_keeps_the_files() {
        assert_eq!(named("page-cache").unwrap().fixed_share(), None);
        assert!(named("disk").unwrap().is_direct());
        assert_eq!(named("ramfold").unwrap().fixed_share(), None);
        let cache = named("ramfold:codec=lz4:compressed-share=40%").unwrap();
        assert_eq!(cache.name(), "ramfold:codec=lz4:compressed-share=40%");
        assert_eq!(cache.fixed_share(), Some((40.0, vec!["--codec=lz4"])));
        for bad in ["zram", "disk:x", "ramfold:lz4", "ramfold:memory=1G"] {
            assert!(named(bad).is_err(), "{bad} was taken");
        }
    }
}
