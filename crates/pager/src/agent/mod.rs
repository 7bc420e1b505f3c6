//! The agent of one process: its memory, what its threads share, and how they start.
//!
//! Nothing here may live in memory that can be evicted, so everything is in address space of the
//! agent's own: `home`, reserved when the program starts and hardly touched while the agent
//! sleeps, and the store's and staging's reservations, made when memory runs short.

mod account;
mod active;
mod home;
mod locked;
mod own_process;

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{self};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ramfold_sys::mem::Reservation;
use ramfold_sys::robust::RobustList;
use ramfold_sys::sync::Mutex;
use ramfold_sys::{Errno, PAGE_SIZE, proc};
use rustix::fd::OwnedFd;
use rustix::mm::{Advice, madvise};
use rustix::thread::Pid;

use self::home::{
    AGENT_OFFSET, DECOMPRESS_SCRATCH_BYTES, STACK_BYTES, STACK_STRIDE, STACKS,
    compress_scratch_bytes,
};
use crate::announce::Announcements;
use crate::cost;
use crate::entry::session_place::{SessionHolders, SessionPlace};
use crate::fork::copies::Copies;
use crate::handler::HandlerBuffers;
use crate::protocols::fork_copy::ForkCopy;
use crate::protocols::fork_gate::ForkGate;
use crate::protocols::progress::Progress;
use crate::protocols::sleep_flag::SleepFlag;
use crate::protocols::sync::Futex;
use crate::reclaim::ReclaimBuffers;
use crate::session::{Once, Process, Session};
use crate::take::thread_ends::EndPages;

pub use self::active::{Active, PROGRAM_MODE, STAGING_MODE};
pub use self::home::{CompressScratch, Stack};
pub use self::locked::{Context, Core, LOCK_PATIENCE_NS};

/// All of the agent. Zeroed memory is a valid start; there is one for each process.
#[repr(C)]
pub struct Agent {
    session: AtomicPtr<Session>,
    process: AtomicPtr<Process>,
    /// See [`Process::turn`].
    turn: AtomicU32,
    home_start: usize,
    home_end: usize,
    /// The program's process.
    pid: AtomicU32,
    /// In which its number counts.
    pid_namespace: AtomicU64,
    /// See [`process::end_word`], of the program's first thread; zero where it is not known.
    end_word: AtomicUsize,
    /// Of the first thread of the agent's process.
    robust_list: RobustList,
    /// As whom the agent was started, and in which namespace of users.
    user: AtomicU32,
    user_namespace: AtomicU64,
    /// The account of a process for which the session has no place.
    unlisted: Process,
    /// One word, 1 in the address space that the agent's threads run in. The kernel clears it in
    /// every copy of that (MADV_WIPEONFORK): so a process that was cloned behind libc's back finds
    /// out that its agent is but a relic.
    alive: AtomicPtr<AtomicU32>,
    /// This process is such a copy, or descends from one.
    pub abandoned: AtomicBool,
    /// Ranges are registered, and pages may be missing that only the agent can bring back.
    active: AtomicBool,
    /// Could not become active, and said why: not tried again.
    pub gave_up: AtomicBool,
    /// Which way forks go.
    pub fork_gate: ForkGate,
    /// A fork that copies the process.
    pub fork_copy: ForkCopy,
    /// Who waits for room.
    pub progress: Progress,
    pub monitor_sleep: SleepFlag,
    /// Of the thread that writes the spill file, and what it sleeps on.
    pub spill_sleep: SleepFlag,
    pub spill_wake: Futex,
    /// One fork at a time goes through the agent; its state is here.
    pub trap: Mutex<crate::fork::Trap>,
    /// Memory may be shared with a relative by fork, so that a page may cost less than a page.
    pub shares_memory: AtomicBool,
    /// Objects were kept for pages that are in memory: see [`crate::take::retained`].
    pub keeps_objects: AtomicBool,
    /// What forks have made shared.
    pub copies: Copies,
    /// Where the kernel writes when threads end.
    pub ends: EndPages,
    /// Writable memory that the program makes.
    pub announcements: Announcements,
    /// Memory that the fault handler has let go, or the program unmapped, since the monitor looked at the
    /// mappings: so much of what it has may be new.
    pub released_bytes: AtomicU64,
    /// `/dev/userfaultfd` and `/proc/self/pagemap` in the table of the agent's process, and one more; zero
    /// where they are not open.
    device: AtomicU32,
    pagemap: AtomicU32,
    /// From whom the session can be had.
    pub session_holders: SessionHolders,
    /// The program waits for the agent's process to be permitted no more than it is.
    pub privileges_wanted: AtomicBool,
    /// What it is permitted, or has tried to be: [`credentials::digest_of_this_thread`]. Zero before that
    /// is known.
    ///
    /// [`credentials::digest_of_this_thread`]: ramfold_sys::credentials::digest_of_this_thread
    pub privileges_digest: AtomicU64,
    /// The path of the agent's library, or null.
    library: AtomicPtr<c_char>,
    /// The C library's calls pass through the agent, so that growth announces itself.
    pub announces: AtomicBool,
    /// What the process must cost before it is tried again to take something, where there was nothing.
    pub retry_cost_bytes: AtomicU64,
    /// The program grows faster than reclaim follows, in memory not registered yet.
    pub outruns: AtomicBool,
    /// What is to go to the spill file will get there, as far as one can know.
    pub spill_works: AtomicBool,
    /// A place in the session for the child of the fork that is under way.
    child_place: AtomicPtr<Process>,
    /// Thread number of the monitor.
    monitor_thread: AtomicU32,
    /// Futex: the number of the process whose memory the agent's threads look after, in a forked
    /// child.
    pub taken_over: AtomicU32,
    /// Use [`Agent::lock_core`].
    pub core: Mutex<Core>,
    active_parts: UnsafeCell<MaybeUninit<Active>>,
    pub monitor_buffers: UnsafeCell<ReclaimBuffers>,
    /// What the handler reclaims with when the monitor does not keep up.
    pub direct_buffers: UnsafeCell<ReclaimBuffers>,
    pub handler_buffers: UnsafeCell<HandlerBuffers>,
}

// SAFETY: the cells are each touched by one thread (monitor, handler) or written before the
// `active` flag is set and only read after it was seen set.
unsafe impl Sync for Agent {}

/// The agent of this process, once there is one.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());

impl Agent {
    /// The agent of this process.
    pub fn get() -> Option<&'static Agent> {
        // SAFETY: set once to an agent that is never freed.
        unsafe { AGENT.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the agent of this process, asleep, and starts its process. `announces`: the program's calls
    /// pass through it.
    ///
    /// # Errors
    /// What the kernel says when there is no address space or no process to be had.
    pub fn start(
        session: &'static Session,
        process: &'static Process,
        announces: bool,
        place: &SessionPlace,
        file: OwnedFd,
        library: &'static CStr,
    ) -> Result<(), Errno> {
        let bytes = AGENT_OFFSET
            + size_of::<Agent>().next_multiple_of(PAGE_SIZE)
            + 2 * compress_scratch_bytes(session)
            + 2 * DECOMPRESS_SCRATCH_BYTES
            + PAGE_SIZE;
        let home = Reservation::new(bytes)?;
        for stack in 0..STACKS {
            home.commit(stack * STACK_STRIDE, STACK_BYTES)?;
        }
        home.commit(AGENT_OFFSET, home.len() - AGENT_OFFSET)?;
        let guarded = home.guarded_range();
        let alive = home.as_ptr().wrapping_add(home.len() - PAGE_SIZE);
        // SAFETY: a committed page that holds nothing else.
        unsafe { madvise(alive.cast(), PAGE_SIZE, Advice::LinuxWipeOnFork) }?;
        // SAFETY: committed above, page-aligned, zeroed, and leaked below; zeroed memory is a
        // valid agent.
        let agent = unsafe { &mut *home.as_ptr().add(AGENT_OFFSET).cast::<Agent>() };
        core::mem::forget(home);
        agent.home_start = guarded.start;
        agent.home_end = guarded.end;
        agent.user.store(rustix::process::geteuid().as_raw(), Ordering::Relaxed);
        agent.user_namespace.store(proc::user_namespace(), Ordering::Relaxed);
        agent.session.store(ptr::from_ref(session).cast_mut(), Ordering::Relaxed);
        agent.process.store(ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
        agent.turn.store(process.turn(), Ordering::Relaxed);
        agent.alive.store(alive.cast(), Ordering::Relaxed);
        agent.set_alive();
        agent.announces.store(announces, Ordering::Relaxed);
        agent.session_holders.begin(place, &file);
        agent.library.store(library.as_ptr().cast_mut(), Ordering::Relaxed);
        agent.note_program();
        let agent: &'static Agent = agent;
        let agent_pid = agent.spawn_process(crate::monitor::process_main)?;
        if agent.session_holders.handed_down().is_some() {
            // Where the session was handed down nobody else can open it.
            agent.wait_for_process(agent_pid);
            agent.session_holders.note_handed_on();
        }
        drop(file);
        AGENT.store(ptr::from_ref(agent).cast_mut(), Ordering::Release);
        agent.announce_what_there_is();
        Ok(())
    }

    /// Before the program begins: where it has been given more memory than it may touch unasked, the
    /// agent looks first.
    fn announce_what_there_is(&self) {
        let memory = proc::Statm::open().and_then(|statm| statm.read());
        let Ok(memory) = memory else { return };
        let own = (self.home_end - self.home_start) as u64;
        let marks = cost::watermarks(self.session());
        let rest = memory.writable_bytes.saturating_sub(own) + cost::others_claim(self);
        if rest > marks.activation {
            self.announce(&(0..0));
        }
    }

    /// The path of the agent's library, as the loader was asked for it.
    pub fn library(&self) -> Option<&'static CStr> {
        let path = self.library.load(Ordering::Relaxed);
        // SAFETY: set at start to a string of the loader's that is never freed.
        (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }).filter(|path| !path.is_empty())
    }

    /// Is there an agent's process to announce growth to?
    pub fn listens(&self) -> bool {
        self.is_alive()
            && !self.gave_up.load(Ordering::Relaxed)
            && !self.abandoned.load(Ordering::Relaxed)
    }

    /// For a thread of the program: it has just made this memory, or made it writable.
    pub fn announce(&self, range: &Range<usize>) {
        self.announcements.grow(range, || self.process().wake_agent());
    }

    pub fn session(&self) -> &'static Session {
        // SAFETY: set at start to a mapping that is never removed.
        unsafe { &*self.session.load(Ordering::Relaxed) }
    }

    /// The account of this process in the session.
    pub fn process(&self) -> &'static Process {
        // SAFETY: as above.
        unsafe { &*self.process.load(Ordering::Relaxed) }
    }

    /// Something happened that must not happen. The program must not go on with wrong data, nor
    /// hang: it is ended.
    pub fn fail(&self, what: core::fmt::Arguments<'_>) -> ! {
        self.session().say(
            Once::Other,
            format_args!(
                "ended the program (pid {}) rather than risk wrong data: {what}",
                self.pid()
            ),
        );
        // No page reads as zeros meanwhile: see `Monitor::start_handler`.
        if let Some(program) = Pid::from_raw(self.pid() as i32) {
            let _ = rustix::process::kill_process(program, rustix::process::Signal::KILL);
        }
        ramfold_sys::raw::exit_group(137)
    }
}
