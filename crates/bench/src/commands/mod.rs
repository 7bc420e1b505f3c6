//! One file a subcommand.

pub mod enter_cgroup;
pub mod run;
pub mod workload;
