//! `ramfold run`: starts a program with the agent in it, and waits for it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use ramfold_codec::Choice;
use ramfold_pager::session::{Once, OwnedSession, SESSION_VARIABLE};
use ramfold_sys::executable::Executable;
use ramfold_sys::{cgroup, process};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Sent};

use crate::agent_library;
use crate::awake;
use crate::child;
use crate::commands::doctor;
use crate::duration::{duration, duration_or_never, millionths};
use crate::file_pressure;
use crate::object_trace::{ObjectTrace, Outcome};
use crate::output_file;
use crate::program::{self, NotRunnable};
use crate::say::say;
use crate::size::{Size, SizedPath, memory_bytes};
use crate::spill;
use crate::stats;

/// Of the limit around the program, what is left for all that is not its anonymous memory: page
/// tables, the kernel's buffers, file pages in use.
const MARGIN: f64 = 0.1;

/// How long the end of agents is waited for, in which they give memory back.
const AGENTS_END: Duration = Duration::from_secs(10);

/// Run a program, and all it starts, in less memory than it needs.
///
/// What the cap counts is anonymous memory in RAM: the program's resident pages, the compressed
/// ones, and ramfold's own tables. Clean file pages, which the kernel can drop, are not counted.
/// Below the cap nothing happens and the program runs at its own speed.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold run --memory 2G -- python3 train.py
  ramfold run --memory 40% --stats stats.json -- make -j4
  ramfold run --memory 500M --spill /var/tmp:10G -- ./solver
  ramfold run --cold-after 30s --slowdown 1% -- redis-server

Signals: SIGUSR1 brings all memory back and lifts the cap until it is sent again (for a debugger, a
core dump); SIGUSR2 writes --stats; others are passed on to the program.

Exit status: the program's own, 128 + N when signal N ended it; 125 when ramfold itself failed,
126 when the program cannot be executed, 127 when it was not found.")]
pub struct Arguments {
    /// What the program may cost in RAM: 512M, 1.5G, 40% (of the machine's RAM) [default: the
    /// control group's limit or the machine's RAM, less 10 %]
    #[arg(long, short, value_name = "SIZE")]
    memory: Option<Size>,

    /// How pages are compressed; auto: each by the codec that suits it, and harder where that
    /// spares many faults
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = codec_names())]
    codec: String,

    /// Keep at least so much of the memory for compressed pages, used or not, and with --spill no more:
    /// 100M, 30% (of --memory). For experiments: without it they take what they need
    #[arg(long, value_name = "SIZE")]
    pool: Option<Size>,

    /// Memory kept ready for compressed pages, so that compressing one needs none of the system's: 4M, 0
    /// for none. For experiments [default: 1/128 of --memory, 256K to 4M]
    #[arg(long, value_name = "SIZE")]
    reserve: Option<Size>,

    /// Let the oldest compressed pages, and those that do not compress, go to a file in folder DIR,
    /// encrypted, when memory is short: a disk, and SIZE of it at most [default: half of what is free]
    #[arg(long, value_name = "DIR[:SIZE]")]
    spill: Option<SizedPath>,

    /// Compress what was not touched for so long even where there is room for it: 30s, 5m
    #[arg(long, value_name = "TIME", value_parser = duration)]
    cold_after: Option<Duration>,

    /// With --cold-after: how much of its time the program may lose by that, as measured by its
    /// faults
    #[arg(long, value_name = "PERCENT", value_parser = millionths, default_value = "2%",
          requires = "cold_after")]
    slowdown: u64,

    /// Compress once more and harder, where there is time, what was compressed so long ago and not
    /// touched since: 10s, 1m, never [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = duration_or_never)]
    recompress_after: Option<Duration>,

    /// Write what happened to FILE as JSON when the program ends, and whenever this process gets
    /// SIGUSR2
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    /// Record in FILE what happens to the compressed objects of the first process that has any, for
    /// `ramfold bench store --object-trace`: lengths and lifetimes, no content. It takes SIZE at most
    /// [default: 256M, which is 32 million events]
    #[arg(long, value_name = "FILE[:SIZE]")]
    object_trace: Option<SizedPath>,

    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn codec_names() -> PossibleValuesParser {
    PossibleValuesParser::new(Choice::names().chain(["zstd"]))
}

/// Runs the program and returns the exit status for the shell.
///
/// # Errors
/// When the run cannot even begin. A program that cannot be looked after runs without ramfold.
pub fn run(arguments: Arguments) -> anyhow::Result<i32> {
    let cap = memory_bytes(arguments.memory, 1.0 - MARGIN)?;
    let codec: Choice = arguments.codec.parse()?;
    let path = match program::find(&arguments.program[0]) {
        Ok(path) => path,
        Err(error) => return Ok(not_runnable(&error)),
    };

    if let Some(file) = &arguments.stats {
        output_file::check(file)
            .with_context(|| format!("cannot write --stats {}", file.display()))?;
    }
    let session = Arc::new(OwnedSession::create(cap, codec).context("making the session")?);
    let pool_bytes = arguments.pool.map(|pool| pool.bytes(cap));
    if let Some(bytes) = pool_bytes {
        if bytes > cap / 10 * 9 {
            anyhow::bail!(
                "--pool {} MiB leaves the program less than a tenth of the {} MiB of --memory",
                bytes >> 20,
                cap >> 20
            );
        }
        session.pool_kept_bytes.store(bytes, Ordering::Relaxed);
    }
    if let Some(reserve) = arguments.reserve {
        let bytes = reserve.bytes(cap);
        if bytes > cap / 4 {
            anyhow::bail!(
                "--reserve {} MiB is more than a quarter of the {} MiB of --memory",
                bytes >> 20,
                cap >> 20
            );
        }
        session.reserve_bytes.store(bytes, Ordering::Relaxed);
    }
    // Open as long as this process lives, for those that join the session.
    let _spill_file = match &arguments.spill {
        Some(place) => Some(spill::set_up(place, &session, cap, pool_bytes)?),
        None => None,
    };
    let object_trace = match &arguments.object_trace {
        Some(place) => Some(ObjectTrace::begin(place, &session).with_context(no_trace(place))?),
        None => None,
    };
    if let Some(cold_after) = arguments.cold_after {
        session.cold_after_ns.store(nanoseconds(cold_after), Ordering::Relaxed);
        session.slowdown_ppm.store(arguments.slowdown, Ordering::Relaxed);
    }
    if let Some(recompress_after) = arguments.recompress_after {
        session.recompress_after_ns.store(nanoseconds(recompress_after), Ordering::Relaxed);
    }
    let executable = program::look(&path);
    if let Some(reason) = reason_to_run_without(&path, &executable) {
        say(format_args!("runs without ramfold: {reason}"));
        session.note_said(Once::NoUserfaultfd);
    }
    let library = agent_library::place()?;
    let preload = preload_list(library.path(), executable.first_library());
    let (fd, key) = session.fd_and_key();
    let place = format!("{}:{fd}:{key:016x}", std::process::id());
    let changes = [("LD_PRELOAD", preload.as_bytes()), (SESSION_VARIABLE, place.as_bytes())];

    // The agents' processes, which are nobody's children, come to this one when they end; so do others
    // that lose their parent, as they would come to init.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("becoming the reaper of the program's processes")?;
    let mut command = child::command(&path, &arguments.program, &changes, ignored_signals())?;
    let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED).context("handling signals")?;
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(&path, &error)),
    };
    let program = child.id();
    let ended = Arc::new(AtomicBool::new(false));
    let write_stats = {
        let session = Arc::clone(&session);
        let file = arguments.stats.clone();
        move || -> anyhow::Result<()> {
            let Some(file) = &file else { return Ok(()) };
            let mut text = serde_json::to_string_pretty(&stats::of_session(&session, program))?;
            text.push('\n');
            output_file::write(file, text.as_bytes())
                .with_context(|| format!("cannot write --stats {}", file.display()))
        }
    };
    let handle = signals.handle();
    let forwarder = std::thread::spawn({
        let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
        let write_stats = write_stats.clone();
        move || {
            forward_signals(
                &session,
                &mut signals,
                Pid::from_raw(program as i32),
                &ended,
                &write_stats,
            )
        }
    });
    let messenger = std::thread::spawn({
        let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
        move || show_messages(&session, &ended)
    });

    let watcher = std::thread::spawn({
        let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
        move || file_pressure::watch(&session, &ended)
    });
    let keeper = std::thread::spawn({
        let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
        move || awake::keep(&session, &ended)
    });
    let tracer = std::thread::spawn({
        let (session, ended) = (Arc::clone(&session), Arc::clone(&ended));
        let place = arguments.object_trace.clone();
        move || {
            if let Some((place, trace)) = place.zip(object_trace) {
                say_of_trace(&place, trace.keep(&session, &ended));
            }
        }
    });

    let status = wait_for_program(&session, Pid::from_raw(program as i32))?;
    ended.store(true, Ordering::Release);
    session.note_activity();
    watcher.thread().unpark();
    tracer.thread().unpark();
    handle.close();
    // Wakes the thread that waits for messages.
    session.message_count.fetch_add(1, Ordering::Release);
    session.wake_messenger();
    session.keep_awake(u64::MAX);
    for thread in [forwarder, messenger, watcher, keeper, tracer] {
        thread.join().map_err(|_| anyhow::anyhow!("a thread of ramfold panicked"))?;
    }
    // The program's status is worth more than this.
    if let Err(error) = write_stats() {
        say(format_args!("{error:#}"));
    }
    Ok(match status {
        Ended::Exit(code) => code,
        Ended::Signal(signal) => {
            if signal == Signal::SIGKILL {
                explain_kill(&session);
            }
            128 + signal as i32
        }
    })
}

/// How a program has ended.
enum Ended {
    Exit(i32),
    Signal(Signal),
}

/// Waits for the program, and for whatever else ends meanwhile and is this process's to wait for.
fn wait_for_program(session: &OwnedSession, program: Pid) -> anyhow::Result<Ended> {
    let ended = loop {
        let (pid, ended) = match waitpid(None, None).context("waiting for the program")? {
            WaitStatus::Exited(pid, code) => (pid, Ended::Exit(code)),
            WaitStatus::Signaled(pid, signal, _) => (pid, Ended::Signal(signal)),
            _ => continue,
        };
        if pid == program {
            break ended;
        }
        end_deserted(session, pid);
    };
    reap_agents(session);
    Ok(ended)
}

/// Waits for the agents of processes that have ended, each of which holds the memory of its process
/// until it has ended itself.
fn reap_agents(session: &OwnedSession) {
    let deadline = Instant::now() + AGENTS_END;
    while let Some(agent) = session.agents_without_program().next() {
        let Some(patience) = deadline.checked_duration_since(Instant::now()) else { break };
        process::wait_for_end(agent, patience);
        // It may be the child of a process that lives on.
        let _ = waitpid(Pid::from_raw(agent as i32), Some(WaitPidFlag::WNOHANG));
    }
    // What is left is alive, or nobody's child here.
    while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
        waitpid(None, Some(WaitPidFlag::WNOHANG))
    {}
}

/// Without its agent a program cannot go on: parts of its memory may be missing.
fn end_deserted(session: &OwnedSession, agent: Pid) {
    let Some(program) = session.deserted_by(agent.as_raw() as u32) else { return };
    // A program that has unmapped all memory, its agent's too, waits for that agent, and would
    // crash. (Its size in `statm` goes down only when the kernel has freed the pages.)
    let is_empty = match fs::read_to_string(format!("/proc/{program}/maps")) {
        Ok(maps) => maps.lines().all(|line| line.ends_with("[vsyscall]")),
        // It has ended. What may not be read is not empty.
        Err(error) => error.raw_os_error() == Some(Errno::ESRCH as i32),
    };
    if kill(Pid::from_raw(program as i32), Signal::SIGKILL).is_ok() && !is_empty {
        say(format_args!(
            "ended the program (pid {program}): its agent (pid {agent}), which has parts of its memory, was killed"
        ));
    }
}

fn no_trace(place: &SizedPath) -> impl Fn() -> String {
    move || format!("cannot write --object-trace {}", place.path.display())
}

/// The program's status is worth more than this.
fn say_of_trace(place: &SizedPath, result: io::Result<Outcome>) {
    let path = place.path.display();
    match result {
        Ok(Outcome::Whole) => {}
        Ok(Outcome::Full(bytes)) => say(format_args!(
            "--object-trace {path} has only the first {} KiB of what was recorded; {path}:SIZE gives it more room",
            bytes >> 10
        )),
        Ok(Outcome::Overrun) => say(format_args!(
            "--object-trace {path} ends before the program: it could not be written as fast as things happened"
        )),
        Ok(Outcome::Empty) => {
            say(format_args!("--object-trace {path} is empty: no process compressed anything"));
        }
        Err(error) => say(format_args!(
            "cannot write --object-trace {path}: {error}; it has what came before"
        )),
    }
}

fn not_runnable(error: &NotRunnable) -> i32 {
    say(format_args!("{error}"));
    error.exit_status()
}

fn not_started(path: &Path, error: &std::io::Error) -> i32 {
    say(format_args!("cannot run {}: {error}", path.display()));
    if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
}

fn reason_to_run_without(path: &Path, executable: &Executable) -> Option<String> {
    if let Some(reason) = executable.reason() {
        return Some(format!("{}: {reason}", path.display()));
    }
    doctor::userfaultfd_problem()
}

/// The agent last, behind what the caller has there already, and what must come first.
fn preload_list(library: &Path, first: Option<&str>) -> OsString {
    let mut list = OsString::new();
    let given = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if let Some(first) = first
        && !given.to_string_lossy().split([':', ' ']).any(|name| name == first)
    {
        list.push(first);
        list.push(":");
    }
    list.push(given);
    if !list.is_empty() && !list.as_encoded_bytes().ends_with(b":") {
        list.push(":");
    }
    list.push(library);
    list
}

const FORWARDED: &[i32] = &[
    signal_hook::consts::SIGHUP,
    signal_hook::consts::SIGINT,
    signal_hook::consts::SIGQUIT,
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGUSR1,
    signal_hook::consts::SIGUSR2,
    signal_hook::consts::SIGWINCH,
];

/// Signals that this process was started to ignore, as by nohup(1) or as a shell's background job, and
/// handles itself: the program begins by ignoring them too.
fn ignored_signals() -> Vec<Signal> {
    let mask = ramfold_sys::proc::ignored_signals().unwrap_or(0);
    let ignores = |signal: &&i32| mask & 1 << (**signal - 1) != 0;
    FORWARDED.iter().filter(ignores).filter_map(|&signal| Signal::try_from(signal).ok()).collect()
}

/// Passes on what was sent to this process alone. What the terminal sends reaches the program by
/// itself.
fn forward_signals(
    session: &OwnedSession,
    signals: &mut SignalsInfo<WithOrigin>,
    program: Pid,
    ended: &AtomicBool,
    write_stats: &dyn Fn() -> anyhow::Result<()>,
) {
    for origin in signals.forever() {
        if ended.load(Ordering::Acquire) {
            return;
        }
        let by_a_process =
            matches!(origin.cause, Cause::Sent(Sent::User | Sent::Queue | Sent::TKill));
        if origin.signal == signal_hook::consts::SIGUSR1 {
            say(format_args!(
                "{}",
                if session.toggle_bringing_back() {
                    "SIGUSR1: brings all memory back and compresses none, whatever the cap, until the next one"
                } else {
                    "SIGUSR1: the cap holds again"
                }
            ));
        } else if origin.signal == signal_hook::consts::SIGUSR2 {
            if let Err(error) = write_stats() {
                say(format_args!("{error:#}"));
            }
        } else if by_a_process && let Ok(signal) = Signal::try_from(origin.signal) {
            // A program that has just ended needs it no more.
            let _ = kill(program, signal);
        }
    }
}

fn show_messages(session: &OwnedSession, ended: &AtomicBool) {
    loop {
        let seen = session.message_count.load(Ordering::Acquire);
        session.take_messages(|text| say(format_args!("{}", String::from_utf8_lossy(text))));
        if ended.load(Ordering::Acquire) {
            return;
        }
        session.wait_for_message(seen);
    }
}

/// Exit status 137 is what people come to ramfold for; say what is known.
fn explain_kill(session: &OwnedSession) {
    let over = session.over_cap_bytes_max.load(Ordering::Relaxed);
    let cap = session.memory_cap_bytes.load(Ordering::Relaxed);
    if over > 0 {
        say(format_args!(
            "the program was killed; its memory went {} MiB over the cap of {} MiB",
            over >> 20,
            cap >> 20
        ));
    } else if let Some(limit) = cgroup::memory_limit_bytes()
        && limit < cap
    {
        say(format_args!(
            "the program was killed; --memory is {} MiB, but the control group allows {} MiB only: try --memory {}M",
            cap >> 20,
            limit >> 20,
            (limit as f64 * (1.0 - MARGIN)) as u64 >> 20
        ));
    }
}
