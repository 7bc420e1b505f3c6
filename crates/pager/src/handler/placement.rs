//! On which processor the fault handler runs.
//!
//! A handler on the faulting thread's own processor answers in 6 to 10 us: the thread sleeps in
//! the fault anyway, so its processor is free. On another, idle processor the wake-up alone
//! costs 25 to 75 us (virtual machines of two cores, Linux 6.18). So the handler goes where the
//! faults come from, and the monitor, which compresses meanwhile, keeps away from there: left to
//! itself the kernel likes to put it beside who wakes it, the handler.

use ramfold_sys::proc;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::agent::Agent;

/// Time spent on faults between two looks at where a thread runs, and when it is another thread's
/// turn: a look takes about 10 us.
const NS_PER_LOOK: u64 = 640_000;
const NS_PER_LOOK_AT_ANOTHER: u64 = 80_000;

/// Where the handler is and whom it follows.
#[derive(Default)]
pub(crate) struct Placement {
    /// Processors the process may use, as found at the first fault.
    allowed: Option<CpuSet>,
    thread: u32,
    processor: Option<usize>,
    /// Time spent on faults since the last look.
    fault_ns: u64,
}

impl Placement {
    /// Takes note of a fault of this thread, which took so long, and moves after it when it is
    /// elsewhere; the monitor is sent away from there.
    pub(crate) fn follow(&mut self, agent: &Agent, thread: u32, took_ns: u64) {
        self.fault_ns += took_ns;
        let patience = if thread == self.thread { NS_PER_LOOK } else { NS_PER_LOOK_AT_ANOTHER };
        if self.processor.is_some() && self.fault_ns < patience {
            return;
        }
        self.fault_ns = 0;
        self.thread = thread;
        // A thread that is gone needs no handler near it.
        let Ok(processor) = proc::last_processor(thread) else { return };
        if self.processor == Some(processor) {
            return;
        }
        let allowed = match &self.allowed {
            Some(allowed) => allowed,
            None => match sched_getaffinity(Pid::from_raw(agent.pid() as i32)) {
                Ok(set) => self.allowed.insert(set),
                Err(_) => return,
            },
        };
        if processor >= CpuSet::MAX_CPU || !allowed.is_set(processor) {
            return;
        }
        let mut set = CpuSet::new();
        set.set(processor);
        // Where that is refused the handler runs where the kernel puts it.
        if sched_setaffinity(None, &set).is_err() {
            return;
        }
        self.processor = Some(processor);
        let mut others = *allowed;
        others.unset(processor);
        // With one processor there is nowhere else to go; a monitor that cannot be sent away only
        // costs time.
        let _ = sched_setaffinity(
            agent.monitor_thread(),
            if others.count() > 0 { &others } else { allowed },
        );
    }
}
