//! Devices whose server was killed.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::KernelError;
use super::nbd_device::{self, Attached};
use super::swap::{is_swap, turn_off};
use super::ublk_device::{Orphan, open_control};

/// A device of ours without a server.
#[derive(Debug)]
pub struct Leftover {
    /// `/dev/nbdN` or `/dev/ublkbN`.
    pub path: PathBuf,
    /// What became of it.
    pub fate: Fate,
}

/// What became of a device without a server.
#[derive(Debug)]
pub enum Fate {
    /// It was taken away; where it was swap, it was turned off before.
    Removed,
    /// It waits for another server: [`UblkDevice::recover`](super::UblkDevice::recover).
    Waiting,
    /// It is still there.
    Failed(KernelError),
}

/// Takes away what servers left that were killed, and says what there was. Swap on such a device is
/// turned off first: what was in it is lost, and the programs that use it get SIGBUS.
pub fn clean_up() -> Vec<Leftover> {
    let is_alive = |process: u32| Path::new(&format!("/proc/{process}")).exists();
    let attached = Attached::all().into_iter().filter(|device| !is_alive(device.server));
    let mut found: Vec<Leftover> = attached
        .map(|device| {
            let path = PathBuf::from(format!("/dev/nbd{}", device.index));
            let removed = off(&path).and_then(|()| nbd_device::detach(device.index));
            leftover(path, removed)
        })
        .collect();
    found.extend(clean_up_ublk(is_alive));
    found
}

fn clean_up_ublk(is_alive: impl Fn(u32) -> bool) -> Vec<Leftover> {
    let Ok(mut control) = open_control("list ublk devices") else { return Vec::new() };
    let mut found = Vec::new();
    for number in ublk_numbers(Path::new("/dev")) {
        // Another process may have ended it just now.
        let Ok(info) = control.info(number) else { continue };
        let Some(orphan) = Orphan::of(&info, &is_alive) else { continue };
        let path = PathBuf::from(format!("/dev/ublkb{}", orphan.number));
        if orphan.is_waiting {
            found.push(Leftover { path, fate: Fate::Waiting });
            continue;
        }
        let removed = off(&path).and_then(|()| {
            control.delete(number).map_err(|why| KernelError::new(format!("end {path:?}"), why))
        });
        found.push(leftover(path, removed));
    }
    found
}

fn off(path: &Path) -> Result<(), KernelError> {
    if is_swap(path) { turn_off(path) } else { Ok(()) }
}

fn leftover(path: PathBuf, removed: Result<(), KernelError>) -> Leftover {
    Leftover { path, fate: removed.map_or_else(Fate::Failed, |()| Fate::Removed) }
}

/// Numbers of all ublk devices.
fn ublk_numbers(devices: &Path) -> Vec<u32> {
    let names = fs::read_dir(devices).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect()
}
