//! `ramfold-bench train`: the sets of codes of the page LZ, as source code.

mod sets;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::commands::Command;
use crate::content::page_files::Pages;
use crate::machine::say;

#[derive(Args)]
pub(crate) struct Options {
    /// Files of pages, as for `codec`
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pages: Vec<PathBuf>,
    /// Sets to make
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u8).range(1..=8))]
    sets: u8,
    /// Rounds for each number of sets
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// At most N pages of each file, spread over it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
}

impl Command for Options {
    const NAME: &'static str = "train";
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        let mut pages = Vec::new();
        for path in &self.pages {
            pages.extend(Pages::read(path, self.limit.map(|limit| limit as usize))?.distinct);
        }
        let sets = sets::train(&pages, self.sets.into(), self.rounds.into(), say)?;
        io::stdout()
            .lock()
            .write_all(sets::source(&sets)?.as_bytes())
            .context("cannot print the sets")?;
        Ok(ExitCode::SUCCESS)
    }
}
