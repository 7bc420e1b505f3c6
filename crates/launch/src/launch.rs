//! What is to be started, and how.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ramfold_codec::Choice;
use ramfold_session::{Once, OwnedSession, SESSION_VARIABLE};
use ramfold_sys::executable::Executable;

use crate::Size;
use crate::agent_library::Placed;
use crate::budget::Budget;
use crate::environment::Environment;
use crate::error::StartError;
use crate::message::{Message, OnMessage, Reason};
use crate::object_trace::ObjectTrace;
use crate::page_watch::{self, OnPages, SeenPages};
use crate::reaping::{self, Children};
use crate::run::{Lent, Parts, Run, end_child};
use crate::signals::CaughtSignals;
use crate::size::memory_bytes;
use crate::threads::Threads;
use crate::userfaultfd::userfaultfd_problem;
use crate::{awake, child, file_pressure, program, spill};

/// Of the limit around the program, what its anonymous memory may take where nothing else is said:
/// the rest is for page tables, the kernel's buffers, file pages in use.
pub(crate) const MEMORY_SHARE: f64 = 0.9;
/// How much of its time the program may lose by cold pages where nothing else is said, in
/// millionths.
const SLOWDOWN_PPM: u64 = 20_000;

const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
const PATH_VARIABLE: &str = "PATH";

/// A program to be started, and the options of its run.
///
/// As with [`std::process::Command`] each method changes one option and returns the same launch.
pub struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Option<Vec<OsString>>,
    variables: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    memory: Option<Size>,
    codec: Choice,
    budget: Budget,
    spill: Option<(PathBuf, Option<Size>)>,
    cold_after: Option<Duration>,
    slowdown_ppm: u64,
    recompress_after: Option<Duration>,
    object_trace: Option<(PathBuf, Option<Size>)>,
    page_watch: Option<PageWatch>,
    adopts: bool,
    catches: bool,
    on_message: Arc<OnMessage>,
}

/// The files that a run writes.
struct Files {
    spill: Option<File>,
    trace: Option<NamedTrace>,
}

/// Who wants to know of the program's pages, and how much of its time that may take, in millionths.
#[derive(Clone)]
struct PageWatch {
    slowdown_ppm: u64,
    on_pages: Arc<OnPages>,
}

/// An object trace, and where it is.
struct NamedTrace {
    path: PathBuf,
    trace: ObjectTrace,
}

impl Launch {
    /// A program, by its path, or by its name where it is in one of the folders of `PATH`.
    pub fn new(program: impl Into<OsString>) -> Launch {
        Launch {
            program: program.into(),
            arguments: Vec::new(),
            environment: None,
            variables: Vec::new(),
            folder: None,
            stdin: None,
            stdout: None,
            stderr: None,
            memory: None,
            codec: Choice::Auto,
            budget: Budget::default(),
            spill: None,
            cold_after: None,
            slowdown_ppm: SLOWDOWN_PPM,
            recompress_after: None,
            object_trace: None,
            page_watch: None,
            adopts: false,
            catches: false,
            on_message: Arc::new(|_| ()),
        }
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl Into<OsString>) -> &mut Launch {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args(
        &mut self,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> &mut Launch {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the program's environment.
    pub fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Launch {
        self.variables.push((name.into(), Some(value.into())));
        self
    }

    /// Removes a variable from the program's environment.
    pub fn env_remove(&mut self, name: impl Into<OsString>) -> &mut Launch {
        self.variables.push((name.into(), None));
        self
    }

    /// The program's whole environment, but for what [`Launch::env`] and [`Launch::env_remove`]
    /// change: entries `NAME=VALUE`, in this order. Without it: what this process has.
    pub fn environment(
        &mut self,
        entries: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> &mut Launch {
        self.environment = Some(entries.into_iter().map(Into::into).collect());
        self
    }

    /// The program's current directory. A relative path of the program itself is from this
    /// process's.
    pub fn current_dir(&mut self, folder: impl Into<PathBuf>) -> &mut Launch {
        self.folder = Some(folder.into());
        self
    }

    /// The program's standard input. Without it: this process's.
    pub fn stdin(&mut self, stdin: impl Into<Stdio>) -> &mut Launch {
        self.stdin = Some(stdin.into());
        self
    }

    /// The program's standard output. Without it: this process's.
    pub fn stdout(&mut self, stdout: impl Into<Stdio>) -> &mut Launch {
        self.stdout = Some(stdout.into());
        self
    }

    /// The program's standard error. Without it: this process's.
    pub fn stderr(&mut self, stderr: impl Into<Stdio>) -> &mut Launch {
        self.stderr = Some(stderr.into());
        self
    }

    /// What the program, and all that it starts, may cost in RAM: bytes, or a share of the
    /// machine's RAM. Without it: the control group's limit or the machine's RAM, less a tenth.
    pub fn memory(&mut self, memory: Size) -> &mut Launch {
        self.memory = Some(memory);
        self
    }

    /// How pages are compressed. Without it: each by the codec that suits it.
    pub fn codec(&mut self, codec: Choice) -> &mut Launch {
        self.codec = codec;
        self
    }

    /// Keeps at least so much of the memory (or such a share of it) for compressed pages, used or
    /// not, and with [`Launch::spill`] no more. For experiments: without it they take what they
    /// need.
    pub fn pool(&mut self, pool: Size) -> &mut Launch {
        self.budget.pool = Some(pool);
        self
    }

    /// Memory (or a share of it) that is kept ready for compressed pages, so that compressing one
    /// needs none of the system's. For experiments: without it 1/128 of the memory, 256 KiB to 4
    /// MiB.
    pub fn reserve(&mut self, reserve: Size) -> &mut Launch {
        self.budget.reserve = Some(reserve);
        self
    }

    /// Lets the oldest compressed pages, and those that do not compress, go to a file in a folder
    /// on a disk, encrypted, when memory is short. The file takes so much at most, or such a share
    /// of what is free; without a size half of that.
    pub fn spill(&mut self, folder: impl Into<PathBuf>, size: Option<Size>) -> &mut Launch {
        self.spill = Some((folder.into(), size));
        self
    }

    /// Compresses what was not touched for so long even where there is room for it.
    pub fn cold_after(&mut self, time: Duration) -> &mut Launch {
        self.cold_after = Some(time);
        self
    }

    /// How much of its time the program may lose by [`Launch::cold_after`], in millionths. Without
    /// it: 20,000, which is 2 %.
    pub fn slowdown_ppm(&mut self, millionths: u64) -> &mut Launch {
        self.slowdown_ppm = millionths;
        self
    }

    /// Compresses once more and harder, where there is time, what was compressed so long ago and
    /// not touched since; [`Duration::MAX`]: nothing. Without it: after 2 s.
    pub fn recompress_after(&mut self, time: Duration) -> &mut Launch {
        self.recompress_after = Some(time);
        self
    }

    /// Records in a file what happens to the compressed objects of the first process that has any:
    /// lengths and lifetimes, no content. The file takes so much at most, or such a share of what
    /// is free on its disk; without a size 256 MiB, which is 32 million events.
    pub fn object_trace(&mut self, file: impl Into<PathBuf>, size: Option<Size>) -> &mut Launch {
        self.object_trace = Some((file.into(), size));
        self
    }

    /// Watches a sample of the program's pages for accesses, and takes what is seen of them, on a
    /// thread of the run's. That costs the program so much of its time, in millionths (at least 1).
    /// [`Message::PageWatch`] says at the end how complete it is.
    pub fn watch_pages(
        &mut self,
        slowdown_ppm: u64,
        on_pages: impl Fn(SeenPages) + Send + Sync + 'static,
    ) -> &mut Launch {
        let (slowdown_ppm, on_pages) = (slowdown_ppm.max(1), Arc::new(on_pages));
        self.page_watch = Some(PageWatch { slowdown_ppm, on_pages });
        self
    }

    /// Makes this process the reaper of its descendants for the time of the run: processes that
    /// lose their parent come to this one, as they would to init. Every child of this process is
    /// waited for then, whoever started it, so such a run is the only one of its process. For a
    /// process that does nothing but run the program.
    pub fn adopt_orphans(&mut self) -> &mut Launch {
        self.adopts = true;
        self
    }

    /// Handles SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2 and SIGWINCH of this process from
    /// right before the program starts: they wait until [`Run::take_signals`] passes them on, and
    /// are ignored when the run is over. What of them this process ignores the program ignores too.
    pub fn catch_signals(&mut self) -> &mut Launch {
        self.catches = true;
        self
    }

    /// Takes messages for the user, on any of the run's threads and during [`Launch::start`].
    /// Without it they are dropped.
    pub fn on_message(
        &mut self,
        on_message: impl Fn(Message) + Send + Sync + 'static,
    ) -> &mut Launch {
        self.on_message = Arc::new(on_message);
        self
    }

    /// Where the program is that would be started now.
    ///
    /// # Errors
    /// [`StartError::NotFound`] and [`StartError::NotExecutable`].
    pub fn find_program(&self) -> Result<PathBuf, StartError> {
        self.find_program_in(&self.program_environment())
    }

    fn find_program_in(&self, environment: &Environment) -> Result<PathBuf, StartError> {
        program::find(&self.program, environment.get(OsStr::new(PATH_VARIABLE)))
    }

    fn program_environment(&self) -> Environment {
        let mut environment = match &self.environment {
            Some(entries) => Environment::new(entries.clone()),
            None => Environment::of_this_process(),
        };
        for (name, value) in &self.variables {
            match value {
                Some(value) => environment.set(name, value),
                None => environment.remove(name),
            }
        }
        environment
    }

    /// Starts the program. A program that cannot be looked after runs without ramfold, and a
    /// message says so.
    ///
    /// What [`Launch::stdin`] and its like were given is used up; the other options stay for the
    /// next start.
    ///
    /// # Errors
    /// When the program cannot be started, or the options cannot be met. Nothing is left of it
    /// then.
    pub fn start(&mut self) -> Result<Run, StartError> {
        let mut environment = self.program_environment();
        let path = self.find_program_in(&environment)?;
        let memory = memory_bytes(self.memory, MEMORY_SHARE).map_err(StartError::Memory)?;
        let session =
            Arc::new(OwnedSession::create(memory, self.codec).map_err(StartError::Session)?);
        let files = self.set_up(&session, memory)?;

        let executable = program::look(&path, environment.get(OsStr::new(PATH_VARIABLE)));
        if let Some(reason) = reason_to_run_without(&path, &executable) {
            (self.on_message)(Message::RunsWithout(reason));
            session.note_said(Once::NoUserfaultfd);
        }
        let library = Placed::place()?;
        lead_to_agent(&mut environment, &session, library.path(), executable.first_library());
        let children = Children::begin(self.adopts)?;
        let signals = if self.catches {
            Some(CaughtSignals::catch().map_err(StartError::Signals)?)
        } else {
            None
        };
        let ignored = signals.as_ref().map_or(&[][..], CaughtSignals::ignored);
        let child = self.spawn(&path, environment, ignored)?;

        let lent = Lent { session, _spill_file: files.spill, _library: library };
        self.look_after(child, lent, children, signals, files.trace).map_err(StartError::Thread)
    }

    /// Tells the session what was asked for, and makes the files.
    fn set_up(&self, session: &OwnedSession, memory: u64) -> Result<Files, StartError> {
        self.budget.parts(memory)?.store(session);
        let spill = match &self.spill {
            Some((folder, size)) => Some(spill::set_up(folder, *size, session, memory)?),
            None => None,
        };
        let trace = match &self.object_trace {
            Some((path, size)) => {
                let trace = ObjectTrace::begin(path, *size, session)
                    .map_err(|source| StartError::ObjectTrace { path: path.clone(), source })?;
                Some(NamedTrace { path: path.clone(), trace })
            }
            None => None,
        };
        if let Some(watch) = &self.page_watch {
            session.watch.begin(watch.slowdown_ppm);
        }
        if let Some(cold_after) = self.cold_after {
            session.cold_after_ns.store(nanoseconds(cold_after), Ordering::Relaxed);
            session.slowdown_ppm.store(self.slowdown_ppm, Ordering::Relaxed);
        }
        if let Some(recompress_after) = self.recompress_after {
            session.recompress_after_ns.store(nanoseconds(recompress_after), Ordering::Relaxed);
        }
        Ok(Files { spill, trace })
    }

    fn spawn(
        &mut self,
        path: &Path,
        environment: Environment,
        ignored: &[i32],
    ) -> Result<Child, StartError> {
        let not_run = |source| StartError::NotRun { path: path.to_owned(), source };
        let mut arguments = vec![self.program.clone()];
        arguments.extend_from_slice(&self.arguments);
        // Where the program's current directory is another one, its path is still from here.
        let file = match self.folder {
            Some(_) => std::path::absolute(path).map_err(not_run)?,
            None => path.to_owned(),
        };
        let mut command =
            child::command(&file, arguments, environment.into_entries(), ignored.to_vec())?;
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        if let Some(stdin) = self.stdin.take() {
            command.stdin(stdin);
        }
        if let Some(stdout) = self.stdout.take() {
            command.stdout(stdout);
        }
        if let Some(stderr) = self.stderr.take() {
            command.stderr(stderr);
        }
        command.spawn().map_err(not_run)
    }

    /// Starts the threads of a run whose program has just started.
    fn look_after(
        &self,
        mut child: Child,
        lent: Lent,
        children: Children,
        signals: Option<CaughtSignals>,
        trace: Option<NamedTrace>,
    ) -> io::Result<Run> {
        let mut threads = Threads::new(Arc::clone(&lent.session));
        let guards = !children.are_all();
        let started = start_threads(&mut threads, &self.on_message, guards, trace)
            .and_then(|()| self.start_page_watch(&mut threads));
        if let Err(error) = started {
            end_child(&mut child);
            return Err(error);
        }
        let (budget, on_message) = (self.budget, Arc::clone(&self.on_message));
        Run::begin(Parts { child, lent, budget, children, signals, threads, on_message })
    }

    fn start_page_watch(&self, threads: &mut Threads) -> io::Result<()> {
        let Some(PageWatch { on_pages, .. }) = self.page_watch.clone() else { return Ok(()) };
        let show = Arc::clone(&self.on_message);
        threads.start("pages", move |session, ended| {
            show(Message::PageWatch(page_watch::keep(session, ended, &*on_pages)));
        })
    }
}

fn start_threads(
    threads: &mut Threads,
    on_message: &Arc<OnMessage>,
    guards: bool,
    trace: Option<NamedTrace>,
) -> io::Result<()> {
    let show = Arc::clone(on_message);
    threads.start("messages", move |session, ended| {
        loop {
            let seen = session.message_count();
            session.take_messages(|text| {
                show(Message::FromAgent(String::from_utf8_lossy(text).into_owned()));
            });
            if ended.load(Ordering::Acquire) {
                return;
            }
            session.wait_for_message(seen);
        }
    })?;
    threads.start("files", file_pressure::watch)?;
    threads.start("awake", awake::keep)?;
    if guards {
        let show = Arc::clone(on_message);
        threads.start("guard", move |session, ended| reaping::guard(session, ended, &*show))?;
    }
    if let Some(NamedTrace { path, trace }) = trace {
        let show = Arc::clone(on_message);
        threads.start("trace", move |session, ended| {
            let outcome = trace.keep(session, ended);
            show(Message::ObjectTrace { path, outcome });
        })?;
    }
    Ok(())
}

fn reason_to_run_without(path: &Path, executable: &Executable) -> Option<Reason> {
    if let Some(why) = executable.reason() {
        return Some(Reason::Program { path: path.to_owned(), why });
    }
    userfaultfd_problem().map(Reason::Userfaultfd)
}

/// Puts what leads the program's loader to the agent, and the agent to its session, into the
/// program's environment.
fn lead_to_agent(
    environment: &mut Environment,
    session: &OwnedSession,
    library: &Path,
    first: Option<&str>,
) {
    let given = environment.get(OsStr::new(PRELOAD_VARIABLE)).unwrap_or_default();
    let preload = preload_list(given, library, first);
    environment.set(OsStr::new(PRELOAD_VARIABLE), &preload);
    let (fd, key) = session.fd_and_key();
    let place = format!("{}:{fd}:{key:016x}", std::process::id());
    environment.set(OsStr::new(SESSION_VARIABLE), OsStr::new(&place));
}

/// The agent last, behind what is given there already, and what must come first.
fn preload_list(given: &OsStr, library: &Path, first: Option<&str>) -> OsString {
    let mut list = OsString::new();
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

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_comes_after_what_is_preloaded_already() {
        let list = |given: &str, first| preload_list(OsStr::new(given), Path::new("/a.so"), first);
        assert_eq!(list("", None), "/a.so");
        assert_eq!(list("/x.so", None), "/x.so:/a.so");
        assert_eq!(list("/x.so:", None), "/x.so:/a.so");
        assert_eq!(list("/x.so", Some("libasan.so.8")), "libasan.so.8:/x.so:/a.so");
        assert_eq!(list("libasan.so.8 /x.so", Some("libasan.so.8")), "libasan.so.8 /x.so:/a.so");
    }
}
