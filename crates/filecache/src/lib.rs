//! `ramfold mount`: a file system in user space (FUSE) that shows a directory, SOURCE, at another place.
//!
//! [`mount`] makes and ends the mount; `fs` answers the kernel's requests by the same requests to SOURCE, and
//! [`content`] is where all data of files goes through; `watch` sees what is changed behind the mount, and
//! `credentials` makes a request act as whoever it comes from.

#![forbid(unsafe_code)]

pub mod content;
mod credentials;
mod fs;
pub mod mount;
mod watch;
