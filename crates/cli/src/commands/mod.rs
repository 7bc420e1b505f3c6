//! The subcommands.

pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod block;
pub(crate) mod block_backing;
pub(crate) mod block_device;
pub(crate) mod block_events;
pub(crate) mod calibrate_workload;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod manual;
pub(crate) mod mount;
pub(crate) mod prediction;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod umount;
