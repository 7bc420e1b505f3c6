//! ublk: block devices that the kernel has a process serve, by commands of io_uring (Linux 6.4).
//!
//! A device is made by [`Control`]; each of its [`Queue`]s is served by a thread.

mod abi;
mod control;
mod queue;

pub use abi::DeviceInfo;
pub use control::{Control, Features, NewDevice, State};
pub use queue::{Operation, Queue, Queues, Request};
