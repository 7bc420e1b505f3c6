//! Fork: a child must find every evicted page where its parent had it.
//!
//! The child's copy of the address space contains the parent's store and staging as they were, so
//! it has all it needs, once it has an agent of its own. The danger is the time before: libc
//! itself and other libraries touch memory in the child before any handler of ours would run, and
//! an evicted page would read as zeros. So the agent does the copying itself. While a thread is in
//! `fork`, its system calls are trapped (Syscall User Dispatch, Linux 5.11); when libc comes to
//! the clone, the handler makes it with all state at rest, and in the child starts the new agent
//! before it returns.
//!
//! A program may also ask libc's `syscall` for the clone: that passes through the agent, which
//! makes the fork in the same way (`calls/`). Or it clones without libc at all. With
//! `CAP_SYS_PTRACE` the kernel reports that (`EVENT_FORK`), and the child is given all of its
//! evicted pages uncompressed.

pub(crate) mod copies;
#[cfg(any(test, target_arch = "x86_64"))]
mod copy;
mod fill;
#[cfg_attr(target_arch = "x86_64", path = "trap_x86_64.rs")]
#[cfg_attr(not(target_arch = "x86_64"), path = "trap_none.rs")]
pub(crate) mod trap;

use core::ops::Range;
use core::sync::atomic::Ordering;

use ramfold_sys::file::DirectFile;
use ramfold_sys::{Errno, PAGE_SIZE, proc};

use crate::agent::{Active, Agent, Context, Core, PROGRAM_MODE, STAGING_MODE};
use crate::cost;
use crate::handler::zero_page;
use crate::kernel::{Host, Kernel, maps, time};
use crate::monitor::Monitor;
use crate::monitor::privileges;
use crate::page;

#[cfg(test)]
pub(crate) use copy::copy_at_rest;
pub(crate) use fill::fill_child;
pub(crate) use trap::{CAN_TAKE_OVER, Trap};

/// How long a fork waits for room.
const ROOM_NS_MAX: u64 = 1_000_000_000;
/// Between two looks of a fork that waits for room.
const LOOK_NS: u64 = 1_000_000;
/// Least reserve of a child's pool.
const CHILD_RESERVE_MIN: usize = 64 << 10;
/// Between two looks whether the agent of a child lives.
const TAKE_OVER_NS: u64 = 100_000_000;
/// How long a child waits for its parent to let go of the child's registrations.
const HAND_OVER_NS: u64 = 30_000_000_000;

/// Runs in the forking thread before libc forks (`pthread_atfork`).
pub(crate) extern "C" fn before_fork() {
    let Some(agent) = Agent::get() else { return };
    // A clone that bypassed libc made this process. It was given all of its memory, and has no
    // agent; nor will its children.
    if agent.presence.look_before_fork() {
        return;
    }
    privileges::follow_before_fork(agent);
    agent.copies.begin_fork(agent.process());
    if agent.fork_gate.enter(CAN_TAKE_OVER) {
        return;
    }
    make_room(agent);
    // Held until `after_fork_in_parent` or, in the child's copy, `after_fork_in_child`.
    core::mem::forget(agent.trap.lock());
    trap::arm(agent);
}

/// Waits until the process costs little enough to be two. Where memory does not shrink, or not in
/// time, the fork goes on as it is. What two processes share is guarded ([`crate::fork::copies`]),
/// but cannot be taken out: without room to work in they would wait for each page.
pub(crate) fn make_room(agent: &Agent) {
    let mark = cost::watermarks(agent.session()).fork;
    let cost = || cost::total(agent);
    // What is shared already cannot be taken out.
    let shares = agent.sharing.is_shared();
    if agent.active().is_none() || shares || cost() <= mark {
        return;
    }
    let deadline = time::monotonic_ns() + ROOM_NS_MAX;
    agent.progress.begin_fork();
    while cost() > mark && !agent.is_stuck() && time::monotonic_ns() < deadline {
        let seen = agent.progress.seen();
        agent.process().wake_agent();
        agent.progress.wait(seen, LOOK_NS);
    }
    agent.progress.end_fork();
}

/// Runs in the parent after libc forked, or failed to.
pub(crate) extern "C" fn after_fork_in_parent() {
    let Some(agent) = Agent::get() else { return };
    if agent.presence.is_abandoned() {
        return;
    }
    if trap::disarm(trap::Side::Parent) {
        // SAFETY: this thread locked it in `before_fork` and forgot the guard.
        unsafe { agent.trap.unlock_forgotten() };
    } else {
        agent.note_child();
        agent.fork_gate.leave();
    }
}

/// Runs in the child after libc forked.
pub(crate) extern "C" fn after_fork_in_child() {
    let Some(agent) = Agent::get() else { return };
    if agent.presence.is_abandoned() {
        return;
    }
    let went_through_the_agent = trap::disarm(trap::Side::Child);
    // SAFETY: the only thread of the program is this one.
    unsafe { agent.trap.reset_after_fork() };
    if went_through_the_agent {
        return;
    }
    if let Some(active) = agent.active() {
        if !active.told_of_forks {
            agent.fail(format_args!("a fork got past the agent"));
        }
        // The kernel told the parent's handler, which gives this process what is missing.
        agent.presence.abandon();
        return;
    }
    // SAFETY: as above; a monitor that was about to activate held it, and had done nothing yet.
    unsafe { agent.core.reset_after_fork() };
    start_asleep(agent);
}

/// Starts an agent in a child that inherits nothing evicted.
fn start_asleep(agent: &'static Agent) {
    let waits = begin_process(agent);
    agent.fork_gate.open();
    // Where there may be no more processes the child runs without ramfold.
    let spawned = agent.spawn_process(crate::monitor::process_main);
    if let (Ok(process), true) = (spawned, waits) {
        agent.wait_for_process(process);
    }
}

/// What a child's agent must not take from its parent's. Returns what [`Agent::note_program`] does.
fn begin_process(agent: &'static Agent) -> bool {
    let is_in_new_namespace = agent.note_program();
    agent.presence.begin();
    agent.fork_gate.begin_child();
    agent.move_gate.begin_child();
    agent.fork_copy.begin_child();
    agent.progress.begin_child();
    agent.announcements.begin_child();
    #[cfg(all(feature = "preload", target_arch = "x86_64"))]
    crate::calls::begin_child();
    agent.privileges.begin_child();
    agent.begin_account();
    agent.copies.begin_child();
    agent.note_parent();
    is_in_new_namespace
}

/// The first thing in a child: an agent of its own. Returns when evicted pages can be touched.
pub(super) fn begin_child(agent: &'static Agent) {
    let Some(active) = agent.active() else { return start_asleep(agent) };
    // SAFETY: this is the only thread of the child.
    unsafe { inherit(agent, active) };
    agent.take_over.begin();
    let spawned = agent.spawn_process(crate::monitor::process_main_in_child);
    let process = match spawned {
        Ok(process) => process,
        Err(errno) => agent.fail(format_args!("cannot start the agent of a forked child: {errno}")),
    };
    while !agent.take_over.is_finished_within(TAKE_OVER_NS) {
        // A filter of the program's (seccomp) may have ended it.
        if proc::has_ended(process) == Ok(true) {
            agent.fail(format_args!("the agent of a forked child has ended"));
        }
    }
}

/// Makes what a child has of its parent's agent its own.
///
/// # Safety
/// The child has one thread, and the forking thread had the agent at rest.
pub(crate) unsafe fn inherit(agent: &'static Agent, active: &'static Active) {
    begin_process(agent);
    // SAFETY: the threads that may have held them are not in this process; what they guard was
    // at rest, because every change is made under `core`.
    unsafe { active.store.reset_locks_after_fork() };
    active.store.begin_sharing(true);
    // Full reserves in many children would cost more than their compressed pages.
    let processes = 1 + agent.others().count();
    let reserve = agent.session().reserve_bytes.load(Ordering::Relaxed) as usize / processes;
    active.store.set_reserve(reserve.max(CHILD_RESERVE_MIN));
}

/// In the child's monitor: looks after the memory from here on, and lets the program go on.
pub(crate) fn take_over(agent: &'static Agent, monitor: &mut Monitor) {
    register_inherited(agent, monitor);
    monitor.start_handler();
    // No fork is under way: this process has one thread, which waits.
    agent.fork_gate.close();
    agent.process().active.store(1, Ordering::Relaxed);
    agent.take_over.finish();
}

/// Registers the memory again, with a descriptor of the child's own.
pub(crate) fn register_inherited(agent: &'static Agent, monitor: &mut Monitor) {
    let (kernel, told_of_forks) = match Host::open(agent) {
        Ok(opened) => opened,
        Err(error) => agent.fail(format_args!("a forked child: {error:?}")),
    };
    let Some(active) = agent.active() else { return };
    let spill_file = active.spill.is_some().then(|| inherit_spill_file(agent, active));
    // SAFETY: this is the child's monitor, and there is no handler yet.
    unsafe { agent.replace_files(kernel, told_of_forks, spill_file) };
    let deadline = time::monotonic_ns() + HAND_OVER_NS;
    let all = monitor.anonymous_bytes();
    let guards = copies::must_be_guarded(agent, all, all);
    agent.copies.begin_child();
    let staging = active.chunk_range(0).start..active.staging_end();
    register(agent, active, staging, STAGING_MODE, deadline);
    {
        let core = &mut *agent.lock_core();
        core.staging.release_all();
        // What its parent found says nothing about this process.
        core.sweep.encourage();
        // SAFETY: this is the child's first thread of the agent, and there is no handler yet.
        unsafe { crate::handler::act_on_inherited(&mut Context { agent, active, core }) };
        let mut last_end = 0;
        let mut buffer = [0; 8192];
        let result = maps::for_each_with_usage(&mut buffer, |mapping, _, flags| {
            // Memory the program wants zeroed in a child (MADV_WIPEONFORK) starts afresh, as do
            // ranges that were left out of the copy (MADV_DONTFORK).
            let inherits =
                mapping.is_private_anonymous() && !flags.has(*b"wf") && !agent.owns(&mapping.range);
            if inherits {
                forget(active, core, last_end..mapping.range.start);
                last_end = mapping.range.end;
                register(agent, active, mapping.range.clone(), PROGRAM_MODE, deadline);
            }
        });
        if let Err(errno) = result {
            agent.fail(format_args!("a forked child: /proc/self/smaps: {errno}"));
        }
        forget(active, core, last_end..usize::MAX & !(PAGE_SIZE - 1));
        core.rescan_wanted = true;
        if guards {
            copies::guard(&mut Context { agent, active, core });
        } else {
            // A copy of the memory is not protected.
            for region in core.regions.as_slice() {
                zero_page::protect(active, region.start..region.end);
            }
        }
    }
    monitor.begin_sharing();
}

/// Opens the spill file, which this process has pages in. The parent's number for it is in the copy
/// of its memory.
fn inherit_spill_file(agent: &Agent, active: &Active) -> DirectFile {
    // This one has not put its own number there yet.
    let parent = agent.monitor_thread().map(|thread| thread.as_raw_nonzero().get() as u32);
    let parent = parent.zip(crate::spill::fd_of(active));
    match crate::spill::open_file(agent, parent) {
        Ok(file) => file,
        Err(errno) => {
            agent.fail(format_args!("a forked child cannot open the spill file: {errno}"))
        }
    }
}

/// Registers a range of the child. Until the parent has closed the descriptor that the kernel
/// made for the child, the range counts as taken.
fn register(agent: &Agent, active: &Active, range: Range<usize>, mode: u64, deadline: u64) {
    loop {
        match active.kernel.register(range.clone(), mode) {
            Ok(()) => return,
            Err(Errno::BUSY) if time::monotonic_ns() < deadline => active.kernel.yield_now(),
            Err(errno) => agent.fail(format_args!(
                "a forked child cannot register {:#x}..{:#x}: {errno}",
                range.start, range.end
            )),
        }
    }
}

/// The child has nothing at these addresses.
fn forget(active: &Active, core: &mut Core, range: Range<usize>) {
    if !range.is_empty() {
        let (first, count) = page::pages_of(&range);
        core.staging.invalidate(first, count);
        active.store.invalidate_range(first, count);
        core.regions.remove(&range);
    }
}
