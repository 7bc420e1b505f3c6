//! What a run does to the whole process, where it is asked to; and that nothing is left of it. One
//! test: what is watched here others would change.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;

use ramfold_launch::{Ended, Request, StartError};
use rustix::process::{Signal, child_subreaper, getpid, kill_process};
use support::{shell, wait_until};

#[test]
fn what_concerns_the_whole_process() {
    nothing_is_left_of_a_run();
    orphans_are_adopted_by_a_run_that_is_alone();
    signals_are_passed_on();
}

/// Descriptors and threads of this process.
fn descriptors_and_threads() -> (usize, usize) {
    let count = |folder| fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

fn nothing_is_left_of_a_run() {
    let before = descriptors_and_threads();
    for drops in [false, true] {
        let run = shell("read line").stdin(Stdio::piped()).start().unwrap();
        assert_ne!(descriptors_and_threads(), before);
        if !drops {
            drop(run.take_stdin());
            assert_eq!(run.wait().unwrap(), Ended::Exited(1));
        }
        drop(run);
        // A thread that was joined can be listed for a moment.
        wait_until("nothing is left", || descriptors_and_threads() == before);
        assert!(child_subreaper().unwrap().is_none());
    }
    assert!(shell("true").spill("/nowhere", None).start().is_err());
    assert_eq!(descriptors_and_threads(), before);
}

fn orphans_are_adopted_by_a_run_that_is_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let run = shell("sh -c '(read line; exit 5) <\"$0\" & echo $!' \"$0\"; read line")
        .arg(&fifo)
        .adopt_orphans()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .start()
        .unwrap();
    for adopts in [false, true] {
        let mut second = shell("true");
        if adopts {
            second.adopt_orphans();
        }
        assert!(matches!(second.start().map(drop), Err(StartError::NotAlone)));
    }
    assert!(child_subreaper().unwrap().is_some());
    let mut orphan = String::new();
    BufReader::new(run.take_stdout().unwrap()).read_line(&mut orphan).unwrap();
    let stat = format!("/proc/{}/status", orphan.trim());
    let parent = format!("PPid:\t{}\n", std::process::id());
    wait_until("the orphan is adopted", || fs::read_to_string(&stat).unwrap().contains(&parent));
    fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    wait_until("the orphan is waited for", || !fs::exists(&stat).unwrap());
    drop(run.take_stdin());
    assert_eq!(run.wait().unwrap(), Ended::Exited(1));
    assert!(child_subreaper().unwrap().is_none());
    // The next may, but not beside another.
    let other = shell("read line").stdin(Stdio::piped()).start().unwrap();
    let second = shell("true").adopt_orphans().start().map(drop);
    assert!(matches!(second, Err(StartError::NotAlone)));
    drop(other);
    let run = shell("exit 4").adopt_orphans().start().unwrap();
    assert_eq!(run.wait().unwrap(), Ended::Exited(4));
}

fn signals_are_passed_on() {
    let run = shell("trap 'exit 6' TERM; echo; while :; do sleep 0.01; done")
        .catch_signals()
        .stdout(Stdio::null())
        .start()
        .unwrap();
    let run = Arc::new(run);
    let (tell, told) = mpsc::channel();
    let signals = run.take_signals().unwrap();
    assert!(run.take_signals().is_none());
    let relay = signals.pass_on(Arc::clone(&run), move |run, request| {
        tell.send((run.id(), request)).unwrap();
    });
    let relay = relay.unwrap();
    kill_process(getpid(), Signal::USR2).unwrap();
    assert_eq!(told.recv().unwrap(), (run.id(), Request::WriteStatistics));
    kill_process(getpid(), Signal::USR1).unwrap();
    assert_eq!(told.recv().unwrap(), (run.id(), Request::ToggleBringingBack));
    // The shell handles it once it has got that far.
    wait_until("the program has ended", || {
        let sent = Command::new("kill").arg(std::process::id().to_string()).status().unwrap();
        assert!(sent.success());
        run.try_wait().is_some()
    });
    assert!(matches!(run.wait().unwrap(), Ended::Exited(6) | Ended::Signaled(15)));
    drop(relay);
}
