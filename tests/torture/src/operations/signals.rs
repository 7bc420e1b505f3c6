//! Signals whose handlers use tortured memory, on stacks in tortured memory.

use std::sync::atomic::Ordering::SeqCst;

use super::{Operation, Outcome, Turn, operation};
use crate::errno::Errno;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("signal-timer", 4, "a timer's signals interrupt reads and writes", timer),
    operation("signal-threads", 5, "threads send signals to each other", threads),
];

fn set_timer(interval_us: i64) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: interval_us };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the structure outlives the call.
    if unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) } != 0 {
        fail!("setitimer gave {}", Errno::last());
    }
}

fn timer(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    set_timer(turn.rng.between(200, 2000) as i64);
    for _ in 0..turn.rng.between(100, 2000) {
        region.write_full(first + turn.rng.below(pages));
        region.check(first + turn.rng.below(pages), 1);
    }
    set_timer(0);
    region.check(first, pages);
    Ok(())
}

fn threads(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let slots = &turn.world.table.threads[..turn.world.options.threads];
    for _ in 0..turn.rng.between(1, 100) {
        let slot = turn.rng.pick(slots);
        let tid = slot.tid.load(SeqCst) as i32;
        // SAFETY: a plain system call; a thread of another process cannot be hit.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, current::pid(), tid, libc::SIGUSR1) };
        // A thread that has ended, or not begun, is none to signal.
        if sent != 0 && !matches!(Errno::last(), Errno(libc::ESRCH | libc::EINVAL | libc::EAGAIN)) {
            fail!("tgkill gave {}", Errno::last());
        }
        region.write_partial(first + turn.rng.below(pages));
    }
    region.check(first, pages);
    Ok(())
}
