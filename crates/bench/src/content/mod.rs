//! Data for experiments: generated, or read from files. The lowest room; it uses no other.
//!
//! - `random`: seeded numbers, uniform and zipfian
//! - `heap_pages`: pages as programs' heaps have them
//! - `file_content`: files as corpora have them
//! - `page_files`: files of raw pages, as `ramfold dump` writes them
//!
//! Everything is a function of a seed, so that every run and every machine has the same data. A new
//! kind of data is one more file here; each is tested for how well it compresses.

pub(crate) mod file_content;
pub(crate) mod heap_pages;
pub(crate) mod page_files;
pub(crate) mod random;
