//! The end of a run that found something wrong: one message, exit status 1.
//!
//! Nothing here allocates or locks, so it works in signal handlers, in children of a program with
//! threads, and when the heap itself went wrong.

use std::fmt::{self, Write};
use std::sync::atomic::Ordering::SeqCst;

use crate::{current, operations, world};

/// Exit status: something was wrong.
pub(crate) const EXIT_WRONG: i32 = 1;
/// Exit status: no progress.
pub(crate) const EXIT_HANG: i32 = 2;
/// Exit status: bad usage, or the machine lacks what the program needs to start.
pub(crate) const EXIT_USAGE: i32 = 3;
/// Exit status of a child that could not do its part on this machine.
pub(crate) const EXIT_SKIP: i32 = 77;

/// Reports that something is wrong and ends the process.
#[macro_export]
macro_rules! fail {
    ($($argument:tt)*) => { $crate::failure::fail(format_args!($($argument)*)) };
}

/// Text of bounded length.
pub(crate) struct Text {
    bytes: [u8; Self::BYTES],
    length: usize,
}

impl Text {
    const BYTES: usize = 12 << 10;

    pub(crate) const fn new() -> Self {
        Self { bytes: [0; Self::BYTES], length: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Text {
    /// What does not fit is cut off.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = Self::BYTES - self.length;
        let taken = text.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

/// Writes to stderr without buffering. There is nobody to tell when that fails.
pub(crate) fn print(text: &[u8]) {
    let mut rest = text;
    while !rest.is_empty() {
        // SAFETY: the slice is readable.
        let written = unsafe { libc::write(2, rest.as_ptr().cast(), rest.len()) };
        if written <= 0 {
            return;
        }
        rest = &rest[written as usize..];
    }
}

/// Ends the process at once, without running anything that exit(3) runs.
pub(crate) fn end(status: i32) -> ! {
    // SAFETY: does not return.
    unsafe { libc::_exit(status) }
}

/// Lets one reporter through and ends the others. The first one is given the time to finish.
fn claim() {
    let Some(world) = world::world() else { return };
    let me = current::tid() as u32;
    if let Err(first) = world.table.header.failing.compare_exchange(0, me, SeqCst, SeqCst)
        && first != me
    {
        // SAFETY: the structure is a valid argument, the remainder is not asked for.
        unsafe {
            let wait = libc::timespec { tv_sec: 3, tv_nsec: 0 };
            libc::nanosleep(&wait, std::ptr::null_mut());
        }
        end(EXIT_WRONG);
    }
}

/// Reports that something is wrong and ends the process; see `fail!`.
pub(crate) fn fail(message: fmt::Arguments<'_>) -> ! {
    fail_with(|text| {
        let _ = text.write_fmt(message);
    })
}

/// As `fail`, with a message that is built only once this reporter is the first.
#[cold]
pub(crate) fn fail_with(message: impl FnOnce(&mut Text)) -> ! {
    claim();
    let mut text = Text::new();
    // Writing to `Text` cannot fail.
    let _ = text.write_str("ramfold-torture: WRONG: ");
    message(&mut text);
    if text.as_bytes().last() != Some(&b'\n') {
        let _ = text.write_str("\n");
    }
    let _ = describe_context(&mut text);
    print(text.as_bytes());
    end(EXIT_WRONG)
}

fn describe_context(text: &mut Text) -> fmt::Result {
    let Some(world) = world::world() else { return Ok(()) };
    let pid = current::pid();
    if pid == world.pid {
        write!(text, "  in process {pid}")?;
    } else {
        write!(text, "  in process {pid}, a child of {}", world.pid)?;
    }
    if let Some(thread) = current::thread() {
        let slot = &world.table.threads[thread];
        let operation = operations::name(slot.operation.load(SeqCst) as usize);
        let turn = slot.turns.load(SeqCst);
        write!(text, ", thread {thread}, operation {operation} (number {turn} of the thread)")?;
    }
    let options = world.options;
    write!(
        text,
        "\n  seed {} generation {}: ramfold-torture --seed {} --threads {} --megabytes {}",
        world.recipe.seed,
        options.resume.generation,
        options.seed,
        options.threads,
        options.megabytes
    )?;
    if options.incompressible_percent != 10 {
        write!(text, " --incompressible {}", options.incompressible_percent)?;
    }
    if options.children != 4 {
        write!(text, " --children {}", options.children)?;
    }
    if options.close_descriptors {
        text.write_str(" --close-descriptors")?;
    }
    for (at, name) in options.only.iter().enumerate() {
        let lead = if at == 0 { " --only " } else { "," };
        write!(text, "{lead}{name}")?;
    }
    for (at, name) in options.skip.iter().enumerate() {
        let lead = if at == 0 { " --skip " } else { "," };
        write!(text, "{lead}{name}")?;
    }
    text.write_str("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_not_overrun() {
        let mut text = Text::new();
        for _ in 0..Text::BYTES {
            write!(text, "abcdefg").unwrap();
        }
        assert_eq!(text.as_bytes().len(), Text::BYTES);
        assert!(text.as_bytes().starts_with(b"abcdefgabc"));
    }
}
