//! A block device in RAM, its data compressed, and the servers that offer it to others.
//!
//! A device is what implements [`BlockDevice`]. A front offers one: it knows a protocol, and
//! nothing of how data is kept.
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | the calls that devices answer and fronts make: [`BlockDevice`] |
//! | `disk` | the disk in RAM, compressed: [`Disk`]; as a cache before a disk: [`BackedDisk`] |
//! | `plain` | a device that compresses nothing, to try fronts on: [`PlainDevice`] |
//! | [`nbd`] | a server of the Network Block Device protocol |
//! | [`kernel`] | devices of the kernel that this process serves: ublk, nbd, swap on them |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod device;
mod disk;
pub mod kernel;
pub mod nbd;
mod plain;

pub use device::{BlockDevice, DeviceError, Durability, Extent, Zeroing};
pub use disk::{
    BackedDisk, BackingConfig, BackingError, BackingStatistics, Disk, DiskConfig, DiskError,
    DiskStatistics, Lost, Paths, SpillConfig, Tell,
};
pub use plain::PlainDevice;

/// Stacks of threads that serve: all of a stack is in RAM where the process locks its memory.
const STACK_BYTES: usize = 512 << 10;
