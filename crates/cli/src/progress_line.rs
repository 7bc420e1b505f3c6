//! A line on the terminal that says how far something is.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ramfold_advise::progress::Progress;

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(200);

/// Does something that takes long, and shows how much of it is done: `40 % simulated`. Where
/// standard error is no terminal nothing is shown.
pub(crate) fn shown<T>(done: &'static str, work: impl FnOnce(&Progress) -> T) -> T {
    let progress = Arc::new(Progress::default());
    let line = io::stderr().is_terminal().then(|| show(Arc::clone(&progress), done));
    let result = work(&progress);
    progress.end();
    if let Some(line) = line {
        line.thread().unpark();
        // It only draws.
        let _ = line.join();
    }
    result
}

fn show(progress: Arc<Progress>, done: &'static str) -> JoinHandle<()> {
    thread::spawn(move || {
        while !progress.is_over() {
            // Nobody is left to tell when standard error is closed.
            let _ = write!(io::stderr(), "\r\x1b[K{:3.0} % {done}", progress.part() * 100.0);
            thread::park_timeout(LOOK);
        }
        let _ = write!(io::stderr(), "\r\x1b[K");
    })
}
