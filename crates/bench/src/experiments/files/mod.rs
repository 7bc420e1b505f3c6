//! What the experiments with files have in common: data on a disk, a cache over it in a cgroup, and
//! what all that takes part uses meanwhile.
//!
//! The reads of the cgroup are slowed down to what a slow disk gives ([`Slowdown`]).

mod bed;
mod disk;
pub(super) mod shares;

pub(super) use bed::{Bed, Setup, Stage};
pub(super) use disk::{Disk, Slowdown};
