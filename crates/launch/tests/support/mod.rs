//! What the tests of runs have in common.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ramfold_launch::{Launch, Run, Size, userfaultfd_problem};

/// Longer than anything here takes, even on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Debian's, not a wrapper script that may stand in for it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// Needs 60 MB. For each line that it is given it reads all of that.
const HOG: &str = "
import sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
print('up', flush=True)
for line in sys.stdin:
    for i, page in enumerate(pages):
        assert page == bytes([i % 7]) * 4000
    print('right', flush=True)
";

/// Waits until something is so. Panics when it never is.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE, "waited in vain until {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Can agents look after memory here? Where they cannot the tests of that say so and check nothing.
pub(crate) fn can_look_after() -> bool {
    let problem = userfaultfd_problem();
    if let Some(problem) = &problem {
        eprintln!("SKIPPED, ramfold cannot look after memory here: {problem}");
    }
    problem.is_none()
}

/// A shell with a script.
pub(crate) fn shell(script: &str) -> Launch {
    let mut launch = Launch::new("sh");
    launch.args(["-c", script]);
    launch
}

/// A program that needs 60 MB, and whom it answers.
pub(crate) struct Hog {
    pub run: Run,
    pub messages: Messages,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Hog {
    /// Starts it with so much memory, in MiB.
    pub(crate) fn start(mebibytes: u64) -> Hog {
        let mut launch = Launch::new(PYTHON);
        launch.args(["-c", HOG]).memory(Size::Bytes(mebibytes << 20));
        let messages = Messages::of(&mut launch);
        let run = launch.stdin(Stdio::piped()).stdout(Stdio::piped()).start().unwrap();
        let stdin = run.take_stdin().unwrap();
        let stdout = BufReader::new(run.take_stdout().unwrap());
        let mut hog = Hog { run, messages, stdin, stdout };
        assert_eq!(hog.line(), "up\n");
        hog
    }

    /// Has it read all its memory.
    pub(crate) fn read_all(&mut self) {
        self.stdin.write_all(b"go\n").unwrap();
        assert_eq!(self.line(), "right\n");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// What a counter or gauge says now.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.run.statistics().number(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// Lets it end.
    pub(crate) fn end(self) -> Run {
        drop(self.stdin);
        self.run
    }
}

/// The messages of a run.
#[derive(Clone, Default)]
pub(crate) struct Messages(Arc<Mutex<Vec<String>>>);

impl Messages {
    /// Collects what this launch says from now on.
    pub(crate) fn of(launch: &mut Launch) -> Messages {
        let messages = Messages::default();
        let list = messages.clone();
        launch.on_message(move |message| list.0.lock().unwrap().push(message.to_string()));
        messages
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
