//! Mappings beside the tortured memory: shared memory, a shared file, a private copy of a file.
//!
//! A pager of anonymous private memory must not touch them; that it does not is checked here.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::content::{Content, PageBytes, Recipe};
use crate::errno::Errno;
use crate::memory::{Mapping, PAGE};
use crate::options::Options;
use crate::rng::Rng;
use crate::{current, fail, files};

/// Pages of each mapping: 256 KiB, more than a pager would pass over for being small.
const PAGES: usize = 64;
/// Where the contents' region numbers start; no region has them.
const FIRST_REGION: usize = 4000;

struct Held {
    name: &'static str,
    mapping: Mapping,
    contents: Vec<Content>,
}

pub(crate) struct Beside {
    recipe: Recipe,
    held: Vec<Held>,
    /// The file behind the shared mapping, kept open only when descriptors are not closed.
    shared_file: Option<File>,
    version: u64,
}

impl Beside {
    pub(crate) fn create(recipe: Recipe, options: &Options) -> Result<Self, std::io::Error> {
        let bytes = PAGES * PAGE;
        let shared_file = files::temporary(&options.directory, 0)?;
        shared_file.set_len(bytes as u64)?;
        let private_file = files::temporary(&options.directory, 0)?;
        let contents = |index: usize| -> Vec<Content> {
            (0..PAGES).map(|page| Content::full(FIRST_REGION + index, page, 0)).collect()
        };
        let mut page = PageBytes::zeroed();
        for (at, content) in contents(2).iter().enumerate() {
            content.fill(recipe, &mut page);
            private_file.write_all_at(&page.0, (at * PAGE) as u64)?;
        }
        let held = vec![
            Held {
                name: "shared anonymous memory",
                mapping: Mapping::shared(bytes)?,
                contents: contents(0),
            },
            Held {
                name: "a shared mapping of a file",
                mapping: Mapping::file(shared_file.as_raw_fd(), bytes, libc::MAP_SHARED)?,
                contents: contents(1),
            },
            Held {
                name: "a private mapping of a file",
                mapping: Mapping::file(private_file.as_raw_fd(), bytes, libc::MAP_PRIVATE)?,
                contents: contents(2),
            },
        ];
        for held in &held[..2] {
            for (at, content) in held.contents.iter().enumerate() {
                content.fill(recipe, &mut page);
                held.mapping.span().page(at).store(&page.0);
            }
        }
        let shared_file = (!options.close_descriptors).then_some(shared_file);
        Ok(Self { recipe, held, shared_file, version: 1 })
    }

    /// Compares every byte.
    pub(crate) fn check(&self) {
        let mut expected = PageBytes::zeroed();
        let mut found = PageBytes::zeroed();
        for held in &self.held {
            for (page, content) in held.contents.iter().enumerate() {
                content.fill(self.recipe, &mut expected);
                held.mapping.span().page(page).load(&mut found.0);
                current::beat();
                let wrong = (0..PAGE).find(|&at| expected.0[at] != found.0[at]);
                if let Some(at) = wrong {
                    fail!(
                        "{}, page {page} byte {at} at {:#x}: expected {:#04x} ({content}), found \
                         {:#04x}",
                        held.name,
                        held.mapping.address() + page * PAGE + at,
                        expected.0[at],
                        found.0[at]
                    );
                }
            }
        }
    }

    /// Writes pages of each mapping, and of the shared file by its descriptor.
    pub(crate) fn write(&mut self, rng: &mut Rng) -> Result<(), Errno> {
        let mut bytes = PageBytes::zeroed();
        for index in 0..self.held.len() {
            for _ in 0..4 {
                let page = rng.below(PAGES);
                self.version += 1;
                let content = Content::full(FIRST_REGION + index, page, self.version);
                content.fill(self.recipe, &mut bytes);
                let held = &mut self.held[index];
                match &self.shared_file {
                    Some(file) if index == 1 && rng.percent(50) => {
                        file.write_all_at(&bytes.0, (page * PAGE) as u64)?;
                    }
                    _ => held.mapping.span().page(page).store(&bytes.0),
                }
                held.contents[page] = content;
            }
        }
        Ok(())
    }

    /// A page of the shared anonymous memory, and what is to be written there by a child.
    pub(crate) fn commission(&mut self, rng: &mut Rng) -> (usize, Content) {
        let page = rng.below(PAGES);
        self.version += 1;
        let content = Content::full(FIRST_REGION, page, self.version);
        self.held[0].contents[page] = content;
        (page, content)
    }

    /// Does what `commission` asked for.
    pub(crate) fn deliver(&self, page: usize, content: Content) {
        let mut bytes = PageBytes::zeroed();
        content.fill(self.recipe, &mut bytes);
        self.held[0].mapping.span().page(page).store(&bytes.0);
    }

    /// Changes a byte behind everybody's back.
    pub(crate) fn corrupt(&self) {
        let byte = self.held[0].mapping.span().part(PAGE + 5, 1);
        let old = byte.touch();
        byte.store(&[old ^ 0x10]);
    }
}
