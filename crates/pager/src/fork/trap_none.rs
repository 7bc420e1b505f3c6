//! No trap: this architecture's kernel cannot hand the system calls of a thread back to it.

use crate::agent::Agent;

/// Can a child be given an agent of its own? Otherwise every fork is one that bypasses libc.
pub(crate) const CAN_TAKE_OVER: bool = false;

/// What `Agent::trap` guards.
pub(crate) struct Trap;

/// Who asks for the trap to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Parent,
    Child,
}

/// Never called.
pub(crate) fn arm(_agent: &Agent) {}

/// There was no trap.
pub(crate) fn disarm(_side: Side) -> bool {
    false
}
