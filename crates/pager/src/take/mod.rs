//! Which pages are taken out of the program's memory, and by what.

pub(crate) mod clock_hand;
pub(crate) mod dropped;
pub(crate) mod proactive;
pub(crate) mod regions;
pub(crate) mod retained;
pub(crate) mod sweep;
pub(crate) mod thread_ends;
pub(crate) mod watch;
