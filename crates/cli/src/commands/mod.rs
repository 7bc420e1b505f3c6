//! The subcommands.

pub mod bench;
pub mod doctor;
pub mod dump;
pub mod run;
