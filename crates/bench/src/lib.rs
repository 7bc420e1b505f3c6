//! Workloads and peers in one harness: the program `ramfold-bench`.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod commands;
mod content;
mod experiments;
mod harness;
mod machine;
mod peers;
mod workloads;

pub use commands::main;
pub use content::heap_pages::{Page, PageSource};
pub use content::random::Random;
