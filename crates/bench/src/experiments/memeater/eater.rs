//! `ramfold-bench eat`: the program that allocates memory until it gets no more.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use ramfold_codec::PAGE_SIZE;

use crate::commands::Command;
use crate::content::heap_pages::{Page, PageSource};
use crate::content::random::Random;
use crate::machine::say;

/// The name of the command.
pub(super) const NAME: &str = "eat";
pub(super) const BLOCK_BYTES: u64 = 1 << 20;
const BLOCK_PAGES: usize = BLOCK_BYTES as usize / PAGE_SIZE;
/// Printed for each block.
const MARK: u8 = b'.';
/// The exit status when it finds other bytes than it wrote.
pub(super) const WRONG_BYTES: u8 = 3;

/// The program that eats.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Command for Options {
    const NAME: &'static str = NAME;
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        Ok(match eat(self.seed, io::stdout().lock())? {
            None => ExitCode::SUCCESS,
            Some(wrong) => {
                say(&format!("ramfold-bench: {wrong}"));
                ExitCode::from(WRONG_BYTES)
            }
        })
    }
}

/// How many blocks the program has filled, by what it printed.
pub(super) fn blocks_in(output: &[u8]) -> u64 {
    output.iter().filter(|&&byte| byte == MARK).count() as u64
}

/// Fills blocks until it gets no more, and checks one page anywhere after each. Returns what is
/// wrong with a page.
///
/// # Errors
/// When it cannot print how far it is.
fn eat(seed: u64, mut output: impl Write) -> Result<Option<String>> {
    let source = PageSource::generated(seed);
    let mut random = Random::new(seed);
    let mut blocks: Vec<Vec<Page>> = Vec::new();
    loop {
        let mut block: Vec<Page> = Vec::new();
        if blocks.try_reserve(1).is_err() || block.try_reserve_exact(BLOCK_PAGES).is_err() {
            return Ok(None);
        }
        let first = blocks.len() * BLOCK_PAGES;
        for nth in first..first + BLOCK_PAGES {
            block.push(source.page(nth)?);
        }
        blocks.push(block);
        let nth = random.below(blocks.len() * BLOCK_PAGES);
        if blocks[nth / BLOCK_PAGES][nth % BLOCK_PAGES].0 != source.page(nth)?.0 {
            return Ok(Some(format!("page {nth} is not what was written")));
        }
        output.write_all(&[MARK]).context("cannot say how far I am")?;
        output.flush().context("cannot say how far I am")?;
    }
}
