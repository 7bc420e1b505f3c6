//! Workloads and peers in one harness.
//!
//! `ramfold-bench run` puts programs (`workloads`) under the memory systems of
//! this machine (`peers`) at equal total memory and reports medians. Order of
//! reading: `harness` drives everything; `measure` runs one program once;
//! `calibrate` finds the limit at which a peer costs what the others cost;
//! `journal` takes back whatever was set on the machine.
//!
//! `ramfold-bench codec` is apart from that: it times codecs (`codecs`) over pages of files; and so is
//! `ramfold-bench store`, which measures the parts of the store by themselves (`store`), and
//! `ramfold-bench mount` and `ramfold-bench web`, which put `ramfold mount` beside the page cache (`file_cache`) as
//! fio (`mount`) and web servers (`web`) read.

#![deny(unsafe_code)]

pub mod calibrate;
pub mod cgroup;
pub mod codecs;
pub mod commands;
pub mod file_cache;
pub mod fio;
pub mod harness;
pub mod host;
pub mod idle;
pub mod interrupt;
pub mod journal;
pub mod latency;
pub mod machine;
pub mod measure;
pub mod memeater;
pub mod mount;
pub mod pages;
pub mod peers;
pub mod plot;
pub mod progress;
pub mod random;
pub mod report;
pub mod size;
pub mod statistics;
pub mod store;
pub mod swap;
pub mod table;
pub mod web;
pub mod workloads;
