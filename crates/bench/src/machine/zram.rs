//! zram devices that are swapped to.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::journal::{Journal, Setting, Undertaking};
use super::proc::{chosen, read_text, write_text};
use super::{Gauge, swap, wait};

const HOT_ADD: &str = "/sys/class/zram-control/hot_add";
pub(super) const HOT_REMOVE: &str = "/sys/class/zram-control/hot_remove";

/// The device file of a device.
pub(super) fn device_file(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{number}"))
}

/// The folder of a device's settings.
pub(super) fn settings(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/zram{number}"))
}

/// A zram device of ours. Its first page is the header of a swap area, by which it is known as
/// ours.
pub(crate) struct ZramDevice {
    number: u32,
    uuid: u128,
    device: Undertaking,
}

impl ZramDevice {
    /// Makes a device of `area_bytes` with the codec named `codec`.
    pub(crate) fn create(journal: &Journal, codec: &str, area_bytes: u64) -> Result<Self> {
        let uuid = swap::fresh_uuid();
        let (number, device) = claim_zram(journal, uuid)?;
        let zram = Self { number, uuid, device };
        let (node, block) = (zram.file(), settings(number));
        write_text(block.join("comp_algorithm"), codec)
            .with_context(|| format!("this kernel's zram does not know the codec {codec}"))?;
        write_text(block.join("disksize"), &area_bytes.to_string())?;
        wait::until_done(Duration::from_secs(5), || {
            ensure!(node.exists(), "{} does not appear: is /dev a devtmpfs here?", node.display());
            Ok(())
        })?;
        let mut file = OpenOptions::new()
            .write(true)
            .open(&node)
            .with_context(|| format!("cannot open {}", node.display()))?;
        file.write_all(&swap::header(area_bytes, uuid)?)
            .and_then(|()| file.sync_all())
            .with_context(|| format!("cannot write {}", node.display()))?;
        Ok(zram)
    }

    /// The device file.
    pub(crate) fn file(&self) -> PathBuf {
        device_file(self.number)
    }

    /// The memory that the pool takes now: `mem_used_total`.
    pub(crate) fn pool_bytes(&self) -> Result<u64> {
        mm_stat(self.number, 2)
    }

    /// Takes it back.
    pub(crate) fn finish(self) -> Result<()> {
        self.device.finish()
    }
}

/// A zram device of ours that is swapped to.
pub(crate) struct ZramSwap {
    // Dropped in this order.
    swap: Undertaking,
    device: ZramDevice,
}

impl ZramSwap {
    /// Makes a device of `area_bytes` with the codec named `codec` and swaps to it.
    pub(crate) fn create(journal: &Journal, codec: &str, area_bytes: u64) -> Result<Self> {
        let device = ZramDevice::create(journal, codec, area_bytes)?;
        let swap = swap::swapon(journal, &device.file(), device.uuid)?;
        Ok(Self { swap, device })
    }

    /// The most memory the device's pool took, in bytes: `mem_used_max` of
    /// mm_stat. The device's table (24 bytes a page of its size) is not in it.
    pub(crate) fn pool_bytes_peak(&self) -> Result<u64> {
        mm_stat(self.device.number, 4)
    }

    /// The memory the pool takes now: `mem_used_total`.
    pub(crate) fn pool_gauge(&self) -> Gauge {
        let number = self.device.number;
        Box::new(move || mm_stat(number, 2))
    }

    /// The codec that the device says it uses.
    pub(crate) fn codec(&self) -> Result<String> {
        let path = settings(self.device.number).join("comp_algorithm");
        let text = read_text(&path)?;
        let codec = chosen(&text).map(str::to_owned);
        codec.with_context(|| format!("{}: '{text}' has no choice", path.display()))
    }

    /// Takes swap and device back.
    pub(crate) fn finish(self) -> Result<()> {
        self.swap.finish()?;
        self.device.finish()
    }
}

/// A column of a device's mm_stat, the first being 0.
fn mm_stat(number: u32, column: usize) -> Result<u64> {
    let path = settings(number).join("mm_stat");
    let text = read_text(&path)?;
    text.split_ascii_whitespace()
        .nth(column)
        .and_then(|word| word.parse().ok())
        .with_context(|| format!("{}: '{text}' has no column {}", path.display(), column + 1))
}

/// A device of our own, or an idle one where none can be added.
fn claim_zram(journal: &Journal, uuid: u128) -> Result<(u32, Undertaking)> {
    // Reading hot_add makes a device. A kill between this line and the next
    // leaves an idle device behind, which holds no memory.
    let (number, hot_added) = match fs::read_to_string(HOT_ADD) {
        Ok(number) => {
            (number.trim().parse().with_context(|| format!("hot_add gave '{number}'"))?, true)
        }
        Err(error) => {
            let idle = idle_zram().context("no idle zram device")?;
            (idle.with_context(|| format!("{HOT_ADD}: {error}; no zram device is idle"))?, false)
        }
    };
    Ok((number, journal.undertake(Setting::Zram { number, hot_added, uuid })?))
}

fn idle_zram() -> Result<Option<u32>> {
    let swaps = swap::active_swaps()?;
    for entry in fs::read_dir("/sys/block").context("cannot list /sys/block")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("zram")?.parse().ok());
        if let Some(number) = number
            && read_text(settings(number).join("initstate"))? == "0"
            && !swaps.contains(&device_file(number))
        {
            return Ok(Some(number));
        }
    }
    Ok(None)
}
