//! Runs in a process that does other things too.

mod support;

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ramfold_launch::{BudgetError, Ended, Launch, SignalError, Size, SpillError, StartError};
use support::{Hog, Messages, can_look_after, shell, wait_until};

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_program_runs_to_its_end() {
    let run = Launch::new("/bin/true").start().unwrap();
    assert_eq!(run.wait().unwrap(), Ended::Exited(0));
    // Again, and by all ways.
    assert_eq!(run.wait().unwrap(), Ended::Exited(0));
    assert_eq!(run.try_wait().unwrap().unwrap(), Ended::Exited(0));
    assert_eq!(run.wait_timeout(Duration::ZERO).unwrap().unwrap(), Ended::Exited(0));
    assert!(matches!(run.signal(SIGTERM), Err(SignalError::Ended)));
    if can_look_after() {
        assert_eq!(run.statistics().number("processes_started"), Some(1));
    }
}

#[test]
fn how_a_program_ends_is_known() {
    for (script, ended, status) in [
        ("exit 7", Ended::Exited(7), 7),
        ("kill -TERM $$", Ended::Signaled(SIGTERM), 143),
        // A real-time signal.
        ("kill -40 $$", Ended::Signaled(40), 168),
    ] {
        let run = shell(script).start().unwrap();
        assert_eq!(run.wait().unwrap(), ended, "{script}");
        assert_eq!(ended.shell_status(), status);
    }
}

#[test]
fn a_program_gets_its_arguments_environment_folder_and_streams() {
    let folder = tempfile::tempdir().unwrap();
    let mut launch = shell("cat; echo \"$0,$1,$A,$B,$C,$PWD\"; echo error >&2");
    launch
        .args(["zero", "one"])
        .environment(["PATH=/usr/bin:/bin", "A=1", "B=2"])
        .env("B", "3")
        .env("C", "4")
        .env_remove("A")
        .current_dir(folder.path())
        .stdin(fs::File::open("/proc/self/comm").unwrap())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let run = launch.start().unwrap();
    let (mut out, mut errors) = (String::new(), String::new());
    run.take_stdout().unwrap().read_to_string(&mut out).unwrap();
    run.take_stderr().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(run.wait().unwrap(), Ended::Exited(0));
    let (_, line) = out.split_once('\n').unwrap();
    assert_eq!(line, format!("zero,one,,3,4,{}\n", folder.path().display()));
    assert_eq!(errors, "error\n");
    assert!(run.take_stdout().is_none() && run.take_stdin().is_none());
}

#[test]
fn a_program_is_held_to_its_memory_and_counted() {
    if !can_look_after() {
        return;
    }
    let mut hog = Hog::start(30);
    hog.read_all();
    let statistics = hog.run.statistics();
    let number = |name| statistics.number(name).unwrap();
    assert_eq!(number("memory_cap_bytes"), 30 << 20);
    assert!(number("pages_swapped_out") > 1000 && number("faults") > 1000);
    assert!(number("cost_bytes") <= 31 << 20, "{}", number("cost_bytes"));
    assert!(hog.run.try_wait().is_none());
    assert!(hog.run.wait_timeout(Duration::from_millis(1)).is_none());
    let (messages, run) = (hog.messages.clone(), hog.end());
    assert_eq!(run.wait().unwrap(), Ended::Exited(0));
    assert_eq!(messages.all(), Vec::<String>::new());
    assert!(run.statistics().number("pages_swapped_in").unwrap() > 1000);
}

#[test]
fn the_memory_can_be_changed_while_the_program_runs() {
    if !can_look_after() {
        return;
    }
    let mut hog = Hog::start(1024);
    // Far from the cap an agent seldom looks.
    wait_until("it is seen what it costs", || hog.number("cost_bytes") > 55 << 20);
    assert_eq!(hog.number("processes_activated"), 0);
    hog.run.set_memory(30 << 20).unwrap();
    wait_until("it costs less", || hog.number("cost_bytes") <= 30 << 20);
    hog.read_all();
    assert!(hog.number("pages_swapped_in") > 1000);
    hog.run.set_memory(200 << 20).unwrap();
    assert_eq!(hog.number("memory_cap_bytes"), 200 << 20);
    hog.read_all();
    let now = hog.number("resident_bytes");
    assert!(now > 50 << 20, "there is room for all, and {now} bytes are resident");
    // Lower than ever, with the agent long at work.
    hog.run.set_memory(20 << 20).unwrap();
    wait_until("it costs less still", || hog.number("cost_bytes") <= 20 << 20);
    hog.read_all();
    assert_eq!(hog.end().wait().unwrap(), Ended::Exited(0));
}

#[test]
fn parts_that_do_not_fit_the_new_memory_are_refused() {
    let run = shell("read line")
        .stdin(Stdio::piped())
        .pool(Size::Bytes(60 << 20))
        .memory(Size::Bytes(100 << 20))
        .start()
        .unwrap();
    let refused = run.set_memory(64 << 20).unwrap_err();
    assert!(matches!(refused, BudgetError::Pool { .. }), "{refused}");
    assert_eq!(run.statistics().number("memory_cap_bytes"), Some(100 << 20));
    run.set_memory(80 << 20).unwrap();
    assert_eq!(run.statistics().number("memory_cap_bytes"), Some(80 << 20));
}

#[test]
fn a_run_that_is_dropped_ends_its_program() {
    let run = Launch::new("sleep").arg("1000").start().unwrap();
    let program = run.id();
    assert!(exists(program));
    drop(run);
    assert!(!exists(program));
}

#[test]
fn what_a_program_has_started_outlives_a_dropped_run() {
    if !can_look_after() {
        return;
    }
    // The child goes on executing programs, which find their session by this process.
    let script = "
        (
            while [ ! -e \"$0/enough\" ]; do /bin/true; sleep 0.01; done
            echo $RAMFOLD_SESSION > \"$0/end\"
        ) &
        echo $! > \"$0/new\"; mv \"$0/new\" \"$0/child\"
        exec sleep 1000";
    let folder = tempfile::tempdir().unwrap();
    let path = |name| folder.path().join(name);
    let run = shell(script).arg(folder.path()).start().unwrap();
    wait_until("the child is there", || path("child").exists());
    let child = fs::read_to_string(path("child")).unwrap().trim().parse().unwrap();
    drop(run);
    assert!(exists(child));
    fs::write(path("enough"), "").unwrap();
    wait_until("the child ends", || path("end").exists());
    let place = fs::read_to_string(path("end")).unwrap();
    let mut parts = place.trim().split(':');
    assert_eq!(parts.next(), Some(&*std::process::id().to_string()));
    let link = fs::read_link(format!("/proc/self/fd/{}", parts.next().unwrap())).unwrap();
    assert!(link.to_str().unwrap().contains("ramfold-session"), "{link:?}");
}

#[test]
fn two_runs_and_another_child_are_each_their_own() {
    if !can_look_after() {
        return;
    }
    let mut other = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
    let (mut small, mut large) = (Hog::start(30), Hog::start(1024));
    small.read_all();
    large.read_all();
    assert!(small.number("pages_swapped_out") > 1000);
    assert_eq!(large.number("pages_swapped_out"), 0);
    large.run.signal(SIGKILL).unwrap();
    assert_eq!(large.run.wait().unwrap(), Ended::Signaled(SIGKILL));
    assert!(small.run.try_wait().is_none());
    small.read_all();
    assert_eq!(small.end().wait().unwrap(), Ended::Exited(0));
    assert_eq!(other.wait().unwrap().code(), Some(3));
}

#[test]
fn a_program_whose_agent_is_killed_is_ended() {
    if !can_look_after() {
        return;
    }
    let mut hog = Hog::start(30);
    hog.read_all();
    // The agent is the process of this name that maps what the program maps.
    let heap = |pid: u32| {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.lines().find(|line| line.ends_with("[heap]")).map(str::to_owned)
    };
    let program_heap = heap(hog.run.id()).unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let agent = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == "ramfold-agent"
        })
        .find(|&pid| heap(pid).as_ref() == Some(&program_heap))
        .unwrap();
    let killed = Command::new("kill").args(["-9", &agent.to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(hog.run.wait().unwrap(), Ended::Signaled(SIGKILL));
    let messages = hog.messages.all();
    let (program, agent) = (hog.run.id(), format!("(pid {agent})"));
    assert!(
        messages.iter().any(|text| {
            text.contains(&agent) && text.contains(&format!("ended the program (pid {program})"))
        }),
        "{messages:?}"
    );
}

#[test]
fn a_program_that_cannot_be_started_is_told_why() {
    let start = |program: &str| Launch::new(program).start().map(drop).unwrap_err();
    let error = start("no-such-program-anywhere");
    assert_eq!(error.to_string(), "\"no-such-program-anywhere\" was not found in PATH");
    assert!(matches!(error, StartError::NotFound { in_path: true, .. }));
    let error = start("/etc/passwd");
    assert_eq!(error.to_string(), "/etc/passwd is not executable");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    fs::copy("/bin/true", &broken).unwrap();
    fs::write(&broken, "\u{7f}ELF").unwrap();
    let error = start(broken.to_str().unwrap());
    assert!(matches!(&error, StartError::NotRun { path, .. } if *path == broken), "{error}");
    let error = Launch::new("true").arg("a\0b").start().map(drop).unwrap_err();
    assert!(matches!(&error, StartError::ZeroByte { part, .. } if part == "a\0b"), "{error}");
    let error = Launch::new("true").env("A", "a\0b").start().map(drop).unwrap_err();
    assert!(matches!(&error, StartError::ZeroByte { .. }), "{error}");
}

#[test]
fn options_that_cannot_be_met_are_told_before_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    let start = |set: fn(&mut Launch) -> &mut Launch| {
        let mut launch = Launch::new("touch");
        launch.arg(&ran).memory(Size::Bytes(100 << 20));
        set(&mut launch).start().map(drop).unwrap_err()
    };
    let error = start(|launch| launch.pool(Size::Fraction(0.95)));
    assert!(matches!(error, StartError::Budget(BudgetError::Pool { .. })), "{error}");
    let error = start(|launch| launch.reserve(Size::Bytes(26 << 20)));
    assert!(matches!(error, StartError::Budget(BudgetError::Reserve { .. })), "{error}");
    let error = start(|launch| launch.spill("/dev/shm", None));
    assert!(matches!(error, StartError::Spill(SpillError::InRam { .. })), "{error}");
    let error = start(|launch| launch.object_trace("/no/such/folder/file", None));
    assert!(matches!(error, StartError::ObjectTrace { .. }), "{error}");
    assert!(!ran.exists());
}

#[test]
fn what_cannot_be_looked_after_runs_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
    fs::write(&source, "int main(void) { return 3; }\n").unwrap();
    let compiled = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).status();
    assert!(compiled.unwrap().success());
    let mut launch = Launch::new(&program);
    let messages = Messages::of(&mut launch);
    let run = launch.memory(Size::Bytes(10 << 20)).start().unwrap();
    assert_eq!(run.wait().unwrap(), Ended::Exited(3));
    let expected = format!("runs without ramfold: {}: it is statically linked", program.display());
    assert_eq!(messages.all(), [expected]);
}
