//! How the agent's threads and the program's agree with each other: one struct for each protocol, with
//! a table of who writes what under which ordering.
//!
//! Nothing here makes a system call but [`sync::Futex`]. `tests/protocols.rs` compiles the same
//! files over loom's types and tries every interleaving.

pub mod fork_copy;
pub mod fork_gate;
pub mod progress;
pub mod sleep_flag;
pub mod sync;
