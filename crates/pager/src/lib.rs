//! The agent that `ramfold run` loads into a program: it keeps the program's cold pages
//! compressed.
//!
//! Without the feature `preload` this is an ordinary library: the launcher uses [`session`], and
//! the parts without kernel in them are tested. With it, it is what `LD_PRELOAD` loads.
//!
//! The life of a page, file by file: [`monitor`] notices that memory runs short and registers the
//! program's mappings ([`regions`]); the [`sweep`] takes pages into [`staging`], those on [`probation`]
//! first where [`victims`] says so and those with a [`mark`] later, and [`cold`] those that nobody
//! touches; [`reclaim`] compresses what waited there; [`fault`] brings back what the program touches,
//! with what a [`stream`] of faults wants next; [`spill`] is where objects go that there is no room for,
//! and come from; [`event`] keeps up with changes of the address space;
//! [`fork`] gives a child its own agent.

#![cfg_attr(not(test), no_std)]

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("ramfold's agent knows the system calls of x86_64 and aarch64 only");

pub mod agent;
pub mod announce;
#[cfg(all(feature = "preload", target_arch = "x86_64"))]
mod calls;
pub mod cold;
pub mod content;
mod copies;
pub mod cost;
pub mod dropped;
pub mod ends;
pub mod entry;
pub mod event;
pub mod fault;
pub mod foreign;
pub mod fork;
pub mod hand;
pub mod histogram;
pub mod kept;
pub mod locked_growth;
pub mod monitor;
pub mod page;
pub mod placement;
pub mod privileges;
pub mod reclaim;
pub mod recompress;
pub mod regions;
pub mod session;
pub mod spill;
pub mod staging;
pub mod sweep;
mod unheld;
mod zeros;
