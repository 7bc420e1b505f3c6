//! Which keys of the store belong to which owner.
//!
//! The store keeps 64 neighbouring keys in a leaf of 512 bytes, whether they are used or not. So a
//! small owner shares a leaf with others: owners of up to 4 pages have 4 keys, of up to 16 pages
//! 16. All others have 2^40 keys of their own.
//!
//! ```text
//!  63 62 61                  40 39                       0
//! +-----+-----------------------------------------+-----+
//! | 00  |                   number                | 0-3 |     4 keys
//! +-----+----------------------------------------++-----+
//! | 01  |                   number               | 0-15 |    16 keys
//! +-----+----------------------+-----------------+------+
//! | 1 |        number          |          page          |    2^40 keys
//! +---+------------------------+------------------------+
//! ```

use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use ramfold_store::Key;

use crate::locked;

/// An owner's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keys {
    first: Key,
    class: Class,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Four,
    Sixteen,
    Large,
}

impl Class {
    const ALL: [Class; 3] = [Class::Four, Class::Sixteen, Class::Large];

    fn shift(self) -> u32 {
        match self {
            Class::Four => 2,
            Class::Sixteen => 4,
            Class::Large => 40,
        }
    }

    fn pages(self) -> u64 {
        1 << self.shift()
    }

    fn origin(self) -> Key {
        match self {
            Class::Four => 0,
            Class::Sixteen => 1 << 62,
            Class::Large => 1 << 63,
        }
    }

    /// Owners that can have such keys.
    fn owners_max(self) -> u64 {
        match self {
            Class::Four | Class::Sixteen => 1 << (62 - self.shift()),
            Class::Large => 1 << (63 - self.shift()),
        }
    }
}

impl Keys {
    /// The key of a page, if the owner has one for it.
    pub(crate) fn key(&self, page: u64) -> Option<Key> {
        (page < self.class.pages()).then(|| self.first + page)
    }

    /// The keys of these pages, as far as the owner has some.
    pub(crate) fn range(&self, pages: Range<u64>) -> Range<Key> {
        let end = self.class.pages();
        self.first + pages.start.min(end)..self.first + pages.end.min(end)
    }

    /// Pages that the owner has keys for.
    pub(crate) fn pages(&self) -> u64 {
        self.class.pages()
    }
}

/// Gives keys to owners.
#[derive(Default)]
pub(crate) struct KeySpace {
    classes: [Mutex<Numbers>; 3],
}

#[derive(Default)]
struct Numbers {
    next: u64,
    free: Vec<u64>,
}

impl KeySpace {
    /// Keys for an owner of so many pages; `None` when there are none left, or for more than 2^40
    /// pages.
    pub(crate) fn take(&self, pages: u64) -> Option<Keys> {
        let class = Class::ALL.into_iter().find(|class| class.pages() >= pages)?;
        let mut numbers = self.numbers(class);
        let number = match numbers.free.pop() {
            Some(number) => number,
            None if numbers.next < class.owners_max() => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return None,
        };
        Some(Keys { first: class.origin() | number << class.shift(), class })
    }

    /// Takes keys back, under which nothing is stored any more and nobody looks.
    pub(crate) fn give_back(&self, keys: Keys) {
        let number = (keys.first - keys.class.origin()) >> keys.class.shift();
        self.numbers(keys.class).free.push(number);
    }

    fn numbers(&self, class: Class) -> MutexGuard<'_, Numbers> {
        locked(&self.classes[class as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_two_owners_share_a_key() {
        let space = KeySpace::default();
        let mut taken: BTreeMap<Key, Keys> = BTreeMap::new();
        for round in 0..3000u64 {
            let pages = [0, 1, 4, 5, 16, 17, 100, 1 << 30, 1 << 40][round as usize % 9];
            let keys = space.take(pages).unwrap();
            assert!(keys.pages() >= pages);
            let range = keys.range(0..u64::MAX);
            assert_eq!(range.end - range.start, keys.pages());
            assert_eq!(range.start % keys.pages().min(64), 0);
            let before = taken.range(..range.end).next_back();
            assert!(before.is_none_or(|(&first, keys)| first + keys.pages() <= range.start));
            taken.insert(range.start, keys);
            if round % 3 == 0 {
                let (_, keys) = taken.pop_first().unwrap();
                space.give_back(keys);
            }
        }
        assert_eq!(space.take((1 << 40) + 1), None);
    }

    #[test]
    fn pages_beyond_the_keys_have_none() {
        let keys = KeySpace::default().take(3).unwrap();
        assert_eq!(keys.key(3), Some(keys.key(0).unwrap() + 3));
        assert_eq!(keys.key(4), None);
        assert_eq!(keys.range(2..9), keys.key(2).unwrap()..keys.key(3).unwrap() + 1);
        assert_eq!(keys.range(7..9).count(), 0);
    }
}
