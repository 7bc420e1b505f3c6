//! What one run of a program and the agents in its processes share: a piece of memory.
//!
//! The launcher makes it (a memfd) and reads it. Every agent maps it, takes a place in it for its
//! process, and keeps its counters there. So the cap holds for all processes together, and what
//! happened is known even when a process is killed. The memory is trusted for accounts and messages
//! only: no content of a page ever passes through it.
//!
//! `layout` has the structures, and `schema` declares every counter and gauge in them once. The
//! other modules are what is done with the structures: `owned` makes and maps the memory, `places`
//! gives each process a place, `accounts` adds up what processes cost, `ended` looks after the
//! places of processes that have ended, `segments` divides the spill file, `messages` carries lines
//! for the user, `waking` wakes who waits, `watch` carries what is seen of watched pages, `statistics`
//! reads all counters and gauges together.
//!
//! This is `no_std`, allocates nothing and takes no locks: the agent uses it in the middle of
//! faults.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

mod accounts;
mod ended;
mod histogram;
mod layout;
mod lent_file;
mod messages;
mod metric;
mod owned;
mod places;
mod schema;
mod segments;
mod statistics;
mod waking;
mod watch;

pub use histogram::{Histogram, Quantiles};
pub use layout::{AGENT_NAME, SEALS, SESSION_MAGIC, SESSION_VARIABLE, SpillArea};
pub use lent_file::LentFile;
pub use messages::Once;
pub use metric::{Metric, MetricKind, Section, Unit};
pub use owned::OwnedSession;
pub use ramfold_store::SEGMENT_BYTES_MAX;
pub use schema::{Counters, Process, SECTIONS, Session};
pub use segments::{SEGMENTS_MAX, SegmentSet};
pub use statistics::{Statistics, Value, metrics};
pub use watch::{OFFERED_MAX, OfferedPages, PageEvent, WatchArea, Watched};
