//! Drops the least recently used page.

use std::collections::{BTreeMap, HashMap};

use super::{Access, Policy};
use crate::PageNumber;

/// A memory of a number of pages.
#[derive(Debug)]
pub struct Lru {
    pages_max: usize,
    /// When each page was used last, `None` where it has left.
    used_at: HashMap<PageNumber, Option<u64>>,
    /// The pages in memory, in that order.
    order: BTreeMap<u64, PageNumber>,
    now: u64,
}

impl Lru {
    /// A memory of `pages_max` pages, at least one.
    pub fn new(pages_max: usize) -> Lru {
        let pages_max = pages_max.max(1);
        Lru { pages_max, used_at: HashMap::new(), order: BTreeMap::new(), now: 0 }
    }
}

impl Policy for Lru {
    fn access(&mut self, page: PageNumber) -> Access {
        self.now += 1;
        let before = self.used_at.insert(page, Some(self.now));
        self.order.insert(self.now, page);
        if let Some(Some(before)) = before {
            self.order.remove(&before);
            return Access::Hit;
        }
        if self.order.len() > self.pages_max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used_at.insert(oldest, None);
        }
        if before.is_some() { Access::Fault { ahead: 0 } } else { Access::First }
    }
}
