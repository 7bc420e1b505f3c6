//! Instructions a page, counted by valgrind: the same on every run, however busy the machine is.
//!
//! The program starts itself under callgrind, which counts while one of the two functions below
//! runs. Valgrind knows AVX2 and not AVX-512, so the codecs choose what they would on such a
//! processor.

use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use ramfold_codec::{PAGE_SIZE, Page};

use super::measurement::Objects;
use super::subjects::{Object, ROOM_BYTES, Subject};

/// Pages of a file that are counted: valgrind is fifty times slower.
pub(super) const PAGES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Direction {
    Compress,
    Decompress,
}

/// Instructions a page of a codec on a file.
///
/// # Errors
/// When valgrind is not there or fails.
pub(super) fn count(codec: &str, file: &Path, direction: Direction, folder: &Path) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let result = folder.join("callgrind.out");
    let (name, function) = match direction {
        Direction::Compress => ("compress", "compress_counted"),
        Direction::Decompress => ("decompress", "decompress_counted"),
    };
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", result.display()))
        .arg(program)
        .args(["codec-count", "--codec", codec, "--direction", name, "--pages"])
        .arg(file)
        .output()
        .context("cannot run valgrind (the Debian package valgrind has it)")?;
    if !output.status.success() {
        bail!("valgrind: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let pages: f64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .context("the counted program did not say how many pages it did")?;
    let text =
        fs::read_to_string(&result).with_context(|| format!("cannot read {}", result.display()))?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let total: f64 = total.context("callgrind gave no totals")?.trim().parse()?;
    ensure!(total > 0.0 && pages > 0.0, "callgrind counted nothing");
    Ok(total / pages)
}

/// What is counted. Returns how many pages were done.
///
/// # Errors
/// When a page does not come back.
pub(super) fn run(
    subject: &mut dyn Subject,
    pages: &[Page],
    direction: Direction,
) -> Result<usize> {
    let step = pages.len().div_ceil(PAGES);
    let pages: Vec<Page> = pages.iter().step_by(step).copied().collect();
    let objects = Objects::make(subject, &pages)?;
    match direction {
        Direction::Compress => {
            compress_counted(subject, &pages);
            Ok(pages.len())
        }
        Direction::Decompress => {
            let objects: Vec<Object<'_>> =
                (0..pages.len()).filter_map(|nth| objects.get(nth)).collect();
            ensure!(!objects.is_empty(), "no page has an object");
            decompress_counted(subject, &objects)?;
            Ok(objects.len())
        }
    }
}

#[inline(never)]
fn compress_counted(subject: &mut dyn Subject, pages: &[Page]) {
    let mut out = [0; ROOM_BYTES];
    for page in pages {
        black_box(subject.compress(page, &mut out));
    }
}

#[inline(never)]
fn decompress_counted(subject: &mut dyn Subject, objects: &[Object<'_>]) -> Result<()> {
    let mut back = [0; PAGE_SIZE];
    for &object in objects {
        subject.decompress(object, &mut back)?;
        black_box(&back);
    }
    Ok(())
}
