//! The block devices in RAM: peers of `ramfold block`.
//!
//! To add a device, add a file with a type that implements [`Device`], and a line in [`ALL`].
//! `server` has those that are a process with a socket, `zram` the kernel's, `file` the disk.

mod file;
mod server;
mod zram;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine::host::Host;
use crate::machine::journal::{Setting, Undertaking};

/// The first mebibyte of a device is not written to: zram's has the mark by which it is known as
/// the bench's own.
pub(crate) const DATA_OFFSET: u64 = 1 << 20;

/// What keeps data.
pub(crate) trait Device {
    /// As it was asked for.
    fn name(&self) -> &str;

    /// Why it cannot be used here.
    fn missing(&self, host: &Host) -> Option<String>;

    /// Makes an empty device.
    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>>;
}

/// Where a device is made.
pub(crate) struct Place<'a> {
    pub(crate) host: &'a Host,
    /// Size of the device.
    pub(crate) bytes: u64,
    /// The binary to measure.
    pub(crate) ramfold: &'a Path,
}

impl Place<'_> {
    /// Makes the folder for what a device needs. It goes when the undertaking ends.
    fn make_folder(&self) -> Result<(PathBuf, Undertaking)> {
        let folder = self.host.scratch.join("block");
        let undertaking = self.host.journal.undertake(Setting::Folder { path: folder.clone() })?;
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok((folder, undertaking))
    }
}

/// How a device is reached.
pub(crate) enum Target {
    /// By NBD.
    Uri(String),
    /// As a device of the kernel.
    File(PathBuf),
}

/// A device that is there.
pub(crate) trait Active {
    fn target(&self) -> Target;

    /// Memory that it takes now: the process's own pages, or what zram says and its table.
    fn memory_bytes(&self) -> Result<u64>;

    /// Processor time that it has used; `None` where that is the client's.
    fn cpu_seconds(&self) -> Result<Option<f64>>;

    /// Takes it away. (Dropping does the same but cannot fail loudly.)
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Makes a device of the whole name as it was typed, and of the settings in it.
type Make = fn(&str, Option<&str>) -> Result<Box<dyn Device>>;

/// Every kind of device.
const ALL: &[(&str, Make)] = &[
    ("nbdkit", server::nbdkit),
    ("nbdkit-zstd", server::nbdkit_zstd),
    ("ramfold", server::ramfold),
    ("ramfold-backing", server::ramfold_backing),
    ("file", file::named),
    ("zram", zram::named),
];

/// The devices of these names: each that of a kind, which settings may follow behind a colon.
///
/// # Errors
/// When there is none, or the settings are wrong.
pub(crate) fn all_named(names: &[String]) -> Result<Vec<Box<dyn Device>>> {
    names.iter().map(|name| named(name)).collect()
}

fn named(name: &str) -> Result<Box<dyn Device>> {
    let (kind, settings) = match name.split_once(':') {
        Some((kind, settings)) => (kind, Some(settings)),
        None => (name, None),
    };
    match ALL.iter().find(|(known, _)| *known == kind) {
        Some((_, make)) => make(name, settings),
        None => {
            let all: Vec<&str> = ALL.iter().map(|(kind, _)| *kind).collect();
            bail!("there is no device '{name}'; there are {}", all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_keeps_the_data() {
        for name in [
            "nbdkit",
            "nbdkit-zstd",
            "ramfold",
            "ramfold:codec=zstd-1",
            "ramfold-backing:paths=shared",
            "ramfold-backing:write-through",
            "file",
            "zram",
            "zram:lz4",
        ] {
            assert_eq!(named(name).unwrap().name(), name);
        }
        for (name, said) in [
            ("disk", "there are nbdkit"),
            ("nbdkit:1", "no settings"),
            ("file:1", "no settings"),
            ("ramfold:--codec=lz4", "OPTION=VALUE"),
        ] {
            let error = named(name).err().unwrap().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
