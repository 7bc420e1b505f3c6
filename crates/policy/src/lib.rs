//! Decisions without mechanism: which pages to take, when, and how hard to compress them.
//!
//! Nothing in this crate makes a system call, reads a clock, takes a lock or uses `unsafe`: times
//! and amounts come in as arguments. So the agent, the file cache and a simulator run the same
//! code, and every rule is tested without a kernel.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

#[cfg(any(feature = "files", test))]
extern crate alloc;

#[cfg(any(feature = "files", test))]
pub mod files;
pub mod memory;
