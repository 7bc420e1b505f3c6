//! Closing descriptors that the program does not know, as daemons, shells and subprocess do.

use super::{Operation, Outcome, Turn, operation};
use crate::child::{self, Way};
use crate::errno::Errno;
use crate::failure::EXIT_SKIP;
use crate::rng::Rng;

pub(super) const OPERATIONS: &[Operation] = &[operation(
    "fork-close-descriptors",
    3,
    "a child closes all descriptors from 3 on and compares all memory",
    close_in_child,
)];

fn close_in_child(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let child = child::fork(Way::Libc, turn.world, |inherited| {
        let mut rng = Rng::new(seed);
        let closed = if rng.percent(50) { close_from(3) } else { close_each() };
        if closed.is_err() {
            return EXIT_SKIP;
        }
        inherited.check_all();
        inherited.write_sample(&mut rng, 100);
        inherited.check_sample(&mut rng, 200);
        0
    })?;
    child.wait()
}

/// Closes all descriptors from `first` on, by close_range(2) where the kernel has it.
pub(crate) fn close_from(first: u32) -> Result<(), Errno> {
    // SAFETY: nothing in this program relies on a descriptor that is open when this is called.
    if unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } == 0 {
        return Ok(());
    }
    match Errno::last() {
        Errno(libc::ENOSYS) => close_each(),
        errno => Err(errno),
    }
}

/// Closes one descriptor after the other, up to the limit but no more than old programs do.
fn close_each() -> Result<(), Errno> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(Errno::last());
    }
    for descriptor in 3..limit.rlim_cur.min(1 << 16) as i32 {
        // SAFETY: as above. Most of them are not open, which is no error here.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}
