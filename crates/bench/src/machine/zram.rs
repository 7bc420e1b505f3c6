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

/// A zram device of ours that is swapped to.
pub(crate) struct ZramSwap {
    number: u32,
    // Dropped in this order.
    swap: Option<Undertaking>,
    device: Option<Undertaking>,
}

impl ZramSwap {
    /// Makes a device of `area_bytes` with the codec named `codec` and swaps to it.
    pub(crate) fn create(journal: &Journal, codec: &str, area_bytes: u64) -> Result<Self> {
        let uuid = swap::fresh_uuid();
        let (number, device) = claim_zram(journal, uuid)?;
        let mut zram = Self { number, swap: None, device: Some(device) };
        let (node, block) = (device_file(number), settings(number));
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
        drop(file);
        zram.swap = Some(swap::swapon(journal, &node, uuid)?);
        Ok(zram)
    }

    /// The most memory the device's pool took, in bytes: `mem_used_max` of
    /// mm_stat. The device's table (24 bytes a page of its size) is not in it.
    pub(crate) fn pool_bytes_peak(&self) -> Result<u64> {
        mm_stat(self.number, 4)
    }

    /// The memory the pool takes now: `mem_used_total`.
    pub(crate) fn pool_gauge(&self) -> Gauge {
        let number = self.number;
        Box::new(move || mm_stat(number, 2))
    }

    /// The codec that the device says it uses.
    pub(crate) fn codec(&self) -> Result<String> {
        let path = settings(self.number).join("comp_algorithm");
        let text = read_text(&path)?;
        let codec = chosen(&text).map(str::to_owned);
        codec.with_context(|| format!("{}: '{text}' has no choice", path.display()))
    }

    /// Takes swap and device back.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.swap.take().map_or(Ok(()), Undertaking::finish)?;
        self.device.take().map_or(Ok(()), Undertaking::finish)
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
