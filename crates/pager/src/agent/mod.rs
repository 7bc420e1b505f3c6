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
mod presence;
mod reclaim_hints;

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::ops::Range;
use core::ptr::{self};
use core::sync::atomic::{AtomicPtr, Ordering};

use ramfold_sys::mem::Reservation;
use ramfold_sys::sync::Mutex;
use ramfold_sys::{Errno, PAGE_SIZE, proc};
use rustix::fd::OwnedFd;
use rustix::mm::{Advice, madvise};
#[cfg(not(test))]
use rustix::thread::Pid;

use self::account::OwnPlace;
use self::home::{
    AGENT_OFFSET, DECOMPRESS_SCRATCH_BYTES, STACK_BYTES, STACK_STRIDE, STACKS,
    compress_scratch_bytes,
};
use self::own_process::{OwnProcess, ProgramProcess, StartedAs};
use self::presence::Presence;
use self::reclaim_hints::ReclaimHints;
use crate::announce::{self, Announcements};
use crate::cost;
use crate::entry::session_place::{SessionHolders, SessionPlace};
use crate::fork::copies::Copies;
use crate::handler::HandlerBuffers;
use crate::protocols::activation::Activation;
use crate::protocols::fork_copy::ForkCopy;
use crate::protocols::fork_gate::ForkGate;
use crate::protocols::move_gate::MoveGate;
use crate::protocols::privileges::FollowedPrivileges;
use crate::protocols::progress::Progress;
use crate::protocols::sharing::Sharing;
use crate::protocols::sleep_flag::SleepFlag;
use crate::protocols::spill_work::SpillWork;
use crate::protocols::take_over::TakeOver;
use crate::reclaim::ReclaimBuffers;
#[cfg(not(test))]
use crate::session::Once;
use crate::session::{Process, Session};
use crate::take::thread_ends::EndPages;

pub(crate) use self::active::{Active, PROGRAM_MODE, STAGING_MODE};
pub(crate) use self::home::{CompressScratch, Stack};
pub(crate) use self::locked::{Context, Core, LOCK_PATIENCE_NS};

/// All of the agent. Zeroed memory is a valid start, which [`Agent::lay_out`] goes on from; there
/// is one for each process.
///
/// What is no atomic, and not in a cell, is written before anybody else knows of the agent. Of each
/// of the others its own type says who writes and who reads it.
#[repr(C)]
pub(crate) struct Agent {
    session: *const Session,
    home_start: usize,
    home_end: usize,
    started_as: StartedAs,
    /// The path of the agent's library, empty where it is not known.
    library: *const c_char,
    /// The C library's calls pass through the agent, so that growth announces itself.
    announces: bool,
    place: OwnPlace,
    program: ProgramProcess,
    own_process: OwnProcess,
    pub presence: Presence,
    activation: Activation<Active>,
    /// Which way forks go.
    pub fork_gate: ForkGate,
    /// Whether the program moves memory, or the agent registers some.
    pub move_gate: MoveGate,
    /// A fork that copies the process.
    pub fork_copy: ForkCopy,
    /// One fork at a time goes through the agent; its state is here.
    pub trap: Mutex<crate::fork::Trap>,
    /// In a forked child: its memory is looked after.
    pub take_over: TakeOver,
    /// Is memory shared with a relative?
    pub sharing: Sharing,
    /// What forks have made shared.
    pub copies: Copies,
    /// Who waits for room.
    pub progress: Progress,
    /// What the monitor sleeps on is in the session: [`Process::wake`].
    pub monitor_sleep: SleepFlag,
    pub spill_work: SpillWork,
    pub hints: ReclaimHints,
    /// Where the kernel writes when threads end.
    pub ends: EndPages,
    /// Writable memory that the program makes.
    pub announcements: Announcements,
    /// From whom the session can be had.
    pub session_holders: SessionHolders,
    /// What the agent's process may do.
    pub privileges: FollowedPrivileges,
    /// Use [`Agent::lock_core`].
    pub core: Mutex<Core>,
    pub monitor_buffers: UnsafeCell<ReclaimBuffers>,
    /// What the handler reclaims with when the monitor does not keep up.
    pub direct_buffers: UnsafeCell<ReclaimBuffers>,
    pub handler_buffers: UnsafeCell<HandlerBuffers>,
}

// SAFETY: the cells are each touched by one thread (monitor, handler); the pointers are to what is
// shared between threads itself, and are not changed once a second thread knows of the agent.
unsafe impl Sync for Agent {}

/// The agent of this process, once there is one.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());

impl Agent {
    /// The agent of this process.
    pub(crate) fn get() -> Option<&'static Agent> {
        // SAFETY: set once to an agent that is never freed.
        unsafe { AGENT.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the agent of this process, asleep, and starts its process. `announces`: the program's
    /// calls pass through it.
    ///
    /// # Errors
    /// What the kernel says when there is no address space or no process to be had.
    pub(crate) fn start(
        session: &'static Session,
        process: &'static Process,
        announces: bool,
        place: &SessionPlace,
        file: OwnedFd,
        library: &'static CStr,
    ) -> Result<(), Errno> {
        let (agent, home) = Self::lay_out(session, process, announces, library)?;
        core::mem::forget(home);
        agent.session_holders.begin(place, &file);
        agent.note_program();
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

    /// An agent in memory of its own, which it must not outlive.
    ///
    /// # Errors
    /// What the kernel says when there is no address space.
    pub(crate) fn lay_out(
        session: &'static Session,
        process: &'static Process,
        announces: bool,
        library: &'static CStr,
    ) -> Result<(&'static Agent, Reservation), Errno> {
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
        let here = home.as_ptr().wrapping_add(home.len() - PAGE_SIZE);
        // SAFETY: a committed page that holds nothing else.
        unsafe { madvise(here.cast(), PAGE_SIZE, Advice::LinuxWipeOnFork) }?;
        // SAFETY: committed above, page-aligned and zeroed; zeroed memory is a valid agent.
        let agent = unsafe { &mut *home.as_ptr().add(AGENT_OFFSET).cast::<Agent>() };
        agent.home_start = guarded.start;
        agent.home_end = guarded.end;
        agent.started_as = StartedAs::now();
        agent.library = library.as_ptr();
        agent.announces = announces;
        agent.session = session;
        agent.place.begin(process);
        // SAFETY: that page, whose kernel's mark stands, in memory that the agent lies in itself.
        unsafe { agent.presence.lay_out(here.cast()) };
        Ok((agent, home))
    }

    /// Before the program begins: where it has been given more memory than it may touch unasked,
    /// the agent looks first.
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
    pub(crate) fn library(&self) -> Option<&'static CStr> {
        // SAFETY: set at start to a string of the loader's that is never freed.
        Some(unsafe { CStr::from_ptr(self.library) }).filter(|path| !path.is_empty())
    }

    /// Is there an agent's process to announce growth to?
    pub(crate) fn listens(&self) -> bool {
        self.presence.is_here() && !self.activation.has_given_up()
    }

    /// For a thread of the program: it has just made this memory, or made it writable.
    pub(crate) fn announce(&self, range: &Range<usize>) {
        announce::announce(&self.announcements, range, || self.process().wake_agent());
    }

    /// Do the program's calls pass through the agent?
    pub(crate) fn announces(&self) -> bool {
        self.announces
    }

    /// What the agent shares with the others of the run.
    #[inline]
    pub(crate) fn session(&self) -> &'static Session {
        // SAFETY: set at start to a mapping that is never removed.
        unsafe { &*self.session }
    }

    /// Could not become active, and said why: it is not tried again.
    pub(crate) fn gave_up(&self) -> bool {
        self.activation.has_given_up()
    }

    /// For the monitor, which says why.
    pub(crate) fn give_up(&self) {
        self.activation.give_up();
    }

    /// Something happened that must not happen. The program must not go on with wrong data, nor
    /// hang: it is ended.
    pub(crate) fn fail(&self, what: core::fmt::Arguments<'_>) -> ! {
        // A simulation, in the test's own process.
        #[cfg(test)]
        panic!("{what}");
        #[cfg(not(test))]
        self.end_program(what)
    }

    #[cfg(not(test))]
    fn end_program(&self, what: core::fmt::Arguments<'_>) -> ! {
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
