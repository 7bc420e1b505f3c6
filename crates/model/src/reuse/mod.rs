//! Reuse distances: for an access to a page, how many different pages were accessed since the last
//! access to it, that page included.
//!
//! A memory of `m` pages that drops the least recently used one holds a page at its next access
//! exactly where the distance is at most `m` (Mattson and others, 1970). So the histogram of the
//! distances says how many faults there are at each size, from one pass over a trace.
//!
//! ```text
//! accesses    a  b  c  b  a        a: 3 different pages (a, b, c) since its last access
//! distances   -  -  -  2  3        b: 2 (b, c); the first access to each page has none
//! ```
//!
//! [`stack`] computes them exactly, [`shards`] from pages that a hash picks, [`histogram`] counts
//! them. [`distinct`] counts pages.

pub mod distinct;
pub mod histogram;
pub mod shards;
pub mod stack;

pub use distinct::Distinct;
pub use histogram::Histogram;
pub use shards::Shards;
pub use stack::StackDistances;
