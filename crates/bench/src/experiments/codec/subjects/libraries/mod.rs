//! The C libraries, as peers: loaded when they are on the machine, never linked.
//!
//! Each is called as a store of pages would call it: one call a page, state made once. To add one,
//! add a file with its [`Subject`], and a line in [`ALL`].

mod lz4;
mod lzo;
mod zstd;

use anyhow::{Context, Result};
use libloading::Library;

use super::Subject;

/// A name that can be asked for, and how the library behind it is loaded.
type Entry = (&'static str, fn(&'static str) -> Result<Box<dyn Subject>>);

const ALL: [Entry; 4] = [
    ("liblz4", |name| Ok(Box::new(lz4::Lz4::open(name)?))),
    ("liblzo2", |name| Ok(Box::new(lzo::Lzo::open(name)?))),
    ("libzstd-1", |name| Ok(Box::new(zstd::Zstd::open(name, 1)?))),
    ("libzstd-3", |name| Ok(Box::new(zstd::Zstd::open(name, 3)?))),
];

/// The names of the libraries.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Loads the library behind this name; `None` if there is no such name.
pub(super) fn open(name: &str) -> Option<Result<Box<dyn Subject>>> {
    ALL.iter().find(|(known, _)| *known == name).map(|(name, open)| open(name))
}

fn load(file: &str, package: &str) -> Result<Library> {
    // SAFETY: these libraries do nothing when they are loaded.
    unsafe { Library::new(file) }.with_context(|| format!("the Debian package {package} has it"))
}

/// A function of a library that stays loaded.
///
/// # Safety
/// `T` must be the type of the function of that name.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: by the caller's word.
    let symbol = unsafe { library.get::<T>(name) };
    symbol.map(|symbol| *symbol).with_context(|| format!("the library lacks {name}"))
}
