//! The kernel's zram, used as a disk.

use std::fs;

use anyhow::Result;

use super::{Active, Device, Place, Target};
use crate::machine::host::Host;
use crate::machine::zram::ZramDevice;

/// Of a page of the device, in zram's table.
const TABLE_ENTRY_BYTES: u64 = 24;
const PAGE_BYTES: u64 = 4096;

struct Zram {
    name: String,
    codec: String,
}

/// With a codec as the kernel names it; lz4 without one.
pub(super) fn named(name: &str, settings: Option<&str>) -> Result<Box<dyn Device>> {
    Ok(Box::new(Zram { name: name.to_owned(), codec: settings.unwrap_or("lz4").to_owned() }))
}

impl Device for Zram {
    fn name(&self) -> &str {
        &self.name
    }

    fn missing(&self, host: &Host) -> Option<String> {
        if !host.root {
            return Some("only root can make a zram device".to_owned());
        }
        let has_zram = fs::exists("/sys/class/zram-control").unwrap_or(false);
        (!has_zram).then(|| "this kernel has no zram, or its module is not loaded".to_owned())
    }

    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>> {
        let device = ZramDevice::create(&place.host.journal, &self.codec, place.bytes)?;
        Ok(Box::new(Running { device, bytes: place.bytes }))
    }
}

struct Running {
    device: ZramDevice,
    bytes: u64,
}

impl Active for Running {
    fn target(&self) -> Target {
        Target::File(self.device.file())
    }

    fn memory_bytes(&self) -> Result<u64> {
        Ok(self.device.pool_bytes()? + self.bytes / PAGE_BYTES * TABLE_ENTRY_BYTES)
    }

    fn cpu_seconds(&self) -> Result<Option<f64>> {
        Ok(None)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.device.finish()
    }
}
