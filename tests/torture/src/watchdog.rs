//! A process that watches whether the threads get on.
//!
//! It is this program, run anew without the preloaded libraries of the tortured one, and shares
//! nothing with it but the table. So it works when every thread there is stuck. What ends the
//! program then is a thread that waits for the watchdog's word and uses no tortured memory either.

use std::fmt::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::errno::Errno;
use crate::failure;
use crate::memory::Mapping;
use crate::operations;
use crate::table::{Activity, THREADS_MAX, Table};
use crate::world;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long the program may take to end when told so, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

pub(crate) struct Watchdog {
    process: Mutex<Child>,
}

impl Watchdog {
    /// Starts the process. The table's descriptor must be open across exec.
    pub(crate) fn start(table: &OwnedFd, hang_seconds: u64) -> std::io::Result<Self> {
        let what = format!("{},{},{hang_seconds}", std::process::id(), table.as_raw_fd());
        let process = Command::new("/proc/self/exe")
            .args(["--watchdog", &what])
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { process: Mutex::new(process) })
    }

    pub(crate) fn stop(&self) -> std::io::Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill()?;
        process.wait()?;
        Ok(())
    }
}

struct Look {
    heartbeat: u64,
    since: Instant,
}

/// The watchdog's own main: watches process `pid` until that ends or hangs.
pub(crate) fn watch(pid: i32, descriptor: i32, hang_seconds: u64) -> ExitCode {
    // SAFETY: a plain system call: go when the program goes.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if descriptor < 3 {
        return ExitCode::FAILURE;
    }
    // SAFETY: the program hands this descriptor over for the watchdog alone.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let table = match Table::attach(&descriptor) {
        Ok(table) => table,
        Err(errno) => {
            eprintln!("ramfold-torture: the watchdog cannot read the table: {errno}");
            return ExitCode::FAILURE;
        }
    };
    let limit = Duration::from_secs(hang_seconds);
    let now = Instant::now();
    let mut looks: Vec<Look> =
        (0..THREADS_MAX).map(|_| Look { heartbeat: 0, since: now }).collect();
    loop {
        std::thread::sleep(LOOK_EVERY);
        // SAFETY: plain system calls.
        if unsafe { libc::getppid() } != pid {
            return ExitCode::SUCCESS;
        }
        if table.header.failing.load(SeqCst) != 0 {
            continue;
        }
        let now = Instant::now();
        let mut hung = false;
        for (slot, look) in table.threads.iter().zip(&mut looks) {
            let heartbeat = slot.heartbeat.load(SeqCst);
            let working = slot.activity.load(SeqCst) == Activity::Working as u32;
            if heartbeat != look.heartbeat || !working {
                *look = Look { heartbeat, since: now };
            }
            hung |= now - look.since >= limit;
        }
        if hung {
            eprint!("{}", report(pid, &table, &looks, hang_seconds));
            end(pid, &table);
            return ExitCode::FAILURE;
        }
    }
}

fn report(pid: i32, table: &Table, looks: &[Look], hang_seconds: u64) -> String {
    let mut text =
        format!("ramfold-torture: HANG: no progress for {hang_seconds} s in process {pid}\n");
    for (index, (slot, look)) in table.threads.iter().zip(looks).enumerate() {
        let tid = slot.tid.load(SeqCst);
        if tid == 0 {
            continue;
        }
        let activity = slot.activity.load(SeqCst);
        let state = if activity == Activity::Working as u32 {
            format!("working, last progress {:.1} s ago", look.since.elapsed().as_secs_f64())
        } else if activity == Activity::Waiting as u32 {
            "waiting for another thread".to_owned()
        } else {
            "idle".to_owned()
        };
        let operation = operations::name(slot.operation.load(SeqCst) as usize);
        let turn = slot.turns.load(SeqCst);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  thread {index} (tid {tid}): {operation}, number {turn}, {state}");
    }
    // Threads that operations start have no slot, so all of the kernel's threads are shown.
    for tid in tasks(pid) {
        let read = |what: &str| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{what}")).unwrap_or_default()
        };
        let kernel = format!("{} {}", read("wchan").trim(), read("syscall").trim());
        let _ = writeln!(text, "  tid {tid} ({}): {kernel}", read("comm").trim());
        for line in read("stack").lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

fn tasks(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut tids: Vec<i32> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    tids.sort_unstable();
    tids
}

/// Has the program exit with its status for a hang; kills it when it does not.
fn end(pid: i32, table: &Table) {
    let word = &table.header.give_up;
    word.store(1, SeqCst);
    // SAFETY: the word outlives the call; it is in memory shared with the program.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    std::thread::sleep(GRACE);
    // SAFETY: plain system calls. When the parent has gone, this process has been killed with it
    // or has another parent now, so `pid` cannot be another process.
    unsafe {
        if libc::getppid() == pid {
            eprintln!("ramfold-torture: process {pid} cannot exit, killing it");
            libc::kill(pid, libc::SIGKILL);
        }
    }
}

/// Starts the thread that ends the process when the watchdog says so. Its stack, with its thread
/// control block, is shared memory: it must get on when all tortured memory is out of reach.
pub(crate) fn start_exit_thread() -> Result<(), Errno> {
    const STACK_BYTES: usize = 128 << 10;
    let (stack, _) = Mapping::shared(STACK_BYTES)?.release();
    // SAFETY: all bit patterns are valid for the C structures, which the calls fill in; the stack
    // was given up for good, so it is the thread's alone. The thread takes no signals.
    let result = unsafe {
        let mut attribute: libc::pthread_attr_t = std::mem::zeroed();
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        let stack = std::ptr::with_exposed_provenance_mut(stack);
        libc::pthread_attr_init(&mut attribute);
        libc::pthread_attr_setstack(&mut attribute, stack, STACK_BYTES);
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let mut thread = std::mem::zeroed();
        let none = std::ptr::null_mut();
        let result = libc::pthread_create(&mut thread, &attribute, wait_for_end, none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        libc::pthread_attr_destroy(&mut attribute);
        result
    };
    if result == 0 { Ok(()) } else { Err(Errno(result)) }
}

extern "C" fn wait_for_end(_: *mut libc::c_void) -> *mut libc::c_void {
    let Some(world) = world::world() else { return std::ptr::null_mut() };
    let word = &world.table.header.give_up;
    while word.load(SeqCst) == 0 {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the word outlives the call; no timeout is given.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, 0, none) };
    }
    failure::end(failure::EXIT_HANG)
}
