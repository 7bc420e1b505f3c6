//! What `ramfold-bench codec` measures: a [`Subject`] is anything that turns a page into an object
//! and back.
//!
//! Subjects are the codecs of ramfold ([`ours`]), the C libraries that they are compared with
//! ([`libraries`]), and memcpy as the limit.

#[allow(unsafe_code, reason = "C functions are called")]
mod libraries;
pub(in crate::experiments) mod ours;

use anyhow::{Context, Result, bail};
use ramfold_codec::{Backend, Choice, PAGE_SIZE, Page};

/// Longest object that is kept; the store takes a page that needs more as it is. The pager's limit.
pub(in crate::experiments) const OBJECT_BYTES_MAX: usize = PAGE_SIZE * 3 / 4;

/// Room in which every subject may work: some libraries want more than the object will take.
pub(in crate::experiments) type Room = [u8; ROOM_BYTES];
pub(in crate::experiments) const ROOM_BYTES: usize = 2 * PAGE_SIZE;

/// Something that compresses pages, one at a time.
pub(in crate::experiments) trait Subject {
    fn name(&self) -> &str;

    /// Writes an object to the front of `out`; `None` when it would be longer than
    /// [`OBJECT_BYTES_MAX`].
    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written>;

    /// Makes the page of an object again.
    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()>;
}

/// An object that was written.
pub(in crate::experiments) struct Written {
    pub(in crate::experiments) encoding: u8,
    pub(in crate::experiments) len: usize,
}

impl Written {
    /// By a subject that has but one encoding; `None` where that is too long.
    fn plain(len: usize) -> Option<Written> {
        (len <= OBJECT_BYTES_MAX).then_some(Written { encoding: 0, len })
    }
}

/// An object, and the encoding that its page's entry would hold.
#[derive(Clone, Copy)]
pub(in crate::experiments) struct Object<'a> {
    pub(in crate::experiments) encoding: u8,
    pub(in crate::experiments) bytes: &'a [u8],
}

/// The names that can be asked for, ours first.
pub(in crate::experiments) fn names() -> Vec<&'static str> {
    let ours = Choice::names().chain([ours::DENSITY]);
    ours.chain(libraries::names()).chain([MEMCPY]).collect()
}

/// The instructions of that name, or the best there are.
///
/// # Errors
/// For what this machine does not have.
pub(in crate::experiments) fn backend(name: Option<&str>) -> Result<Backend> {
    let Some(name) = name else { return Ok(Backend::best()) };
    let found = Backend::available().find(|backend| backend.name().eq_ignore_ascii_case(name));
    found.with_context(|| {
        let there: Vec<_> = Backend::available().map(Backend::name).collect();
        format!("this machine has no instructions {name:?}; it has {}", there.join(", "))
    })
}

/// What was asked for.
#[derive(Default)]
pub(in crate::experiments) struct Selection {
    pub(in crate::experiments) subjects: Vec<Box<dyn Subject>>,
    /// What does not work here, and why.
    pub(in crate::experiments) missing: Vec<(&'static str, String)>,
}

/// The subjects of these names, or all; ours with these instructions.
///
/// # Errors
/// For a name that is none of [`names`].
pub(in crate::experiments) fn select(wanted: &[String], backend: Backend) -> Result<Selection> {
    let known = names();
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no codec {unknown:?}; there are {}", known.join(", "));
    }
    let mut selection = Selection::default();
    for name in known {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        if name == MEMCPY {
            selection.subjects.push(Box::new(Memcpy));
        } else if let Some(subject) = ours::Ours::named(name, backend)? {
            selection.subjects.push(Box::new(subject));
        } else {
            match libraries::open(name) {
                Some(Ok(subject)) => selection.subjects.push(subject),
                Some(Err(error)) => selection.missing.push((name, format!("{error:#}"))),
                None => bail!("there is no library {name:?}"),
            }
        }
    }
    Ok(selection)
}

const MEMCPY: &str = "memcpy";

/// The limit: a page copied there and back.
struct Memcpy;

impl Subject for Memcpy {
    fn name(&self) -> &str {
        MEMCPY
    }

    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written> {
        out[..PAGE_SIZE].copy_from_slice(page);
        Some(Written { encoding: 0, len: PAGE_SIZE })
    }

    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()> {
        page.copy_from_slice(object.bytes);
        Ok(())
    }
}
