//! `ramfold-bench codec`: codecs over the pages of files, against the C libraries.
//!
//! [`subjects`] are what is measured, [`measurement`] times them in turns over the same pages,
//! [`instructions`] counts under valgrind, where the clock of a busy machine is no help, and
//! [`report`] has the rows. [`patterns`] is what `--patterns` counts instead.

mod count;
mod instructions;
mod measurement;
mod patterns;
mod report;
pub(super) mod subjects;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

pub(crate) use count::Options as CountOptions;

use crate::commands::Command;
use crate::content::page_files::Pages;
use crate::harness::progress::Progress;
use crate::harness::report::{Skipped, print, print_plain};
use crate::machine::say;
use instructions::Direction;
use measurement::measure;
use report::{Figures, Row};
use subjects::{Selection, Subject};

/// Measure codecs on the pages of files: sizes as the store's pool charges them, speeds on one core
/// with and without what they need in the cache, every page checked.
///
/// ramfold's codecs run beside liblz4, liblzo2 and libzstd, where these libraries are installed, in
/// turns; figures are medians over the rounds, and memcpy is the limit.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    ramfold dump --pid 4711 --output some.pages\n  \
    ramfold bench codec --pages some.pages\n  \
    ramfold bench codec --patterns --plot patterns.svg --pages *.pages\n  \
    ramfold bench codec --pages *.pages.zst --codec lz4,liblz4,pbpm,memcpy --json")]
pub(crate) struct Options {
    /// Files of raw 4 KiB pages, as `ramfold dump` writes them, or such files compressed with zstd
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pages: Vec<PathBuf>,
    /// Codecs and peers to measure [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    codec: Vec<String>,
    /// Instructions that ramfold's codecs use: scalar, AVX2 or AVX-512 [default: the best there
    /// are]
    #[arg(long, value_name = "NAME", conflicts_with = "instructions")]
    backend: Option<String>,
    /// Rounds of which the medians are taken
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// At most N pages of each file, spread over it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Count instructions under valgrind too: slow, but the same on every machine with AVX2
    #[arg(long)]
    instructions: bool,
    /// Count the patterns of words that PBPM rests on instead: Figure 2 and Tables I and II of its
    /// paper on these pages
    #[arg(long, conflicts_with_all = ["codec", "backend", "instructions"])]
    patterns: bool,
    /// Write the patterns as bars to an SVG file
    #[arg(long, value_name = "FILE", requires = "patterns")]
    plot: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

impl Command for Options {
    const NAME: &'static str = "codec";

    fn execute(self) -> Result<ExitCode> {
        if self.patterns {
            return self.count_patterns();
        }
        let backend = subjects::backend(self.backend.as_deref())?;
        let Selection { mut subjects, missing } = subjects::select(&self.codec, backend)?;
        for (name, reason) in &missing {
            say(&format!("ramfold-bench: without {name}: {reason}"));
        }
        let rows = self.rows(&mut subjects)?;
        let skipped = missing.into_iter();
        let skipped = skipped.map(|(peer, reason)| Skipped { peer: peer.to_owned(), reason });
        let figures =
            Figures { rounds: usize::from(self.rounds), rows, skipped: skipped.collect() };
        print(self.json, figures, report::text)
    }
}

impl Options {
    /// The pages of a file, at most as many as asked for.
    fn read(&self, path: &Path) -> Result<Pages> {
        Pages::read(path, self.limit.map(|limit| limit as usize))
    }

    /// The rows of all files.
    fn rows(&self, subjects: &mut [Box<dyn Subject>]) -> Result<Vec<Row>> {
        let scratch = self.instructions.then(tempfile::tempdir).transpose();
        let scratch = scratch.context("cannot make a folder for valgrind's results")?;
        let rounds = usize::from(self.rounds);
        let mut progress = Progress::new(self.pages.len() * (1 + rounds) * subjects.len());
        let mut rows = Vec::new();
        for path in &self.pages {
            let pages = self.read(path)?;
            let figures = measure(subjects, &pages, rounds, |name| {
                progress.step(&format!("{}: {name}", pages.name));
            });
            let figures = figures.inspect_err(|_| progress.clear())?;
            for (subject, figures) in subjects.iter().zip(figures) {
                let mut row = Row::new(subject.name(), &pages, figures);
                if let Some(scratch) = &scratch {
                    progress.show(&format!("{}: {} under valgrind", pages.name, subject.name()));
                    let count = |direction| {
                        instructions::count(subject.name(), path, direction, scratch.path())
                    };
                    row.compress_instructions = Some(count(Direction::Compress)?);
                    row.decompress_instructions = Some(count(Direction::Decompress)?);
                }
                rows.push(row);
            }
        }
        progress.clear();
        Ok(rows)
    }

    fn count_patterns(&self) -> Result<ExitCode> {
        let mut progress = Progress::new(self.pages.len());
        let mut files = Vec::new();
        for path in &self.pages {
            let pages = self.read(path)?;
            progress.show(&pages.name);
            let counted = patterns::count(&pages.name, &pages.distinct, usize::from(self.rounds));
            files.push(counted.inspect_err(|_| progress.clear())?);
            progress.advance();
        }
        progress.clear();
        if let Some(file) = &self.plot {
            fs::write(file, patterns::plot(&files))
                .with_context(|| format!("cannot write the plot to {}", file.display()))?;
        }
        let tables = |files: &Vec<_>| -> String {
            files.iter().map(patterns::tables).collect::<Vec<_>>().join("\n")
        };
        print_plain(self.json, &files, tables)?;
        Ok(ExitCode::SUCCESS)
    }
}
