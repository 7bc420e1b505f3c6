//! What a running `ramfold block` waits for: signals, and the end of its program.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
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
    of_program: mpsc::Sender<Event>,
    /// While it runs.
    program: Option<Pid>,
    had_program: bool,
    ending: Arc<Ending>,
}

impl Waiting {
    /// Looks after signals from now on.
    pub(crate) fn begin(mut signals: Signals) -> Waiting {
        let (of_program, events) = mpsc::channel();
        let ending = Arc::<Ending>::default();
        let (of_signals, of_ending) = (of_program.clone(), Arc::clone(&ending));
        thread::spawn(move || {
            for signal in signals.forever() {
                of_ending.note(signal);
                // The main thread ends the process when it listens no longer.
                let _ = of_signals.send(Event::Signal(signal));
            }
        });
        Waiting { events, of_program, program: None, had_program: false, ending }
    }

    /// The cache whose data would be lost by an end at once.
    pub(crate) fn look_after(&self, backed: &Arc<BackedDisk>) {
        // Once is enough.
        let _ = self.ending.backed.set(Arc::clone(backed));
    }

    /// Waits for this program too, which gets signals from now on.
    pub(crate) fn begin_program(&mut self, mut program: Child) {
        self.program = Pid::from_raw(program.id() as i32);
        self.had_program = true;
        let send = self.of_program.clone();
        thread::spawn(move || send.send(Event::ProgramEnded(program.wait())));
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
        self.ending.asked().begin_to_end(self.had_program);
    }
}

/// Whether a signal ends the process at once.
#[derive(Default)]
struct Ending {
    asked: Mutex<Asked>,
    /// The cache whose data would be lost.
    backed: OnceLock<Arc<BackedDisk>>,
}

impl Ending {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the process if this is a second SIGINT or SIGTERM, and all else is over.
    fn note(&self, signal: i32) {
        if signal != SIGINT && signal != SIGTERM {
            return;
        }
        let answer = self.asked().answer(Instant::now());
        let dirty_bytes = self.backed.get().map_or(0, |disk| disk.dirty_bytes());
        let lost = match dirty_bytes {
            0 => "requests under way may not be answered".to_owned(),
            bytes => format!("{bytes} bytes that had been written are lost"),
        };
        match answer {
            Answer::Usual => {}
            Answer::Warn => say(format_args!("ending; a second signal ends it at once: {lost}")),
            Answer::End => {
                say(format_args!("ended at once by a second signal: {lost}"));
                std::process::exit(if dirty_bytes > 0 { EXIT_LOST } else { 128 + signal });
            }
        }
    }
}

/// What signals have asked for.
#[derive(Default)]
struct Asked {
    is_ending: bool,
    /// When the first signal asked for the end.
    first: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Usual,
    /// It ends already, and no signal was the cause.
    Warn,
    End,
}

impl Asked {
    fn begin_to_end(&mut self, had_program: bool) {
        let is_ending = std::mem::replace(&mut self.is_ending, true);
        if had_program && !is_ending {
            // Signals before were the program's.
            self.first = None;
        }
    }

    fn answer(&mut self, now: Instant) -> Answer {
        match self.first {
            None => {
                self.first = Some(now);
                if self.is_ending { Answer::Warn } else { Answer::Usual }
            }
            Some(first) if self.is_ending && now - first >= SECOND_SIGNAL_AFTER => Answer::End,
            Some(_) => Answer::Usual,
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_signal_ends_it_when_nothing_else_is_left() {
        let start = Instant::now();
        let after = |tenths: u64| start + Duration::from_millis(100 * tenths);
        let mut asked = Asked::default();
        let answers = [(0, Answer::Usual), (50, Answer::Usual)];
        for (tenths, answer) in answers {
            assert_eq!(asked.answer(after(tenths)), answer, "swap is on, or the program goes on");
        }
        asked.begin_to_end(false);
        assert_eq!(asked.answer(after(60)), Answer::End);

        let mut asked = Asked::default();
        assert_eq!(asked.answer(after(0)), Answer::Usual);
        asked.begin_to_end(false);
        assert_eq!(asked.answer(after(9)), Answer::Usual, "the first once more");
        assert_eq!(asked.answer(after(10)), Answer::End);

        let mut asked = Asked::default();
        assert_eq!(asked.answer(after(0)), Answer::Usual, "the program's");
        asked.begin_to_end(true);
        assert_eq!(asked.answer(after(50)), Answer::Warn);
        asked.begin_to_end(true);
        assert_eq!(asked.answer(after(55)), Answer::Usual);
        assert_eq!(asked.answer(after(60)), Answer::End);
    }
}
