//! A compressed cache: pages of files or block devices, compressed as clusters, in RAM.
//!
//! The cache knows pages by their [`Owner`], a file or a device, and their number in it. Bytes that
//! it does not have come from a [`Backing`]. It knows nothing of paths, inodes, descriptors or
//! connections: a front end has these, and tells the cache which [`Version`] of an owner's data it
//! reads, so that nothing is stored of data that has changed meanwhile.
//!
//! In the order in which a read goes through them:
//!
//! | module | what it holds |
//! |---|---|
//! | `owner` | what a front end implements: owners, backings, versions |
//! | `cache` | the cache as a whole: [`Cache`] |
//! | `buffer` | page-aligned buffers, one a thread |
//! | `reading` | a read: what is stored is decompressed, the rest is read from the backing |
//! | `recent` | the clusters that were read last, uncompressed |
//! | `clusters` | clusters in the store, as objects cut into pieces |
//! | `keys` | which keys of the store belong to which owner |
//! | `pages` | what the cache keeps of one owner: keys, and how it is read |
//! | `backing_speed` | how fast backings are, and so how data is compressed |
//! | `backlog`, `compression` | how missed clusters get into the store, in the background |
//! | `replacement`, `room` | which clusters leave, and when |
//! | `costs` | what reads took, for whoever divides memory |
//! | `counters`, `statistics` | what has happened |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

mod backing_speed;
mod backlog;
mod backoff;
mod buffer;
mod cache;
mod clusters;
mod compression;
mod costs;
mod counters;
mod keys;
mod owner;
mod page_name;
mod pages;
mod reading;
mod recent;
mod replacement;
mod room;
mod statistics;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backing_speed::BackingSpeed;
pub use buffer::with_buffer;
pub use cache::{Cache, CacheError, Config};
pub use clusters::DamagedCluster;
pub use compression::{Background, RefusedCluster};
pub use costs::{Cost, Costs};
pub use counters::Counter;
pub use owner::{Backing, Filled, Level, Owner, Version};
pub use page_name::PageName;
pub use pages::CachedPages;
pub use reading::{Reading, Request};
pub use statistics::Statistics;

const PAGE: u64 = ramfold_codec::PAGE_SIZE as u64;

/// No invariant here breaks by a panic half-way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
