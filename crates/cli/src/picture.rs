//! Text at the lower end of a terminal that is drawn again and again, on standard error.
//!
//! The cursor stays above it, at the beginning of a line that is left free. So it is erased by
//! erasing all that is below the cursor, and what somebody else writes meanwhile stands whole,
//! above the next picture.

use std::io::{self, StderrLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Where nobody knows how large the terminal is.
const USUAL: (usize, usize) = (24, 80);
const ERASE: &str = "\r\x1b[J";

/// Whether there is one below the cursor. Changed only by who has standard error locked.
static IS_DRAWN: AtomicBool = AtomicBool::new(false);

/// Draws it, in place of the one before.
///
/// # Errors
/// When there is no standard error any more.
pub(crate) fn draw(text: &str) -> io::Result<()> {
    let drawn = drawing(text, rows_and_columns());
    let mut stderr = io::stderr().lock();
    IS_DRAWN.store(true, Ordering::Relaxed);
    stderr.write_all(drawn.as_bytes())
}

/// Takes it away, if there is one.
pub(crate) fn erase(stderr: &mut StderrLock<'_>) {
    if IS_DRAWN.swap(false, Ordering::Relaxed) {
        // Nobody is left to tell when standard error is closed.
        let _ = stderr.write_all(ERASE.as_bytes());
    }
}

/// Whether some lines can be written to standard error now, without waiting for whoever reads them.
pub(crate) fn is_read() -> bool {
    let stderr = io::stderr();
    let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // That it cannot be asked shows when it is written to.
    poll(&mut asked, Some(&now)).is_err() || !asked[0].revents().is_empty()
}

fn rows_and_columns() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row.into(), size.ws_col.into()),
        _ => USUAL,
    }
}

/// What draws as much of a text as there is room for, and brings the cursor back.
fn drawing(text: &str, (rows, columns): (usize, usize)) -> String {
    let mut drawn = ERASE.to_owned();
    let mut count = 0;
    for line in text.lines().take(rows - 1) {
        drawn.push('\n');
        drawn.extend(line.chars().take(columns - 1));
        count += 1;
    }
    // It would go up by one line for none.
    if count > 0 {
        drawn += &format!("\r\x1b[{count}A");
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_and_the_cursor_comes_back() {
        assert_eq!(drawing("one\ntwo\n", (24, 80)), "\r\x1b[J\none\ntwo\r\x1b[2A");
        assert_eq!(drawing("a long line\ntwo\nthree\n", (3, 7)), "\r\x1b[J\na long\ntwo\r\x1b[2A");
        assert_eq!(drawing("one\n", (1, 1)), ERASE);
        assert_eq!(drawing("", (24, 80)), ERASE);
    }
}
