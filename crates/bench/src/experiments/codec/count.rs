//! `ramfold-bench codec-count`: what `codec --instructions` runs under valgrind.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use ramfold_codec::Backend;

use super::instructions::{self, Direction};
use super::subjects::{Selection, Subject, select};
use crate::commands::Command;
use crate::content::page_files::Pages;

#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    codec: String,
    #[arg(long)]
    pages: PathBuf,
    #[arg(long)]
    direction: Direction,
}

impl Command for Options {
    const NAME: &'static str = "codec-count";
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        let pages = Pages::read(&self.pages, None)?;
        let Selection { mut subjects, missing } =
            select(std::slice::from_ref(&self.codec), Backend::best())?;
        let Some(subject) = subjects.first_mut() else {
            bail!("{}: {}", self.codec, missing.first().map_or("", |(_, reason)| reason));
        };
        let subject: &mut dyn Subject = subject.as_mut();
        let count = instructions::run(subject, &pages.distinct, self.direction)?;
        writeln!(io::stdout().lock(), "{count}").context("cannot print the count")?;
        Ok(ExitCode::SUCCESS)
    }
}
