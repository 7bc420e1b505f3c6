//! The step from asleep to active: the userfaultfd, the store, staging and the other threads.

use core::ptr;
use core::sync::atomic::Ordering;

use ramfold_store::{Config, Recorder, Store};
use ramfold_sys::mem::Reservation;
use ramfold_sys::thread;
use ramfold_sys::{Errno, PAGE_SIZE};
use rustix::thread::{Timespec, sched_getaffinity};

use super::{GROWING_NS, Monitor};
use crate::agent::{Active, Agent, STAGING_MODE, Stack};
use crate::cost;
use crate::fork;
use crate::kernel::{Host, Kernel, OpenError, time};
use crate::monitor::privileges::Privileges;
use crate::session::Once;
use crate::spill::{self, SpillAccess};
use crate::staging::{CHUNK_PAGES, CHUNKS_MAX};

/// A process that costs less than this is not looked after.
const PROCESS_BYTES_MIN: u64 = 4 << 20;

/// Staging takes as much as the cap / this at most.
const STAGING_SHARE: usize = 64;

/// Chunks to fill, to wait, and to be compressed by each of the agent's threads.
const CHUNKS_MIN: usize = 4;

/// Freeing the frames of a chunk takes some system calls.
const CHUNK_PAGES_MIN: usize = 16;

/// Below this nothing useful fits beside the agent's own tables and staging.
const CAP_BYTES_MIN: u64 = 4 << 20;

/// Why the agent does not look after this process.
pub(super) enum GiveUp {
    Kernel(OpenError),
    System(&'static str, Errno),
    Cap(u64),
    /// A child would find zeros where its parent had evicted pages.
    Forks,
}

/// Entry of the thread that ends the agent's process when the program is gone.
extern "C" fn watch_main(agent: *mut ()) -> ! {
    // SAFETY: as above.
    let agent: &'static Agent = unsafe { &*agent.cast::<Agent>() };
    let (program, mut privileges) = (agent.program(), Privileges::default());
    while !program.wait_until_gone(Timespec { tv_sec: 1, tv_nsec: 0 }) {
        privileges.follow(agent, time::monotonic_ns());
    }
    agent.leave()
}

impl Monitor {
    pub(super) fn should_activate(&self) -> bool {
        let marks = cost::watermarks(self.agent.session());
        let kept = self.agent.session().unused_pool_bytes();
        let own = self.cost_bytes().max(self.unasked_bytes());
        let total = cost::others_claim(self.agent) + own + kept;
        (total > marks.activation || self.cold_after_ns() > 0 || self.watches())
            && own > PROCESS_BYTES_MIN.min(marks.cap / 4)
            && !self.agent.gave_up()
    }

    /// No fork may copy the process half-way between asleep and active: those that began before are
    /// let through, new ones wait for the lock. It is not taken earlier: a fork that waits for it
    /// has locks of libc's, which one of the others may need to go on. Nor are they waited for
    /// here: a thread that waits for an answer may have such a lock.
    pub(super) fn forks_are_done(&self) -> bool {
        self.agent.fork_gate.close()
    }

    /// From here on memory is looked after: opens a userfaultfd, sets the reserve aside, starts
    /// the fault handler and registers the program's mappings.
    // Inlined, its frame of 52 KiB would stay on the stack of every sleeping monitor.
    #[inline(never)]
    pub(super) fn activate(&mut self) -> Result<(), GiveUp> {
        let agent = self.agent;
        let marks = cost::watermarks(agent.session());
        if marks.cap < CAP_BYTES_MIN {
            return Err(GiveUp::Cap(marks.cap));
        }
        let mut core = agent.lock_core();
        let (kernel, told_of_forks) = Host::open(agent).map_err(GiveUp::Kernel)?;
        if !fork::CAN_TAKE_OVER && !told_of_forks {
            return Err(GiveUp::Forks);
        }
        let staging_pages = marks.cap as usize / STAGING_SHARE / PAGE_SIZE;
        let chunks = (staging_pages / CHUNK_PAGES).clamp(CHUNKS_MIN, CHUNKS_MAX);
        let chunk_pages = (staging_pages / chunks).clamp(CHUNK_PAGES_MIN, CHUNK_PAGES);
        let staging_bytes = chunks * CHUNK_PAGES * PAGE_SIZE;
        let staging_memory = Reservation::new(staging_bytes)
            .and_then(|memory| memory.commit(0, staging_bytes).map(|()| memory))
            .map_err(|e| GiveUp::System("address space for staging", e))?;
        let spill = SpillAccess::open(agent);
        // The pool cannot grow past the cap by much; what it is given is address space only.
        let mut store = Store::new(&Config {
            pool_bytes_max: (marks.cap as usize).saturating_mul(2).max(256 << 20),
            reserve_bytes: agent.session().reserve_bytes.load(Ordering::Relaxed) as usize,
            metadata_bytes_max: (marks.cap as usize / 4).max(64 << 20),
            spill: spill.is_some().then(|| spill::shape(agent.session())).flatten(),
        })
        .map_err(|_| GiveUp::System("address space for the pool", Errno::NOMEM))?;
        let start = staging_memory.as_ptr() as usize;
        kernel
            .register(start..start + staging_bytes, STAGING_MODE)
            .map_err(|e| GiveUp::System("registering staging", e))?;
        store.record_objects(Recorder::of(&agent.session().object_ring));
        // SAFETY: this is the monitor, and the agent is not active.
        unsafe {
            agent.set_active(Active { kernel, told_of_forks, store, staging_memory, spill });
        }
        core.staging.set_size(chunks, chunk_pages);
        // The monitor has not been sent anywhere yet.
        core.objectives.set_processors(sched_getaffinity(None).map_or(1, |set| set.count().into()));
        self.start_handler();
        drop(core);
        // Where there is room all the same, only what is watched is registered.
        if !self.watches() || cost::total(agent) > marks.activation {
            self.scan_mappings();
            // It has just grown to this.
            self.growing_until_ns = time::monotonic_ns() + GROWING_NS;
        }
        agent.process().active.store(1, Ordering::Relaxed);
        agent.session().processes_activated.fetch_add(1, Ordering::Relaxed);
        agent.session().note_activity();
        Ok(())
    }

    /// Starts the fault handler and makes the reclaimer ready, when the agent is active.
    pub(crate) fn start_handler(&mut self) {
        let agent = self.agent;
        // Should this process be killed, the program's faults must not be answered by the kernel
        // with zeros before the launcher ends it.
        if let Some(active) = agent.active() {
            active.kernel.keep_open();
        }
        self.start_thread(Stack::Watch, watch_main);
        self.program = None;
        self.start_thread(Stack::Handler, crate::handler::thread_main);
        agent.spill_work.set_works(false);
        if self.writes_spill() {
            self.start_thread(Stack::Spill, spill::thread_main);
        }
    }

    fn start_thread(&self, stack: Stack, entry: thread::Entry) {
        let agent = self.agent;
        let argument = ptr::from_ref(agent).cast_mut().cast();
        // SAFETY: the stack is this thread's alone, and the agent lives for ever.
        let spawned = unsafe { thread::spawn(agent.stack(stack), entry, argument) };
        if let Err(errno) = spawned {
            agent.fail(format_args!("cannot start a thread of the agent: {errno}"));
        }
    }

    /// Does this process write to the spill file? One that others do not know of only reads what it
    /// has inherited.
    fn writes_spill(&self) -> bool {
        self.agent.spills() && self.agent.session().lists(self.agent.process())
    }

    pub(super) fn give_up(&self, reason: &GiveUp) {
        let agent = self.agent;
        agent.give_up();
        agent.fork_gate.open();
        let session = agent.session();
        let hint = "`ramfold doctor` says what works here";
        match reason {
            GiveUp::Kernel(OpenError::Userfaultfd(error)) => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: userfaultfd is not permitted (/dev/userfaultfd: {}, system call: {}); {hint}",
                    error.device, error.system_call
                ),
            ),
            GiveUp::Kernel(OpenError::Features(missing)) => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: this kernel's userfaultfd lacks features {missing:#x} (Linux 6.8 has them); {hint}"
                ),
            ),
            GiveUp::Kernel(OpenError::System(what, errno)) | GiveUp::System(what, errno) => session.say(
                Once::NoAddressSpace,
                format_args!("runs without ramfold: {what}: {errno}; {hint}"),
            ),
            GiveUp::Forks => session.say(
                Once::NoUserfaultfd,
                format_args!(
                    "runs without ramfold: on this architecture the kernel must tell of forks, which takes CAP_SYS_PTRACE; {hint}"
                ),
            ),
            GiveUp::Cap(cap) => session.say(
                Once::CapTooSmall,
                format_args!(
                    "runs without ramfold: --memory {cap} bytes is less than the {CAP_BYTES_MIN} bytes that the agent itself needs room in"
                ),
            ),
        }
    }
}
