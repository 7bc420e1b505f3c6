//! Advice on memory, from measurements and the model.
//!
//! | module | what it does |
//! |---|---|
//! | [`simulation`] | runs replacement policies over a trace, at several sizes at once |

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

pub mod simulation;
