//! Devices whose server was killed.

use std::cell::RefCell;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ramfold_sys::ublk::Control;

use super::error::{KernelError, Tried};
use super::nbd_device::{self, Attached};
use super::note::{Backing, Notes};
use super::swap::{is_swap, turn_off};
use super::ublk_device::{AfterKill, Orphan, UblkDevice, open_control};
use crate::{BlockDevice, DeviceError, Durability, Extent, Zeroing};

/// A device of ours without a server.
#[derive(Debug)]
pub struct Leftover {
    /// `/dev/nbdN` or `/dev/ublkbN`.
    pub path: PathBuf,
    /// What became of it.
    pub fate: Fate,
    /// What its data lies in, where that was noted.
    pub backing: Option<Backing>,
}

impl Leftover {
    /// The number in `/dev/ublkbN`, of a device that waits.
    pub fn number(&self) -> Option<u32> {
        self.path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
    }
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
///
/// A device that waits for another server stays, unless its backing is no longer at its path.
pub fn clean_up() -> Vec<Leftover> {
    let attached = Attached::all().into_iter().filter(|device| !is_alive(device.server));
    let mut found: Vec<Leftover> = attached
        .filter_map(|device| {
            let path = PathBuf::from(format!("/dev/nbd{}", device.index));
            let is_still = || device.is_still_there() && !is_alive(device.server);
            let removed = take_away(is_still, || off(&path), || nbd_device::detach(device.index));
            removed.map(|removed| leftover(path, removed, None))
        })
        .collect();
    found.extend(clean_up_ublk());
    found
}

/// Turns swap off and removes a device, each only where it is still what was found: another server
/// may have ended it since, and have a device of its own with this number. `None` where it is not.
fn take_away(
    mut is_still: impl FnMut() -> bool,
    off: impl FnOnce() -> Result<(), KernelError>,
    remove: impl FnOnce() -> Result<(), KernelError>,
) -> Option<Result<(), KernelError>> {
    if !is_still() {
        return None;
    }
    if let Err(why) = off() {
        return Some(Err(why));
    }
    // Turning swap off may have taken long.
    is_still().then(remove)
}

/// The ublk devices that wait for another server. Changes nothing, and finds none where this user
/// may not ask the kernel.
pub fn waiting() -> Vec<Leftover> {
    let Ok(mut control) = open_control("list ublk devices") else { return Vec::new() };
    let orphans = Orphaned::all(&mut control, &Notes::of_this_machine());
    orphans.into_iter().filter(Orphaned::waits).map(Orphaned::waiting).collect()
}

fn is_alive(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// A ublk device without a server.
struct Orphaned {
    orphan: Orphan,
    path: PathBuf,
    backing: Option<Backing>,
}

impl Orphaned {
    fn all(control: &mut Control, notes: &Notes) -> Vec<Orphaned> {
        let look = |number| {
            // Another process may have ended it just now.
            let info = control.info(number).ok()?;
            let orphan = Orphan::of(&info, is_alive)?;
            let path = PathBuf::from(format!("/dev/ublkb{number}"));
            Some(Orphaned { orphan, path, backing: notes.read(number, info.mark) })
        };
        ublk_numbers(Path::new("/dev")).into_iter().filter_map(look).collect()
    }

    /// Whether another server can take it over.
    fn waits(&self) -> bool {
        let can_come = || self.backing.as_ref().is_none_or(Backing::is_there);
        self.orphan.after_kill == AfterKill::Wait && can_come()
    }

    fn waiting(self) -> Leftover {
        Leftover { path: self.path, fate: Fate::Waiting, backing: self.backing }
    }
}

fn clean_up_ublk() -> Vec<Leftover> {
    let Ok(mut control) = open_control("list ublk devices") else { return Vec::new() };
    let notes = Notes::of_this_machine();
    let mut found = Vec::new();
    for orphaned in Orphaned::all(&mut control, &notes) {
        if orphaned.waits() {
            found.push(orphaned.waiting());
            continue;
        }
        let Orphaned { orphan, path, backing } = orphaned;
        let control = RefCell::new(&mut control);
        let is_still = || {
            let info = control.borrow_mut().info(orphan.number);
            info.is_ok_and(|info| orphan.is_still(&info, is_alive))
        };
        let removed = match orphan.after_kill {
            AfterKill::Wait | AfterKill::Fail => {
                take_away(is_still, || Ok(()), || fail(&mut control.borrow_mut(), orphan.number))
            }
            AfterKill::Remove => take_away(
                is_still,
                || off(&path),
                || {
                    let deleted = control.borrow_mut().delete_without_waiting(orphan.number);
                    deleted.tried(|| format!("end {}", path.display()))
                },
            ),
        };
        let Some(removed) = removed else { continue };
        if removed.is_ok() {
            notes.remove(orphan.number, orphan.mark);
        }
        found.push(leftover(path, removed, backing));
    }
    found
}

/// Takes the device over only to answer that its data is lost: then swap on it can be turned off.
fn fail(control: &mut Control, number: u32) -> Result<(), KernelError> {
    let features = control.features(number).tried(|| format!("look at /dev/ublkb{number}"))?;
    let device = UblkDevice::recover(number, Arc::new(Lost { bytes: features.bytes }))?;
    if let Err(why) = off(&device.path()) {
        // Served until this process ends; then it waits again. Were it taken away now, swap on it
        // could never be turned off.
        std::mem::forget(device);
        return Err(why);
    }
    device.stop()
}

/// A device of which all data is lost.
struct Lost {
    bytes: u64,
}

impl Lost {
    fn fail() -> Result<(), DeviceError> {
        Err(DeviceError::Failed("the server was killed that had the data".to_owned()))
    }
}

impl BlockDevice for Lost {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Lost::fail()
    }

    fn write(&self, _: u64, _: &[u8], _: Durability) -> Result<(), DeviceError> {
        Lost::fail()
    }

    fn trim(&self, _: u64, _: u64, _: Durability) -> Result<(), DeviceError> {
        Lost::fail()
    }

    fn zero(&self, _: u64, _: u64, _: Zeroing, _: Durability) -> Result<(), DeviceError> {
        Lost::fail()
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Lost::fail()
    }

    fn extents(
        &self,
        _: u64,
        _: u64,
        _: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        Lost::fail()
    }
}

fn off(path: &Path) -> Result<(), KernelError> {
    if is_swap(path) { turn_off(path) } else { Ok(()) }
}

fn leftover(path: PathBuf, removed: Result<(), KernelError>, backing: Option<Backing>) -> Leftover {
    Leftover { path, fate: removed.map_or_else(Fate::Failed, |()| Fate::Removed), backing }
}

/// Numbers of all ublk devices.
fn ublk_numbers(devices: &Path) -> Vec<u32> {
    let names = fs::read_dir(devices).into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What is done to a device that is what it was when it is looked at the first `looks` times.
    fn done_after(looks: u32) -> (bool, Vec<&'static str>) {
        let (left, done) = (Cell::new(looks), RefCell::new(Vec::new()));
        let is_still = || {
            let is_still = left.get() > 0;
            left.set(left.get().saturating_sub(1));
            is_still
        };
        let act = |what| {
            done.borrow_mut().push(what);
            Ok(())
        };
        let removed = take_away(is_still, || act("off"), || act("remove"));
        (removed.is_some(), done.into_inner())
    }

    #[test]
    fn a_device_that_another_server_has_by_now_is_left_alone() {
        assert_eq!(done_after(0), (false, vec![]));
        assert_eq!(done_after(1), (false, vec!["off"]));
        assert_eq!(done_after(2), (true, vec!["off", "remove"]));
    }
}
