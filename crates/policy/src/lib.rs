//! Policies: which pages stay in memory, and how memory is divided.
//!
//! A policy is a state machine. It holds no lock, keeps no data of a page, makes no system call and
//! reads no clock: callers pass what was seen and, where it matters, the time. So a simulator can
//! run it on a trace, and a test needs no kernel.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod files;
