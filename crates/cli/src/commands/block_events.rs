//! What a running `ramfold block` waits for: signals, and the end of its program.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ramfold_block::BackedDisk;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::commands::block_backing::EXIT_LOST;
use crate::say::say;

/// A signal that comes sooner is the first one once more: timeout(1) sends its own to the process
/// and to its group.
const SECOND_SIGNAL_AFTER: Duration = Duration::from_secs(1);

enum Event {
    Signal(i32),
    ProgramEnded(io::Result<ExitStatus>),
}

/// What the main thread waits for, and the program while it runs.
pub(crate) struct Waiting {
    events: mpsc::Receiver<Event>,
    program: Option<Pid>,
    ending: Arc<Ending>,
}

impl Waiting {
    pub(crate) fn begin(
        mut signals: Signals,
        program: Option<Child>,
        backed: Option<Arc<BackedDisk>>,
    ) -> Waiting {
        let (send, events) = mpsc::channel();
        let ending = Arc::new(Ending { asked: Mutex::default(), backed });
        let (of_signals, of_ending) = (send.clone(), Arc::clone(&ending));
        thread::spawn(move || {
            for signal in signals.forever() {
                of_ending.note(signal);
                // The main thread ends the process when it listens no longer.
                let _ = of_signals.send(Event::Signal(signal));
            }
        });
        let pid = program.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(mut child) = program {
            thread::spawn(move || send.send(Event::ProgramEnded(child.wait())));
        }
        Waiting { events, program: pid, ending }
    }

    /// Waits until the program ends, or without one for a signal to end. Returns the exit status.
    pub(crate) fn wait(&mut self, write_stats: &dyn Fn() -> anyhow::Result<()>) -> i32 {
        while let Ok(event) = self.events.recv() {
            match event {
                Event::Signal(SIGUSR2) => {
                    if let Err(error) = write_stats() {
                        say(format_args!("{error:#}"));
                    }
                }
                Event::Signal(signal) => match self.program {
                    // It has not been waited for: the number is still its own.
                    Some(pid) => pass_on(pid, signal),
                    None => return 0,
                },
                Event::ProgramEnded(ended) => {
                    self.program = None;
                    return exit_status(ended);
                }
            }
        }
        0
    }

    /// From now on the process does nothing but end, and a second signal ends it at once. Not
    /// before swap is off: swapoff(2) could not be left while nobody answers it.
    pub(crate) fn begin_to_end(&self) {
        self.ending.asked().is_ending = true;
    }
}

/// Whether a signal ends the process at once.
struct Ending {
    asked: Mutex<Asked>,
    /// The cache whose data would be lost.
    backed: Option<Arc<BackedDisk>>,
}

#[derive(Default)]
struct Asked {
    is_ending: bool,
    /// When the first signal asked for the end.
    first: Option<Instant>,
}

impl Ending {
    fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process if this is a second SIGINT or SIGTERM, and all else is over.
    fn note(&self, signal: i32) {
        if signal != SIGINT && signal != SIGTERM {
            return;
        }
        let mut asked = self.asked();
        let first = *asked.first.get_or_insert_with(Instant::now);
        let is_forced = asked.is_ending && first.elapsed() >= SECOND_SIGNAL_AFTER;
        drop(asked);
        if is_forced {
            let lost = self.backed.as_ref().map_or(0, |disk| disk.dirty_bytes());
            say(format_args!("ended at once by a second signal; {}", what_is_lost(lost)));
            std::process::exit(if lost > 0 { EXIT_LOST } else { 128 + signal });
        }
    }
}

fn what_is_lost(bytes: u64) -> String {
    match bytes {
        0 => "requests that were under way may not be answered".to_owned(),
        bytes => format!("{bytes} bytes that had been written were lost"),
    }
}

/// That of a program that has ended.
fn exit_status(ended: io::Result<ExitStatus>) -> i32 {
    match ended {
        Ok(status) => {
            let signal = status.signal().map_or(0, |signal| 128 + signal);
            status.code().unwrap_or(signal)
        }
        Err(error) => {
            say(format_args!("waiting for the program: {error}"));
            crate::EXIT_FAILED
        }
    }
}

/// The terminal sends SIGINT to the program too.
fn pass_on(program: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal)
        && signal != Signal::INT
    {
        // It may have ended by itself.
        let _ = kill_process(program, signal);
    }
}
