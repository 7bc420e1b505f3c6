//! Forks by the C library's `syscall`, which goes around its own fork and whatever would be told of
//! it.

use ramfold_sys::raw;

use super::{Answer, Call};
use crate::fork::{after_fork_in_child, after_fork_in_parent, before_fork, trap};

/// Makes the call if it copies the process. Returns in parent and child.
#[inline(never)]
pub(super) fn on_clone(call: &Call) -> Answer {
    let Call { number, arguments } = *call;
    if !trap::copies_memory(number, &arguments) {
        return Answer::AS_IT_IS;
    }
    before_fork();
    let result = if trap::is_armed() {
        trap::fork_from_agent_stack(number, &arguments)
    } else {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the program asked for this very call.
        unsafe { raw::syscall6(number, a, b, c, d, e, f) }
    };
    if result == 0 {
        after_fork_in_child();
    } else {
        after_fork_in_parent();
    }
    Answer::made(result)
}
