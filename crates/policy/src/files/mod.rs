//! Policies of the cache of files and disks.
//!
//! | module | what it decides |
//! |---|---|
//! | [`balance`] | how memory is divided between the kernel's page cache and the compressed cache |
//! | [`replacement`] | which clusters leave the compressed cache |
//! | [`history`] | what replacement remembers of a cluster |

pub mod balance;
pub mod history;
pub mod replacement;
