//! Policies of the pager, in the order in which memory grows, is taken, and comes back.

pub mod back_off;
pub mod fault_rate;
pub mod growth;
pub mod measurement;
pub mod objective;
pub mod pace;
pub mod probation;
pub mod quiet;
pub mod refaults;
pub mod reuse;
pub mod rounds;
pub mod sequential;
pub mod stream;
pub mod victims;
pub mod watch;
pub mod watermarks;

/// An address of the program's, divided by the size of a page.
pub type PageNumber = u64;
