//! Whether an observation makes sense: what reads one need not ask.

use super::{BLOCK_PAGES, Observation};

/// More bytes than any machine has.
const BYTES_MAX: u64 = 1 << 60;
/// More processors than any machine has.
const PROCESSORS_MAX: f64 = 1e6;
/// More seconds than anybody waits: a thousand years.
const SECONDS_MAX: f64 = 3.2e10;
const PAGE_BYTES: u64 = 4096;

impl Observation {
    /// Whether all numbers are such as can be measured.
    ///
    /// # Errors
    /// What makes no sense.
    pub fn check(&self) -> Result<(), String> {
        self.check_whole()?;
        self.check_sizes()?;
        self.check_contents()?;
        self.check_trials()?;
        for window in &self.windows {
            if !(is_time(window.seconds) && window.seconds > 0.0) {
                return Err(format!("a window has {} seconds", window.seconds));
            }
            let pages_max = (BYTES_MAX / PAGE_BYTES) as f64;
            if !(0.0..=pages_max).contains(&window.pages) {
                return Err(format!("a window has {} pages", window.pages));
            }
        }
        self.check_rounds()?;
        if !self.events.is_sorted_by_key(|event| event.time_us) {
            return Err("its events are not in the order of time".to_owned());
        }
        Ok(())
    }

    fn check_whole(&self) -> Result<(), String> {
        if self.machine.processors == 0 {
            return Err("its machine has no processor".to_owned());
        }
        for (bytes, of) in
            [(self.need_bytes, "what was looked at"), (self.machine.memory_bytes, "its machine")]
        {
            if !(1..=BYTES_MAX).contains(&bytes) {
                return Err(format!("{of} has {bytes} bytes of memory"));
            }
        }
        let run = self.run.unwrap_or_default();
        for seconds in [self.seconds, run.wall_s, run.processor_s, run.observation_s] {
            if !is_time(seconds) {
                return Err(format!("a time is {seconds} seconds"));
            }
        }
        if !self.one_in.is_power_of_two() {
            let one_in = self.one_in;
            return Err(format!("one block in {one_in} is in the trace, no power of two"));
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), String> {
        if let Some(size) = self.sizes.iter().find(|size| !is_time(size.at_s)) {
            return Err(format!("a size is of {} seconds", size.at_s));
        }
        if let Some(size) = self.sizes.iter().find(|size| size.bytes > BYTES_MAX) {
            return Err(format!("a size is of {} bytes", size.bytes));
        }
        if !self.sizes.is_sorted_by(|one, next| one.at_s <= next.at_s) {
            return Err("its sizes are not in the order of time".to_owned());
        }
        Ok(())
    }

    fn check_contents(&self) -> Result<(), String> {
        let codecs = &self.contents.codecs;
        let twice = |nth: usize| codecs[..nth].contains(&codecs[nth]);
        if let Some(nth) = (0..codecs.len()).find(|&nth| twice(nth)) {
            return Err(format!("the codec {} is there twice", codecs[nth]));
        }
        for block in &self.contents.blocks {
            let pages = &block.charged_bytes;
            if !is_time(block.at_s) {
                return Err(format!("a block is of {} seconds", block.at_s));
            }
            if !(1..=BLOCK_PAGES as usize).contains(&pages.len()) {
                return Err(format!("a block has {} pages", pages.len()));
            }
            if codecs.is_empty() || pages.iter().any(|page| page.len() != codecs.len()) {
                return Err(format!("a page has not the sizes of its {} codecs", codecs.len()));
            }
            if let Some(bytes) = pages.iter().flatten().find(|&&b| u64::from(b) > PAGE_BYTES) {
                return Err(format!("a page becomes {bytes} bytes"));
            }
        }
        Ok(())
    }

    fn check_rounds(&self) -> Result<(), String> {
        if !self.rounds.is_sorted_by(|one, next| one.at_us < next.at_us) {
            return Err("its rounds are not in the order of time".to_owned());
        }
        for look in self.rounds.iter().flat_map(|round| &round.looks) {
            if look.touched > look.pages || look.pages > BYTES_MAX / PAGE_BYTES {
                return Err(format!(
                    "at a look {} of {} pages were touched",
                    look.touched, look.pages
                ));
            }
        }
        Ok(())
    }

    fn check_trials(&self) -> Result<(), String> {
        if !self.trials.is_empty() && self.run.is_none() {
            return Err("it has trials, and no run with all memory beside them".to_owned());
        }
        for trial in &self.trials {
            if !(1..=BYTES_MAX).contains(&trial.memory_bytes) {
                return Err(format!("a trial has {} bytes of memory", trial.memory_bytes));
            }
            if trial.pool_bytes > BYTES_MAX {
                return Err(format!("the pool of a trial has {} bytes", trial.pool_bytes));
            }
            if let Some(seconds) =
                [trial.wall_s, trial.processor_s].into_iter().find(|&seconds| !is_time(seconds))
            {
                return Err(format!("a trial took {seconds} seconds"));
            }
            let is_known = |taken: &f64| (0.0..=PROCESSORS_MAX).contains(taken);
            if let Some(taken) = trial.others.filter(|taken| !is_known(taken)) {
                return Err(format!("others took {taken} processors of a trial"));
            }
        }
        Ok(())
    }
}

/// Whether it is a number of seconds.
fn is_time(seconds: f64) -> bool {
    (0.0..=SECONDS_MAX).contains(&seconds)
}
