//! Which pages are taken out of the program's memory, and by what.

pub mod clock_hand;
pub mod dropped;
pub mod proactive;
pub mod regions;
pub mod retained;
pub mod sweep;
pub mod thread_ends;
