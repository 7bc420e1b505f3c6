//! `ramfold block --backing`: a compressed cache before a file or a block device.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use ramfold_block::{BackedDisk, BackingConfig, Paths};

use crate::say::say;

/// Said so often how much is left, at the end.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// A backing that fails as it ends loses data, which no other failure does.
pub(crate) const EXIT_LOST: i32 = 1;
/// Sizes of the kernel's devices are multiples of this.
const KERNEL_BLOCK_BYTES: u64 = 4096;

#[derive(clap::Args)]
#[command(next_help_heading = "Options with --backing")]
pub(crate) struct BackingArguments {
    /// Keep the data in FILE, a file or a block device, with a compressed cache of --memory before
    /// it. What was written and not flushed is lost if the server is killed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["spill", "no_dedup", "no_clusters"])]
    pub(crate) backing: Option<PathBuf>,
    /// Write to the backing before a write is answered
    #[arg(long, requires = "backing")]
    write_through: bool,
    /// What puts pages into the cache: writes (separate), or reads too (shared)
    #[arg(
        long,
        value_name = "PATHS",
        value_enum,
        default_value = "separate",
        requires = "backing"
    )]
    paths: PathsArgument,
    /// How much is written back at once, in percent of the cache's pages
    #[arg(long, value_name = "PERCENT", default_value_t = 10, requires = "backing",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    batch: u8,
    /// Begin to write back when pages that are not in the backing take more than this part of the
    /// cache, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 50, requires = "backing",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    clean_above: u8,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum PathsArgument {
    /// Reads use the cache and do not change it
    Separate,
    /// Reads fill it too
    Shared,
}

impl BackingArguments {
    /// Opens the backing, with what these arguments say.
    ///
    /// # Errors
    /// Why it cannot be one.
    pub(crate) fn open(&self, config: BackingConfig) -> anyhow::Result<BackedDisk> {
        Ok(BackedDisk::new(&BackingConfig {
            write_through: self.write_through,
            paths: match self.paths {
                PathsArgument::Separate => Paths::Separate,
                PathsArgument::Shared => Paths::Shared,
            },
            batch_percent: self.batch,
            clean_above_percent: self.clean_above,
            tell: Some(Arc::new(|text: &str| say(format_args!("{text}")))),
            ..config
        })?)
    }
}

/// Refuses what the kernel cannot have as a device.
///
/// # Errors
/// When the size is no multiple of a block.
pub(crate) fn check_for_kernel(path: &Path, bytes: u64) -> anyhow::Result<()> {
    if !bytes.is_multiple_of(KERNEL_BLOCK_BYTES) {
        bail!(
            "{} has {bytes} bytes, no multiple of {KERNEL_BLOCK_BYTES}, which the kernel's devices \
             need: --size {} leaves the rest out",
            path.display(),
            bytes / KERNEL_BLOCK_BYTES * KERNEL_BLOCK_BYTES
        );
    }
    Ok(())
}

/// Writes out what is only in memory, at the end. Returns the exit status: `status`, unless data
/// was lost.
pub(crate) fn write_out(disk: &BackedDisk, status: i32) -> i32 {
    let mut said = Instant::now();
    let written = disk.write_out(|left| {
        if said.elapsed() >= PROGRESS_INTERVAL && left > 0 {
            said = Instant::now();
            say(format_args!("writing back: {} MiB are left", left.div_ceil(1 << 20)));
        }
    });
    match written {
        Ok(()) => status,
        Err(lost) => {
            say(format_args!("{lost}"));
            EXIT_LOST
        }
    }
}
