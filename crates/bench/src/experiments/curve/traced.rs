//! The program: accesses pages in an order, and writes each access down.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use ramfold_codec::PAGE_SIZE;

use super::select;
use crate::commands::Command;
use crate::content::random::Random;
use crate::harness::size::Bytes;
use crate::workloads::positive;

/// Microseconds have four bytes: so the program ends after an hour.
const SECONDS_MAX: f64 = 3600.0;
/// Words of a page.
const WORDS: usize = PAGE_SIZE / size_of::<u64>();
/// The number of different words in all pages. It is small, so pages compress.
const DIFFERENT_WORDS: usize = 20;

/// Access pages in an order, and write down when.
#[derive(Args)]
pub(crate) struct Options {
    pattern: String,
    #[arg(long)]
    size: Bytes,
    #[arg(long, value_parser = positive)]
    seconds: f64,
    /// From one access to the next. Microseconds.
    #[arg(long, value_parser = positive)]
    pause: f64,
    #[arg(long)]
    seed: u64,
    /// Where it is written: of each access the microseconds since the beginning and the page, four
    /// bytes each.
    output: PathBuf,
}

impl Command for Options {
    const NAME: &'static str = "traced";
    const IS_HIDDEN: bool = true;

    fn execute(self) -> Result<ExitCode> {
        let count = usize::try_from(self.size.0)? / PAGE_SIZE;
        ensure!(u32::try_from(count).is_ok_and(|count| count > 0), "{count} pages cannot be used");
        let pattern = select(std::slice::from_ref(&self.pattern))?[0];
        let mut pages = pattern.pages(count, self.seed);
        let mut random = Random::new(self.seed ^ 1);
        let output = File::create(&self.output)
            .with_context(|| format!("cannot write {}", self.output.display()))?;
        let mut output = BufWriter::new(output);
        // From the beginning of a page.
        let mut words = vec![0u64; (count + 1) * WORDS];
        let first = words.as_ptr().align_offset(PAGE_SIZE);
        let words = &mut words[first..][..count * WORDS];
        let began = Instant::now();
        let mut write_down = |page: usize| {
            let at_us = began.elapsed().as_micros() as u32;
            output.write_all(&at_us.to_le_bytes())?;
            output.write_all(&(page as u32).to_le_bytes())
        };
        for (nth, page) in words.chunks_exact_mut(WORDS).enumerate() {
            page.fill_with(|| random.below(DIFFERENT_WORDS) as u64);
            write_down(nth)?;
        }
        let pause = Duration::from_secs_f64(self.pause.min(SECONDS_MAX) / 1e6);
        let end = Instant::now() + Duration::from_secs_f64(self.seconds.min(SECONDS_MAX));
        let mut next = Instant::now();
        while next < end {
            let pick = pages.pick();
            write_down(pick.page)?;
            let word = &mut words[pick.page * WORDS + random.below(WORDS)];
            *word = word.wrapping_add(1) % DIFFERENT_WORDS as u64;
            if pick.is_quick {
                continue;
            }
            // Not at fixed times: accesses that a fault has delayed are not made up for.
            next = Instant::now() + pause;
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        }
        output.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}
