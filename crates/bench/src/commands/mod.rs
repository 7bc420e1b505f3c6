//! One file a subcommand.

pub mod codec;
pub mod codec_count;
pub mod enter_cgroup;
pub mod memeater;
pub mod mount;
mod print;
pub mod run;
pub mod store;
pub mod train;
pub mod web;
pub mod workload;

use print::print;
