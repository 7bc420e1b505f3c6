#![forbid(unsafe_code)]
pub mod content;
