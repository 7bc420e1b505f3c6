//! How the agent's threads and the program's agree with each other: one struct for each protocol, with
//! a table of who writes what under which ordering.
//!
//! Nothing here makes a system call but [`sync::Futex`]. `tests/protocols.rs` compiles the same
//! files over loom's types and tries every interleaving.

pub mod activation;
pub mod announcements;
pub mod fork_copy;
pub mod fork_gate;
pub mod privileges;
pub mod progress;
pub mod sharing;
pub mod sleep_flag;
pub mod spill_work;
pub mod sync;
pub mod take_over;
