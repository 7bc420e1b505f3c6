//! How the agent's threads and the program's agree with each other: one struct for each protocol,
//! with a table of who writes what under which ordering.
//!
//! Nothing here makes a system call but [`sync::Futex`]. `tests/protocols.rs` compiles the same
//! files over loom's types and tries every interleaving.

pub(crate) mod activation;
pub(crate) mod announcements;
pub(crate) mod fork_copy;
pub(crate) mod fork_gate;
pub(crate) mod move_gate;
pub(crate) mod privileges;
pub(crate) mod progress;
pub(crate) mod sharing;
pub(crate) mod sleep_flag;
pub(crate) mod spill_work;
pub(crate) mod sync;
pub(crate) mod take_over;
