//! The parts of the store, measured by themselves.

pub mod allocators;
pub mod engine;
pub mod spill;
pub mod sweep;
pub mod verbs;
