//! The subcommands.

pub mod bench;
pub mod doctor;
pub mod dump;
pub mod manual;
pub mod mount;
pub mod run;
pub mod simulate;
pub mod umount;
