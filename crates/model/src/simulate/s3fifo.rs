//! S3-FIFO: three queues (Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for cache
//! eviction", SOSP 2023).
//!
//! A page begins in the small queue, a tenth of the memory. At its front it moves to the main queue
//! if it was used more than once meanwhile, else it leaves, and its number is remembered in the
//! ghost queue. A page that comes back while it is remembered begins in the main queue. There a
//! page that was used goes round again, up to three times.

use std::collections::{HashMap, VecDeque};

use super::{Access, Policy};
use crate::PageNumber;

/// The small queue's part of the memory.
const SMALL_PART: usize = 10;
/// Uses that count at most.
const USES_MAX: u8 = 3;
/// Uses in the small queue from which on a page moves to the main queue.
const USES_TO_STAY: u8 = 2;

#[derive(Clone, Copy, Debug)]
enum State {
    Small {
        uses: u8,
    },
    Main {
        uses: u8,
    },
    /// It has left, and is the `number`th that did.
    Ghost {
        number: u64,
    },
}

/// A memory of a number of pages.
#[derive(Debug)]
pub struct S3Fifo {
    pages_max: usize,
    states: HashMap<PageNumber, State>,
    small: VecDeque<PageNumber>,
    main: VecDeque<PageNumber>,
    /// Pages that have left the small queue so far.
    left: u64,
}

impl S3Fifo {
    /// A memory of `pages_max` pages, at least one.
    pub fn new(pages_max: usize) -> S3Fifo {
        S3Fifo {
            pages_max: pages_max.max(1),
            states: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            left: 0,
        }
    }

    fn make_room(&mut self) {
        while self.small.len() + self.main.len() >= self.pages_max {
            if self.small.len() > self.pages_max / SMALL_PART || self.main.is_empty() {
                self.leave_small();
            } else {
                self.leave_main();
            }
        }
    }

    fn leave_small(&mut self) {
        let Some(page) = self.small.pop_front() else { return };
        if let Some(State::Small { uses: USES_TO_STAY.. }) = self.states.get(&page) {
            self.states.insert(page, State::Main { uses: 0 });
            self.main.push_back(page);
            return;
        }
        self.left += 1;
        self.states.insert(page, State::Ghost { number: self.left });
    }

    fn leave_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            if let Some(State::Main { uses: uses @ 1.. }) = self.states.get_mut(&page) {
                *uses -= 1;
                self.main.push_back(page);
                continue;
            }
            // It is remembered as gone, and begins anew.
            self.states.insert(page, State::Ghost { number: 0 });
            return;
        }
    }
}

impl Policy for S3Fifo {
    fn access(&mut self, page: PageNumber) -> Access {
        let state = match self.states.get_mut(&page) {
            Some(State::Small { uses } | State::Main { uses }) => {
                *uses = (*uses + 1).min(USES_MAX);
                return Access::Hit;
            }
            Some(State::Ghost { number }) => Some(*number),
            None => None,
        };
        self.make_room();
        let main_pages = (self.pages_max - self.pages_max / SMALL_PART) as u64;
        if state.is_some_and(|number| number > 0 && self.left - number < main_pages) {
            self.states.insert(page, State::Main { uses: 0 });
            self.main.push_back(page);
        } else {
            self.states.insert(page, State::Small { uses: 0 });
            self.small.push_back(page);
        }
        if state.is_some() { Access::Fault { ahead: 0 } } else { Access::First }
    }
}
