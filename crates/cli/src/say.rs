//! Lines for the person who started this.

use std::fmt;
use std::io::Write;

use crate::picture;

/// On standard error, which under `ramfold run` is the program's too: so such lines are few.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let mut stderr = std::io::stderr().lock();
    picture::erase(&mut stderr);
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(stderr, "ramfold: {text}");
}
