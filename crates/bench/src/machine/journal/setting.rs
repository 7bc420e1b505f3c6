//! What can be set on the machine, and how each setting is undone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::machine::proc::{read_text, write_text};
use crate::machine::{interrupt, swap, wait, zram};

/// How long the kernel may take to let go of a cgroup or device after its last
/// user was killed; tearing down hundreds of MiB takes well under a second.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// One thing that was set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Setting {
    /// A folder of ours with files.
    Folder { path: PathBuf },
    /// A cgroup of ours; what still runs in it is killed.
    Cgroup { path: PathBuf },
    /// A zram device of ours: `hot_added` by us, or an idle one we took.
    Zram { number: u32, hot_added: bool, uuid: u128 },
    /// Swapping to a file or device that carries our header.
    Swap { path: PathBuf, uuid: u128 },
    /// A mount of ours over files of ours.
    Mount { path: PathBuf },
    /// A file of /proc or /sys that holds one value.
    Knob { path: PathBuf, before: String, ours: String },
}

impl Setting {
    /// Takes it back.
    pub(super) fn undo(&self) -> Result<()> {
        match self {
            Setting::Folder { path } => remove_folder(path),
            Setting::Cgroup { path } => remove_cgroup(path),
            Setting::Swap { path, uuid } => {
                // Another process may use the same device by now.
                if swap::active_swaps()?.contains(path) && swap::header_uuid(path)? == Some(*uuid) {
                    swap::swapoff(path)?;
                }
                Ok(())
            }
            Setting::Zram { number, hot_added, uuid } => remove_zram(*number, *hot_added, *uuid),
            Setting::Mount { path } => unmount(path),
            Setting::Knob { path, before, ours } => {
                // A value that was set later by another process stays.
                if read_text(path)? == *ours {
                    write_text(path, before)?;
                }
                Ok(())
            }
        }
    }
}

fn remove_folder(path: &Path) -> Result<()> {
    // Once removed, a swap file can no longer be named to swapoff.
    if let Some(swap) = swap::active_swaps()?.iter().find(|swap| swap.starts_with(path)) {
        bail!("cannot remove {}: it is swapped to {}", path.display(), swap.display());
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Detached: processes that still use it are not disturbed.
fn unmount(path: &Path) -> Result<()> {
    match rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH) {
        // It is no mount any more.
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("cannot unmount {}", path.display())),
    }
}

fn remove_cgroup(path: &Path) -> Result<()> {
    let procs_file = path.join("cgroup.procs");
    wait::until_done(RELEASE_LIMIT, || {
        interrupt::kill_listed(&procs_file);
        match fs::remove_dir(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove the cgroup {}", path.display()))
            }
            _ => Ok(()),
        }
    })
}

fn remove_zram(number: u32, hot_added: bool, uuid: u128) -> Result<()> {
    let (device, block) = (zram::device_file(number), zram::settings(number));
    if !block.exists() {
        return Ok(());
    }
    if read_text(block.join("initstate"))? == "1" {
        // Ours carries our swap header, or none yet if the end came before it
        // was written. Any other header is of another
        // process that has the number now.
        let header = swap::header_uuid(&device)?;
        if header != Some(uuid) && header != Some(0) {
            return Ok(());
        }
        wait::until_done(RELEASE_LIMIT, || write_text(block.join("reset"), "1"))?;
    }
    if hot_added {
        wait::until_done(RELEASE_LIMIT, || write_text(zram::HOT_REMOVE, &number.to_string()))?;
    }
    Ok(())
}
