//! A block device in RAM, its data compressed, and the servers that offer it to others.
//!
//! A device is what implements [`BlockDevice`]. A front offers one: it knows a protocol, and
//! nothing of how data is kept.
//!
//! | module | what it holds |
//! |---|---|
//! | `device` | the calls that devices answer and fronts make: [`BlockDevice`] |
//! | [`kernel`] | devices of the kernel that this process serves: ublk, nbd, swap on them |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod device;
pub mod kernel;

pub use device::{BlockDevice, DeviceError, Durability, Extent, Zeroing};
