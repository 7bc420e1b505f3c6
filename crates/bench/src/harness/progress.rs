//! The line that shows how far the measurements are, on standard error.

use std::io::{self, IsTerminal, Write};

use crate::machine::say;

/// A counter of finished measurements: one line rewritten in place on a
/// terminal, nothing otherwise.
pub(crate) struct Progress {
    done_count: usize,
    total_count: usize,
    terminal: bool,
}

impl Progress {
    pub(crate) fn new(total_count: usize) -> Self {
        Self { done_count: 0, total_count, terminal: io::stderr().is_terminal() }
    }

    /// Shows what is being measured now.
    pub(crate) fn show(&self, what: &str) {
        if self.terminal {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K[{}/{}] {what}", self.done_count, self.total_count);
            let _ = stderr.flush();
        }
    }

    /// Goes on to the next step, and shows it.
    pub(crate) fn step(&mut self, what: &str) {
        self.show(what);
        self.advance();
    }

    /// Counts one measurement as finished.
    pub(crate) fn advance(&mut self) {
        self.done_count += 1;
    }

    /// Writes a line that stays, above the moving one.
    pub(crate) fn note(&self, line: &str) {
        self.clear();
        say(line);
    }

    /// Removes the moving line.
    pub(crate) fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
