//! Starting programs: by vfork and exec, by posix_spawn, and in place of this one.

use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Action, Operation, Outcome, Skip, Turn, operation};
use crate::child;
use crate::errno::Errno;
use crate::fail;
use crate::memory::Mapping;
use crate::probe::{self, ENDINGS, Ending};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("vfork-exec", 2, "starts a program by vfork and exec", vfork_exec),
    operation("posix-spawn", 2, "starts a program by posix_spawn", posix_spawn),
    operation("program-exit", 2, "starts programs that end by exit, _exit and abort", endings),
    operation(
        "program-last-thread",
        1,
        "starts a program that ends with its last thread",
        last_thread,
    ),
    Operation {
        name: "exec-self",
        about: "replaces the program by itself while threads are busy, between rounds",
        weight: 1,
        action: Action::Replace,
    },
];

unsafe extern "C" {
    static environ: *const *const c_char;
}

fn vfork_exec(turn: &mut Turn<'_>) -> Outcome {
    check_program(turn, Ending::Exit, vfork)
}

fn posix_spawn(turn: &mut Turn<'_>) -> Outcome {
    check_program(turn, Ending::Exit, spawn)
}

fn endings(turn: &mut Turn<'_>) -> Outcome {
    let ending = *turn.rng.pick(&[Ending::Exit, Ending::Quick, Ending::Abort]);
    check_program(turn, ending, spawn)
}

fn last_thread(turn: &mut Turn<'_>) -> Outcome {
    check_program(turn, Ending::LastThread, spawn)
}

/// A program about to be started: everything exec needs, made beforehand.
struct Launch {
    arguments: Vec<CString>,
    stdout: OwnedFd,
}

impl Launch {
    fn pointers(&self) -> Vec<*const c_char> {
        let mut pointers: Vec<_> = self.arguments.iter().map(|word| word.as_ptr()).collect();
        pointers.push(std::ptr::null());
        pointers
    }
}

const PROGRAM: &std::ffi::CStr = c"/proc/self/exe";

/// Starts the probe program and compares its answer and its end.
fn check_program(
    turn: &mut Turn<'_>,
    ending: Ending,
    start: fn(&Launch) -> Result<i32, Skip>,
) -> Outcome {
    let seed = turn.rng.word();
    let name = ENDINGS.iter().find(|(_, found)| *found == ending).map_or("", |(name, _)| name);
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Skip::errno("pipe2", Errno::last()));
    }
    // SAFETY: both were made just now and belong to nobody else.
    let (mut output, stdout) =
        unsafe { (File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let words = ["ramfold-torture", "--probe", &format!("{name},{seed}")];
    let arguments = words.iter().filter_map(|word| CString::new(*word).ok()).collect();
    let launch = Launch { arguments, stdout };
    let pid = start(&launch)?;
    // The program has a copy of its own.
    drop(launch);
    let mut text = String::new();
    let read = output.read_to_string(&mut text);
    let status = child::wait(pid);
    if let Err(error) = read {
        fail!("reading a program's output: {error}");
    }
    if text != probe::answer(seed) {
        let expected = probe::answer(seed);
        fail!("a program printed {text:?} instead of {expected:?}, wait status {status:#x}");
    }
    if !ending.fits(status) {
        fail!("a program that ends by {name} has wait status {status:#x}");
    }
    Ok(())
}

fn spawn(launch: &Launch) -> Result<i32, Skip> {
    // SAFETY: all bit patterns are valid for the C structure, which init fills in.
    let mut actions: libc::posix_spawn_file_actions_t = unsafe { std::mem::zeroed() };
    let arguments = launch.pointers();
    let mut pid = 0;
    // SAFETY: all pointers outlive the calls; the argument list ends with a null.
    let result = unsafe {
        libc::posix_spawn_file_actions_init(&mut actions);
        libc::posix_spawn_file_actions_adddup2(&mut actions, launch.stdout.as_raw_fd(), 1);
        let result = libc::posix_spawn(
            &mut pid,
            PROGRAM.as_ptr(),
            &actions,
            std::ptr::null(),
            arguments.as_ptr().cast(),
            environ.cast(),
        );
        libc::posix_spawn_file_actions_destroy(&mut actions);
        result
    };
    if result == 0 { Ok(pid) } else { Err(Skip::errno("posix_spawn", Errno(result))) }
}

struct Exec {
    arguments: *const *const c_char,
    environment: *const *const c_char,
    stdout: i32,
}

/// vfork(2) as the kernel knows it: the child runs in the parent's memory, on a stack of its own,
/// until it has called exec; the parent waits.
fn vfork(launch: &Launch) -> Result<i32, Skip> {
    const STACK_BYTES: usize = 256 << 10;
    let stack = Mapping::anonymous(STACK_BYTES).map_err(|errno| Skip::errno("mmap", errno))?;
    let arguments = launch.pointers();
    let exec = Exec {
        arguments: arguments.as_ptr(),
        // SAFETY: nothing in this program changes the environment.
        environment: unsafe { environ },
        stdout: launch.stdout.as_raw_fd(),
    };
    let top = stack.span().part(STACK_BYTES, 0).void();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the kernel lets this thread go on only when the child has left this memory.
    let pid = unsafe { libc::clone(execute, top, flags, (&raw const exec).cast_mut().cast()) };
    if pid < 0 { Err(Skip::errno("clone", Errno::last())) } else { Ok(pid) }
}

extern "C" fn execute(exec: *mut libc::c_void) -> i32 {
    // SAFETY: the parent passes the structure and waits. Only system calls are made.
    unsafe {
        let exec = &*exec.cast::<Exec>();
        libc::dup2(exec.stdout, 1);
        libc::execve(PROGRAM.as_ptr(), exec.arguments, exec.environment);
        libc::_exit(127)
    }
}
