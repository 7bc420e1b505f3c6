//! GNU sort of a generated text, in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Prepared, Settings, Workload};
use crate::content::random::{Random, mix};
use crate::machine::host::Host;
use crate::machine::interrupt;
use crate::machine::program::Program;
use crate::machine::program::found_in_path;

/// The text is an eighth of --size: sort compares lines in their final order, which
/// jumps through the whole text, so that each line costs a few faults where
/// only half of it is resident, a minute for 64 MiB under zram.
const SIZE_SHARE: u64 = 8;

pub(super) struct GnuSort;

impl Workload for GnuSort {
    fn name(&self) -> &'static str {
        "gnu-sort"
    }

    fn about(&self) -> &'static str {
        "GNU sort of a text of an eighth of --size, one thread, in memory"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let text = host.scratch.join("text");
        let text_bytes = settings.size_bytes / SIZE_SHARE;
        write_text(&text, text_bytes, settings.seed)
            .with_context(|| format!("cannot write {}", text.display()))?;
        // More than text and line index take, so that sort merges no files;
        // what it does not touch costs nothing.
        let buffer = format!("{}b", text_bytes.saturating_mul(8).max(64 << 20));
        let mut command = vec!["sort".into(), "--parallel=1".into(), "-S".into(), buffer.into()];
        command.extend(["-T".into(), host.scratch.clone().into(), text.into()]);
        let environment = vec![("LC_ALL", "C".into())];
        found_in_path("sort").context("gnu-sort needs the command sort (coreutils)")?;
        Ok(Prepared::whole(Program { command, environment }))
    }
}

/// Lines like those of a log: a number, a skewed choice of words, a tag.
pub(crate) fn write_text(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    const WORDS: [&str; 32] = [
        "accepted", "account", "address", "backup", "batch", "cache", "closed", "commit", "daemon",
        "delayed", "device", "error", "expired", "failed", "finished", "gateway", "index", "job",
        "limit", "loaded", "memory", "message", "opened", "packet", "queue", "record", "request",
        "session", "started", "table", "user", "warning",
    ];
    let mut random = Random::new(mix(seed));
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut written = 0u64;
    let mut line = String::new();
    while written < bytes {
        use std::fmt::Write as _;
        line.clear();
        write!(line, "{:08}", random.below(100_000_000))?;
        for _ in 0..2 + random.below(6) {
            let word = WORDS[random.below(WORDS.len()).min(random.below(WORDS.len()))];
            line.push(' ');
            line.push_str(word);
        }
        writeln!(line, " {:x}", random.below(1 << 20))?;
        writer.write_all(line.as_bytes())?;
        written += line.len() as u64;
        if written & 0xf_ffff < 100 {
            interrupt::check()?;
        }
    }
    Ok(writer.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_repeats_and_has_its_size() {
        let path = std::env::temp_dir().join(format!("ramfold-text-{}", std::process::id()));
        let make = |seed| {
            write_text(&path, 100_000, seed).unwrap();
            std::fs::read_to_string(&path).unwrap()
        };
        let text = make(1);
        assert!((100_000..100_200).contains(&text.len()), "{}", text.len());
        assert!(text.lines().count() > 1000);
        assert_eq!(text, make(1));
        assert_ne!(text, make(2));
        std::fs::remove_file(&path).unwrap();
    }
}
