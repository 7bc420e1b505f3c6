//! The agent that `ramfold run` loads into a program: it keeps the program's cold pages
//! compressed.
//!
//! Without the feature `preload` this is an ordinary library, whose parts without kernel in them
//! are tested; launchers use the two things here that say what the system must permit. With it, it
//! is what `LD_PRELOAD` loads.
//!
//! The life of a page, folder by folder: the `monitor` notices that memory runs short and registers
//! the program's mappings; `take` moves pages into `staging`; `reclaim` compresses what waited
//! there; the `handler` brings back what the program touches, from staging, the store or
//! `spill`, and keeps up with changes of the address space; `fork` gives a child its own agent.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(test), no_std)]
#![cfg_attr(
    not(all(feature = "preload", target_arch = "x86_64")),
    allow(dead_code, reason = "the preloaded library uses all of it, and is checked for that")
)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("ramfold's agent knows the system calls of x86_64 and aarch64 only");

mod agent;
mod announce;
#[cfg(all(feature = "preload", target_arch = "x86_64"))]
mod calls;
mod cost;
mod entry;
mod fork;
mod handler;
mod kernel;
mod monitor;
mod page;
mod protocols;
mod reclaim;
#[cfg(test)]
mod simulation;
mod spill;
mod staging;
mod take;

pub use kernel::NEEDED_FEATURES;
pub use monitor::run_soon;

pub(crate) use ramfold_session as session;
