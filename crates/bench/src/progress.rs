//! Lines for the person at the terminal, on standard error.
//!
//! Unlike `eprintln!` nothing here panics when standard error is gone (a closed
//! terminal is exactly when cleaning up must go on).

use std::io::{self, IsTerminal, Write};

/// Writes one line to standard error.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// A counter of finished measurements: one line rewritten in place on a
/// terminal, nothing otherwise.
pub struct Progress {
    done_count: usize,
    total_count: usize,
    terminal: bool,
}

impl Progress {
    pub fn new(total_count: usize) -> Self {
        Self { done_count: 0, total_count, terminal: io::stderr().is_terminal() }
    }

    /// Shows what is being measured now.
    pub fn show(&self, what: &str) {
        if self.terminal {
            let mut stderr = io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K[{}/{}] {what}", self.done_count, self.total_count);
            let _ = stderr.flush();
        }
    }

    /// Goes on to the next step, and shows it.
    pub fn step(&mut self, what: &str) {
        self.show(what);
        self.advance();
    }

    /// Counts one measurement as finished.
    pub fn advance(&mut self) {
        self.done_count += 1;
    }

    /// Writes a line that stays, above the moving one.
    pub fn note(&self, line: &str) {
        self.clear();
        say(line);
    }

    /// Removes the moving line.
    pub fn clear(&self) {
        if self.terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
