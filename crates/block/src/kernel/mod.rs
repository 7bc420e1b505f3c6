//! Block devices of the kernel that this process serves, and swap on them.
//!
//! | module | what it holds |
//! |---|---|
//! | `ublk_device` | `/dev/ublkbN`: requests come by io_uring |
//! | `nbd_device` | `/dev/nbdN`: the kernel is the client of an NBD server |
//! | `netlink` | how `/dev/nbdN` is attached and detached |
//! | `swap` | a swap area on a device, and a process that can serve one |
//! | `leftovers` | devices whose server was killed are taken away |
//! | `note` | what the data of a ublk device lies in, for the next server |

mod error;
mod leftovers;
mod nbd_device;
mod netlink;
mod note;
mod swap;
mod ublk_device;

pub use error::KernelError;
pub use leftovers::{Fate, Leftover, clean_up, waiting};
pub(crate) use nbd_device::SWAP_BUFFER_BYTES;
pub use nbd_device::{NbdConfig, NbdDevice};
pub use note::Backing;
pub(crate) use swap::is_header;
pub use swap::{Protection, Swap, protect_server};
pub use ublk_device::{AfterKill, UblkConfig, UblkDevice};
