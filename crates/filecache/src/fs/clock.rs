//! In which order the kernel is to forget inodes (CLOCK).
//!
//! A hand goes round over all of them. What was used since it came by last is passed over once;
//! what is new has its position just behind the hand, so that it is reached last.

/// What has a position in the order, and remembers it.
pub(super) trait Positioned {
    fn position(&self) -> usize;
    fn set_position(&self, position: usize);
    /// Whether it was used since this was asked last.
    fn take_used(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct Clock<T> {
    items: Vec<T>,
    hand: usize,
}

impl<T> Default for Clock<T> {
    fn default() -> Self {
        Clock { items: Vec::new(), hand: 0 }
    }
}

impl<T: Positioned> Clock<T> {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn capacity(&self) -> usize {
        self.items.capacity()
    }

    pub(super) fn insert(&mut self, item: T) {
        // What was at the hand comes last of those that the hand has before it.
        self.items.push(item);
        let last = self.items.len() - 1;
        self.items.swap(self.hand, last);
        self.note_position(last);
        self.note_position(self.hand);
        self.hand += 1;
    }

    /// Removes what has this position.
    pub(super) fn remove(&mut self, mut position: usize) {
        if position < self.hand {
            // Behind the hand only what was there takes the position.
            self.hand -= 1;
            self.items.swap(position, self.hand);
            self.note_position(position);
            position = self.hand;
        }
        self.items.swap_remove(position);
        self.note_position(position);
        if self.items.len() < self.items.capacity() / 4 {
            self.items.shrink_to(self.items.len() * 2);
        }
    }

    /// Goes over up to `count` items, and calls `take` with those that were not used.
    pub(super) fn advance(&mut self, count: usize, mut take: impl FnMut(&T)) {
        for _ in 0..count.min(self.items.len()) {
            if self.hand >= self.items.len() {
                self.hand = 0;
            }
            let item = &self.items[self.hand];
            if !item.take_used() {
                take(item);
            }
            self.hand += 1;
        }
    }

    fn note_position(&self, position: usize) {
        if let Some(item) = self.items.get(position) {
            item.set_position(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[derive(Default)]
    struct Item {
        name: usize,
        position: Cell<usize>,
        used: Cell<bool>,
    }

    impl Positioned for Rc<Item> {
        fn position(&self) -> usize {
            self.position.get()
        }

        fn set_position(&self, position: usize) {
            self.position.set(position);
        }

        fn take_used(&self) -> bool {
            self.used.take()
        }
    }

    fn item(name: usize) -> Rc<Item> {
        Rc::new(Item { name, ..Item::default() })
    }

    fn advanced(clock: &mut Clock<Rc<Item>>, count: usize) -> Vec<usize> {
        let mut taken = Vec::new();
        clock.advance(count, |item| taken.push(item.name));
        taken
    }

    #[test]
    fn what_is_new_comes_last_and_what_was_used_one_turn_later() {
        let mut clock = Clock::default();
        let items: Vec<_> = (0..6).map(item).collect();
        items.iter().for_each(|item| clock.insert(Rc::clone(item)));
        assert_eq!(advanced(&mut clock, 2), [0, 1]);
        clock.insert(item(6));
        items[3].used.set(true);
        let mut rest = advanced(&mut clock, 5);
        rest.sort_unstable();
        assert_eq!(rest, [0, 2, 4, 5]);
        assert_eq!(advanced(&mut clock, 7).len(), 7);
    }

    #[test]
    fn each_knows_its_position_whatever_is_removed() {
        let mut clock = Clock::default();
        let mut items = Vec::new();
        for step in 0_usize..2000 {
            if step < 1000 || step % 3 == 0 {
                let new = item(step);
                clock.insert(Rc::clone(&new));
                items.push(new);
            }
            if step % 5 == 1 || step >= 1000 {
                let gone = items.swap_remove(step * 7919 % items.len());
                clock.remove(gone.position());
            }
            if step % 11 == 0 {
                clock.advance(step % 17, |_| {});
            }
            assert_eq!(clock.len(), items.len());
            assert!(items.iter().all(|item| Rc::ptr_eq(item, &clock.items[item.position()])));
            if items.is_empty() {
                break;
            }
        }
        let all: std::collections::BTreeSet<_> = advanced(&mut clock, 5000).into_iter().collect();
        assert_eq!(all.len(), items.len());
    }
}
