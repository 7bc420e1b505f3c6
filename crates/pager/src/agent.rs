//! The agent of one process: its memory, what its threads share, and how they start.
//!
//! Nothing here may live in memory that can be evicted, so everything is in address space of the
//! agent's own: `home`, reserved when the program starts and hardly touched while the agent
//! sleeps, and the store's and staging's reservations, made when memory runs short.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use ramfold_policy::memory::objective::Objectives;
use ramfold_policy::memory::probation::Probation;
use ramfold_policy::memory::victims::Victims;
use ramfold_store::Store;
use ramfold_sys::file::DirectFile;
use ramfold_sys::mem::{self, Reservation};
use ramfold_sys::pagemap::Pagemap;
use ramfold_sys::process::{self, Program};
use ramfold_sys::robust::RobustList;
use ramfold_sys::sync::{Mutex, MutexGuard};
use ramfold_sys::thread;
use ramfold_sys::uffd::{Uffd, register_mode};
use ramfold_sys::{Errno, PAGE_SIZE, proc, time};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::mm::{Advice, madvise};
use rustix::thread::{Pid, Timespec, futex, sched_yield};

use crate::announce::Announcements;
use crate::copies::Copies;
use crate::cost;
use crate::dropped::DroppedRanges;
use crate::ends::EndPages;
use crate::entry::session_place::{SessionHolders, SessionPlace};
use crate::fault::Handler;
use crate::page::{self, PageNumber};
use crate::reclaim::Reclaimer;
use crate::regions::Regions;
use crate::session::{AGENT_NAME, Once, Process, Session};
use crate::spill::SpillAccess;
use crate::staging::{CHUNK_PAGES, Slot, Staging};
use crate::sweep::Sweep;

/// What the fault handler and the reclaimer must see alike. Whoever reads a message from the
/// userfaultfd or moves pages holds this.
///
/// Lock order: `core` before any lock of the store.
#[repr(C)]
pub struct Core {
    pub regions: Regions,
    pub staging: Staging,
    pub probation: Probation,
    pub victims: Victims,
    pub sweep: Sweep,
    pub dropped: DroppedRanges,
    pub objectives: Objectives,
    /// The mappings changed in a way the events do not describe fully: look at them again.
    pub rescan_wanted: bool,
    /// Pages were taken in this process, or in one that it is a copy of.
    pub has_taken: bool,
}

/// What exists once the agent looks after memory.
pub struct Active {
    pub uffd: Uffd,
    /// A child that bypasses libc's fork is reported, so that it can be given its memory.
    pub told_of_forks: bool,
    pub pagemap: Pagemap,
    pub store: Store,
    pub staging_memory: Reservation,
    /// `None` where the session has no spill file, or this process cannot use it.
    pub spill: Option<SpillAccess>,
}

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
    /// Forks must go through the agent: it is active, or about to be.
    pub trap_forks: AtomicBool,
    /// Forks under way that began while that was not so.
    pub plain_forks: AtomicU32,
    /// One fork at a time goes through the agent; its state is here.
    pub trap: Mutex<crate::fork::Trap>,
    /// A fork is copying the process: the forking thread holds `core`, and the handler must read
    /// on without it.
    pub copying: AtomicBool,
    /// The last such fork made a child.
    pub copied: AtomicBool,
    /// The handler has read messages, or is about to, that it cannot act upon while the process is
    /// being copied. Until it has, nobody else may act on what the address space was.
    pub delayed: AtomicBool,
    /// Memory may be shared with a relative by fork, so that a page may cost less than a page.
    pub shares_memory: AtomicBool,
    /// Objects were kept for pages that are in memory: see [`crate::kept`].
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
    /// Forks that wait for room: see [`crate::fork`].
    pub fork_waits: AtomicU32,
    /// A fault waits for memory to be freed.
    pub faults_wait: AtomicBool,
    /// What is to go to the spill file will get there, as far as one can know.
    pub spill_works: AtomicBool,
    /// The thread that writes it sleeps and wants to be woken when there is something to write.
    pub spill_sleeps: AtomicBool,
    /// Futex: raised to wake it.
    pub spill_wake: AtomicU32,
    /// A place in the session for the child of the fork that is under way.
    child_place: AtomicPtr<Process>,
    /// Thread number of the monitor.
    monitor_thread: AtomicU32,
    /// The monitor sleeps and wants to be woken when memory runs short.
    pub monitor_sleeps: AtomicBool,
    /// Futex: raised when memory was freed.
    pub progress: AtomicU32,
    /// Futex: raised when the agent's threads look after the memory of a forked child.
    pub taken_over: AtomicU32,
    /// Use [`Agent::lock_core`].
    pub core: Mutex<Core>,
    active_parts: UnsafeCell<MaybeUninit<Active>>,
    pub monitor: UnsafeCell<MaybeUninit<Reclaimer>>,
    /// What the handler reclaims with when the monitor does not keep up.
    pub direct: UnsafeCell<MaybeUninit<Reclaimer>>,
    pub handler: UnsafeCell<MaybeUninit<Handler>>,
}

// SAFETY: the cells are each touched by one thread (monitor, handler) or written before the
// `active` flag is set and only read after it was seen set.
unsafe impl Sync for Agent {}

/// The agent of this process, once there is one.
static AGENT: AtomicPtr<Agent> = AtomicPtr::new(ptr::null_mut());

/// How long the handler waits for the lock before it looks whether a fork holds it.
pub const LOCK_PATIENCE_NS: u32 = 200_000;

/// How long a program that executes another waits for the agent's process, where only that has the
/// session.
const EXECUTION_LOOKS: u32 = 300;
const EXECUTION_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 4_000_000 };

/// A look of an agent at its process takes about as long at most.
const WAKE_OTHER_NS: u64 = 1_000_000;

const STACK_BYTES: usize = 256 << 10;
/// More than a call into the kernel needs below the frame of its caller.
const STACK_KEPT_BYTES: usize = 1 << 10;
/// Stacks, in the order of [`Stack`]. A page that cannot be touched lies above each.
const STACKS: usize = 5;
const STACK_STRIDE: usize = STACK_BYTES + PAGE_SIZE;
const AGENT_OFFSET: usize = STACKS * STACK_STRIDE;

/// MOVE wants staging registered. A page that is missing there after all must not be reported:
/// nobody could answer but the thread that touched it.
pub const STAGING_MODE: u64 = register_mode::WP;

/// The program's memory: first touches are reported, and writes to what is protected ([`crate::copies`],
/// [`crate::zeros`]). The same for all of it, so that mappings that could merge do.
pub const PROGRAM_MODE: u64 = register_mode::MISSING | register_mode::WP;

/// One of the agent's stacks.
#[derive(Clone, Copy)]
pub enum Stack {
    Monitor = 0,
    Handler = 1,
    Fork = 2,
    Spill = 3,
    Watch = 4,
}

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

    /// Where a program finds the session that this process is about to execute: see
    /// [`SessionHolders::for_execution`].
    ///
    /// # Errors
    /// What open(2) says where it cannot be reached in any way.
    pub fn session_for_execution(&self) -> Result<(SessionPlace, Option<OwnedFd>), Errno> {
        let holders = &self.session_holders;
        for _ in 0..EXECUTION_LOOKS {
            if let Ok(found) = holders.for_execution() {
                return Ok(found);
            }
            // No agent follows there.
            if self.changed_user_namespace() {
                break;
            }
            // The agent's process may be as young as this one, and about to open it; or be permitted more
            // than this one is any more, until it has noticed.
            self.privileges_wanted.store(true, Ordering::Relaxed);
            self.process().wake_agent();
            self.pause_briefly();
        }
        holders.for_execution()
    }

    /// For a thread of the program that waits for the agent's process.
    pub fn pause_briefly(&self) {
        let never = AtomicU32::new(0);
        let _ = futex::wait(&never, futex::Flags::PRIVATE, 0, Some(&EXECUTION_LOOK));
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

    /// For the program's thread that the agent's process is started from. `true` for a forked child that
    /// is the first in another namespace of processes: it is about to put its own /proc in the place of
    /// the one by which the session is found.
    pub fn note_program(&self) -> bool {
        let namespace = proc::pid_namespace();
        let is_new = self.pid_namespace.swap(namespace, Ordering::Relaxed) != namespace;
        self.pid.store(proc::own_pid(), Ordering::Relaxed);
        self.end_word.store(process::end_word().unwrap_or(0), Ordering::Relaxed);
        is_new
    }

    /// The program's process.
    pub fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    /// The program, as the agent's process sees it.
    pub fn program(&self) -> Program {
        let word = self.end_word.load(Ordering::Relaxed);
        // SAFETY: a word of the program's first thread, whose memory is the C library's for ever.
        unsafe { Program::open(self.pid(), (word != 0).then_some(word)) }
    }

    /// The page that the program's first thread is watched by stays in memory: the kernel does not wait
    /// for a missing one when a thread ends.
    pub fn watched_page(&self) -> PageNumber {
        page::number_of(self.end_word.load(Ordering::Relaxed))
    }

    /// Does a page stay in memory, for the kernel to write to when a thread ends?
    pub fn stays(&self, page: PageNumber) -> bool {
        page == self.watched_page() || self.ends.contains(page)
    }

    /// Called by the first thread of the agent's process: makes it known to the others of the session. What
    /// is opened in /proc is opened before: once it is known, the program may move that out of sight
    /// (pivot_root(2)).
    ///
    /// # Errors
    /// What open(2) says of the account of this process's memory.
    pub fn begin_process(&self) -> Result<proc::Statm, Errno> {
        if self.process().turn() != self.turn.load(Ordering::Relaxed) {
            // The place is that of the program which this one has executed.
            ramfold_sys::raw::exit_group(0);
        }
        // SAFETY: the place and the agent live for ever; no C library knows this thread.
        let owned = unsafe { self.process().agent_lives.own(&self.robust_list) };
        // Without it the place is taken for that of a living process for ever.
        debug_assert!(owned.is_ok());
        self.session_holders.hold();
        // Opened while that is permitted: a server that root starts may become somebody else's.
        for (place, opened) in
            [(&self.device, Uffd::device()), (&self.pagemap, Pagemap::open_file())]
        {
            place.store(opened.map_or(0, |file| file.into_raw_fd() as u32 + 1), Ordering::Relaxed);
        }
        let statm = proc::Statm::open();
        let pid = &self.process().agent_pid;
        pid.store(proc::own_pid(), Ordering::Release);
        let _ = futex::wake(pid, futex::Flags::empty(), u32::MAX);
        let _ = rustix::thread::set_name(AGENT_NAME);
        // What is sent to the program's group is not for this one; nor does it keep a folder in use.
        // The session stays the program's: the scheduler weighs sessions against each other.
        let _ = rustix::process::setpgid(None, None);
        let _ = rustix::process::chdir(c"/");
        statm
    }

    /// What makes userfaultfds, for the agent's process.
    pub fn userfaultfd_device(&self) -> Option<BorrowedFd<'_>> {
        let number = self.device.load(Ordering::Relaxed).checked_sub(1)?;
        // SAFETY: opened by this process, which never closes it.
        Some(unsafe { BorrowedFd::borrow_raw(number as i32) })
    }

    /// The map of this process's pages, for the agent's process: once.
    ///
    /// # Errors
    /// As [`Pagemap::open_undumpable`].
    pub fn take_pagemap(&self) -> Result<Pagemap, Errno> {
        match self.pagemap.swap(0, Ordering::Relaxed).checked_sub(1) {
            // SAFETY: opened by this process, and nobody else's any more.
            Some(number) => Pagemap::from_file(unsafe { OwnedFd::from_raw_fd(number as i32) }),
            None => Pagemap::open_undumpable(),
        }
    }

    /// The program is gone: ends the agent's process.
    pub fn leave(&self) -> ! {
        if self.process().turn() == self.turn.load(Ordering::Relaxed) {
            self.process().agent_lives.leave();
        }
        ramfold_sys::raw::exit_group(0)
    }

    /// Do the agent's threads run in this address space?
    pub fn is_alive(&self) -> bool {
        self.alive_word().load(Ordering::Relaxed) == 1
    }

    /// Says so: at the start, and in a forked child that starts threads of its own.
    pub fn set_alive(&self) {
        self.alive_word().store(1, Ordering::Relaxed);
    }

    fn alive_word(&self) -> &AtomicU32 {
        // SAFETY: set at start to a word of the agent's own memory.
        unsafe { &*self.alive.load(Ordering::Relaxed) }
    }

    /// Starts the agent's process, and returns its number. Called by a thread of the program.
    ///
    /// # Errors
    /// What clone(2) says.
    pub fn spawn_process(&'static self, entry: thread::Entry) -> Result<u32, Errno> {
        let argument = ptr::from_ref(self).cast_mut().cast();
        // The far half of a stack that the caller may be on. Not one of those that the new process starts
        // threads on: it may be quicker than the one in between is in ending.
        let fork = self.stack(Stack::Fork);
        let between = fork.start..fork.start.wrapping_add(STACK_BYTES / 2);
        let stack = self.stack(Stack::Monitor);
        // SAFETY: the stacks are nobody's yet, and the agent lives for ever.
        unsafe { process::spawn(stack, between, entry, argument) }
    }

    /// Waits for the agent's process, just started, to have what it needs.
    pub fn wait_for_process(&self, agent_pid: u32) {
        for _ in 0..EXECUTION_LOOKS {
            let pid = &self.process().agent_pid;
            let seen = pid.load(Ordering::Acquire);
            if seen == agent_pid {
                break;
            }
            let _ = futex::wait(pid, futex::Flags::empty(), seen, Some(&EXECUTION_LOOK));
        }
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

    /// Gives a forked child an account of its own. Where the session has no place for it nobody
    /// counts what it costs, but its memory is looked after: parts of it are missing.
    pub fn begin_account(&'static self) {
        let pid = self.pid();
        let session = self.session();
        // SAFETY: a place in the session, or none.
        let prepared =
            unsafe { self.child_place.swap(ptr::null_mut(), Ordering::Relaxed).as_ref() };
        let process = match prepared {
            Some(place) => {
                session.adopt(place, pid);
                place
            }
            None => session.claim_or_say(pid).unwrap_or_else(|| {
                self.unlisted.pid.store(pid, Ordering::Relaxed);
                &self.unlisted
            }),
        };
        process.cost_bytes.store(self.copies.child_bytes(), Ordering::Relaxed);
        self.process.store(ptr::from_ref(process).cast_mut(), Ordering::Relaxed);
        self.turn.store(process.turn(), Ordering::Relaxed);
    }

    /// Before a fork: the child will have what this process has in the spill file, and others must know.
    pub fn prepare_child(&self) {
        if self.spills() {
            let place = self.session().prepare_child(self.process());
            let place = place.map_or(ptr::null_mut(), |place| ptr::from_ref(place).cast_mut());
            self.child_place.store(place, Ordering::Relaxed);
        }
    }

    /// After a fork, in the parent: the child has its place, or there is none.
    pub fn child_was_made(&self, was_made: bool) {
        let place = self.child_place.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: as in `begin_account`.
        if let Some(place) = unsafe { place.as_ref() }
            && !was_made
        {
            self.session().abandon(place);
        }
    }

    /// Is the calling thread in another namespace of users than the agent was started in? Not where /proc
    /// does not tell.
    pub fn changed_user_namespace(&self) -> bool {
        let now = proc::user_namespace();
        now != 0 && now != self.user_namespace.load(Ordering::Relaxed)
    }

    /// Is the calling thread somebody else than the agent was started as?
    pub fn changed_user(&self) -> bool {
        rustix::process::geteuid().as_raw() != self.user.load(Ordering::Relaxed)
    }

    /// What exists while the agent is active.
    pub fn active(&self) -> Option<&'static Active> {
        // SAFETY: written before the flag was set, never moved, and the agent lives for ever.
        self.active
            .load(Ordering::Acquire)
            .then(|| unsafe { &*self.active_parts.get().cast::<Active>() })
    }

    /// Becomes active with these parts.
    ///
    /// # Safety
    /// Only the monitor calls this, and not while the agent is active.
    pub unsafe fn set_active(&self, parts: Active) {
        // SAFETY: nobody reads the parts while the flag is off.
        unsafe { (*self.active_parts.get()).write(parts) };
        self.active.store(true, Ordering::Release);
    }

    /// In a forked child: the parent's descriptors are of no use here.
    ///
    /// # Safety
    /// Only the monitor of the child calls this, before there is a handler. The old descriptors
    /// are forgotten, not closed: the monitor's table never had them.
    pub unsafe fn replace_files(
        &self,
        uffd: Uffd,
        told_of_forks: bool,
        pagemap: Pagemap,
        spill: Option<DirectFile>,
    ) {
        let parts = self.active_parts.get().cast::<Active>();
        // SAFETY: the caller is alone.
        unsafe {
            ptr::write(&raw mut (*parts).uffd, uffd);
            ptr::write(&raw mut (*parts).pagemap, pagemap);
            (*parts).told_of_forks = told_of_forks;
            if let (Some(access), Some(file)) = (&mut (*parts).spill, spill) {
                ptr::write(&raw mut access.file, file);
            }
        }
    }

    /// Locks `core` with every message that was read also acted upon: what all but the handler
    /// itself must use.
    pub fn lock_core(&self) -> MutexGuard<'_, Core> {
        loop {
            let core = self.core.lock();
            if !self.delayed.load(Ordering::Acquire) {
                return core;
            }
            drop(core);
            sched_yield();
        }
    }

    /// Locks `core` like [`Agent::lock_core`], if that can be had at once.
    pub fn try_lock_core(&self) -> Option<MutexGuard<'_, Core>> {
        self.core.try_lock().filter(|_| !self.delayed.load(Ordering::Acquire))
    }

    /// This process now shares its memory with a child.
    pub fn note_child(&self) {
        self.subtract_cost(self.copies.begin_sharing());
        if let Some(active) = self.active() {
            active.store.begin_sharing(false);
        }
        self.note_sharing();
    }

    /// This process shares memory with a relative, how much is to be measured.
    pub fn note_sharing(&self) {
        self.process().sharing_unknown.store(1, Ordering::Relaxed);
        self.process().measured_ns.store(time::monotonic_ns(), Ordering::Relaxed);
        self.shares_memory.store(true, Ordering::Relaxed);
        self.process().wake_agent();
    }

    /// Called by the monitor when it starts.
    pub fn set_monitor_thread(&self) {
        self.monitor_thread.store(proc::own_thread(), Ordering::Relaxed);
    }

    pub fn monitor_thread(&self) -> Option<Pid> {
        Pid::from_raw(self.monitor_thread.load(Ordering::Relaxed) as i32)
    }

    /// The stack for a purpose.
    pub fn stack(&self, stack: Stack) -> Range<*mut u8> {
        let home = ptr::from_ref(self).cast::<u8>().cast_mut().wrapping_sub(AGENT_OFFSET);
        let start = home.wrapping_add(stack as usize * STACK_STRIDE);
        start..start.wrapping_add(STACK_BYTES)
    }

    /// Working memory for the codecs. Memory that is never touched costs nothing.
    ///
    /// # Safety
    /// Each part is for one user at a time.
    pub unsafe fn codec_scratch(&self) -> CodecScratch {
        let mut start = ptr::from_ref(self)
            .cast::<u8>()
            .cast_mut()
            .wrapping_add(size_of::<Agent>().next_multiple_of(PAGE_SIZE));
        let mut part = |bytes: usize| {
            let part = start;
            start = start.wrapping_add(bytes);
            // SAFETY: `start` reserved all parts behind the agent; the caller keeps users apart.
            unsafe { core::slice::from_raw_parts_mut(part, bytes) }
        };
        CodecScratch {
            monitor: CompressScratch {
                compress: part(compress_scratch_bytes(self.session())),
                decompress: part(DECOMPRESS_SCRATCH_BYTES),
            },
            direct: CompressScratch {
                compress: part(compress_scratch_bytes(self.session())),
                decompress: &mut [],
            },
            decompress: part(DECOMPRESS_SCRATCH_BYTES),
        }
    }

    /// Gives the pages of a range back to the system: from then on they are zeros. The range lies in the
    /// agent's own memory, and nobody relies on what it holds.
    pub fn give_back(&self, range: Range<usize>) {
        let start = range.start.next_multiple_of(PAGE_SIZE);
        let end = range.end & !(PAGE_SIZE - 1);
        if start < end {
            let home = self.home_range();
            assert!(home.start <= start && end <= home.end, "the agent's own memory");
            // What the program has locked (mlockall) stays, and costs what it costs.
            // SAFETY: by the caller's word.
            let _ = unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) };
        }
    }

    /// The same for what the calling thread's stack has held below its present end. Not inlined: the frame
    /// that is looked at must be the lowest.
    #[inline(never)]
    pub fn give_back_stack(&self, stack: Stack) {
        let here = 0u8;
        let end = (&raw const here as usize).saturating_sub(STACK_KEPT_BYTES);
        let stack = self.stack(stack);
        if (stack.start as usize..stack.end as usize).contains(&end) {
            self.give_back(stack.start as usize..end);
        }
    }

    /// Is this mapping the agent's own? Such memory is never registered.
    pub fn owns(&self, range: &Range<usize>) -> bool {
        let overlaps = |own: &Range<usize>| range.start < own.end && own.start < range.end;
        overlaps(&(self.home_start..self.home_end))
            || overlaps(&crate::entry::library_range())
            || self.active().is_some_and(|active| {
                let store = active.store.memory_ranges();
                overlaps(&active.staging_memory.guarded_range())
                    || overlaps(&store.pool)
                    || store.metadata.iter().any(overlaps)
                    || active.spill.as_ref().is_some_and(|spill| spill.owns(overlaps))
            })
    }

    /// Address ranges of the agent outside pool and staging: what counts as metadata.
    pub fn home_range(&self) -> Range<usize> {
        self.home_start + PAGE_SIZE..self.home_end - PAGE_SIZE
    }

    /// What the process costs now, as far as known.
    pub fn cost(&self) -> u64 {
        self.process().cost_bytes.load(Ordering::Relaxed)
    }

    /// The other processes of the session that cost something.
    pub fn others(&self) -> impl Iterator<Item = &'static Process> + '_ {
        let own = self.process();
        self.session().used_processes().filter(move |process| {
            !ptr::eq(*process, own) && process.cost_bytes.load(Ordering::Relaxed) > 0
        })
    }

    /// Makes the agents of the other processes look whether they can make room, but for those that have just
    /// found that they cannot. That takes each a while, so many are asked less often.
    pub fn wake_others(&self) {
        let may_have_room = |process: &&Process| !process.stuck.load(Ordering::Relaxed);
        let others = self.others().filter(may_have_room).count() as u64;
        if others > 0 && self.session().may_wake_all(others * WAKE_OTHER_NS) {
            self.others().filter(may_have_room).for_each(Process::wake_agent);
        }
    }

    /// Does this process have a spill file?
    pub fn spills(&self) -> bool {
        self.active().is_some_and(|active| active.spill.is_some())
    }

    /// Has reclaim found nothing more to take here?
    pub fn is_stuck(&self) -> bool {
        self.process().stuck.load(Ordering::Relaxed)
    }

    /// Adds to what the process is thought to cost, and wakes the monitor when that runs into
    /// the watermark.
    pub fn add_cost(&self, bytes: u64) {
        let cost = self.process().cost_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.monitor_sleeps.load(Ordering::Relaxed)
            && cost > cost::own_watermarks(self).high
            && self.monitor_sleeps.swap(false, Ordering::Relaxed)
        {
            self.process().wake_agent();
        }
    }

    /// Memory was freed.
    pub fn subtract_cost(&self, bytes: u64) {
        let cost = &self.process().cost_bytes;
        let _ = cost.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |cost| {
            Some(cost.saturating_sub(bytes))
        });
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

impl Active {
    /// Address of a staging slot.
    pub fn slot_address(&self, slot: Slot) -> usize {
        self.staging_memory.as_ptr() as usize + slot.0 as usize * PAGE_SIZE
    }

    /// Makes what was moved to these slots stay. A page that the program gave up (MADV_FREE) can be
    /// discarded by the kernel, here too, as long as nobody writes to it; from then on it is zeros.
    ///
    /// # Safety
    /// The slots must be registered, and nobody else may know of them yet.
    pub unsafe fn keep_slots(&self, first: Slot, count: usize) {
        for slot in first.0..first.0 + count as u16 {
            // SAFETY: in bounds of the staging memory, and nobody else's.
            unsafe { mem::touch(self.slot_address(Slot(slot)) as *mut u8) };
        }
    }

    /// The page in a staging slot.
    ///
    /// # Safety
    /// The slot must hold a page, which only the reclaimer takes out.
    pub unsafe fn slot_page(&self, slot: Slot) -> &[u8; PAGE_SIZE] {
        // SAFETY: in bounds of the staging memory, present by the caller's word.
        unsafe { NonNull::new_unchecked(self.slot_address(slot) as *mut [u8; PAGE_SIZE]).as_ref() }
    }

    /// Address behind the last staging slot.
    pub fn staging_end(&self) -> usize {
        self.staging_memory.as_ptr() as usize + self.staging_memory.len()
    }

    /// Byte range of a staging chunk.
    pub fn chunk_range(&self, chunk: usize) -> Range<usize> {
        let start = self.slot_address(Slot((chunk * CHUNK_PAGES) as u16));
        start..start + CHUNK_PAGES * PAGE_SIZE
    }
}

/// Working memory for what the monitor reclaims with, for what the handler does in direct reclaim, and
/// for what it decompresses with.
pub struct CodecScratch {
    pub monitor: CompressScratch,
    pub direct: CompressScratch,
    pub decompress: &'static mut [u8],
}

/// Working memory for compression, and for decompressing what is only compared.
pub struct CompressScratch {
    pub compress: &'static mut [u8],
    pub decompress: &'static mut [u8],
}

const DECOMPRESS_SCRATCH_BYTES: usize =
    ramfold_codec::MAX_DECOMPRESS_SCRATCH_BYTES.next_multiple_of(PAGE_SIZE);

fn compress_scratch_bytes(session: &Session) -> usize {
    session.codec().scratch_bytes().next_multiple_of(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_not_had_while_messages_wait_to_be_acted_upon() {
        // SAFETY: zeroed memory is a valid start.
        let agent = unsafe { Box::<Agent>::new_zeroed().assume_init() };
        assert!(agent.try_lock_core().is_some());
        agent.delayed.store(true, Ordering::Release);
        assert!(agent.try_lock_core().is_none());
        agent.delayed.store(false, Ordering::Release);
        let core = agent.try_lock_core();
        assert!(core.is_some(), "what was not had must not stay locked");
        assert!(agent.try_lock_core().is_none());
    }
}
