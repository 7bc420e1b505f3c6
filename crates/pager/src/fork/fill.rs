//! A child that was made without libc has no agent: it is given every evicted page, and is on its
//! own when its descriptor closes.
//!
//! It runs meanwhile. What it does to its address space, and children of its own, come as messages
//! on its descriptor, which must be read before it can be given more.

use core::sync::atomic::Ordering;

use ramfold_codec::{Decompressor, Page};
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};

use crate::agent::{Agent, Context};
use crate::handler::content;
use crate::kernel::{Child, Event, ForkedChild, maps};
use crate::page;

/// Children, grandchildren and so on that can be waiting for their pages at a time.
const FAMILY_MAX: usize = 32;
/// Changes of its address space that one of them can make before it has its pages.
const CHANGES_MAX: usize = 64;

/// Gives `child`, and the children it makes meanwhile, every evicted page.
pub(crate) fn fill_child(
    context: &mut Context<'_>,
    child: Child,
    decompressor: &mut Decompressor<'_>,
    buffer: &mut Page,
) {
    let Context { agent, active, .. } = *context;
    let mut family = Family { agent, members: [const { None }; FAMILY_MAX], count: 0 };
    family.add(child, Changes::default());
    context
        .core
        .staging
        .for_each_live(|slot, page| family.give(page, active.slot_address(slot) as *const u8));
    active.store.for_each(|page, _| {
        // A ghost has nothing to load.
        if content::load_now(agent, active, page, decompressor, buffer) {
            family.give(page, buffer.as_ptr());
        }
    });
}

/// The processes that are being filled.
struct Family<'a> {
    agent: &'a Agent,
    members: [Option<Member>; FAMILY_MAX],
    count: usize,
}

struct Member {
    uffd: Child,
    changes: Changes,
}

impl Family<'_> {
    fn add(&mut self, uffd: Child, changes: Changes) {
        let agent = self.agent;
        agent.process().counters.forks_filled.fetch_add(1, Ordering::Relaxed);
        // What the program wants zeroed in a child (MADV_WIPEONFORK) is not given to it. The child
        // has the parent's mappings.
        let mut text = [0; 8192];
        let looked = maps::for_each_with_usage(&mut text, |mapping, _, flags| {
            if flags.has(*b"wf") {
                // Not registered in the child: nothing can be given to it there.
                let _ = ForkedChild::unregister(&uffd, mapping.range.clone());
            }
        });
        if let Err(errno) = looked {
            agent.fail(format_args!("cannot read /proc/self/smaps for a forked child: {errno}"));
        }
        let Some(place) = self.members.get_mut(self.count) else {
            agent.fail(format_args!("more than {FAMILY_MAX} forks that bypass libc at a time"));
        };
        *place = Some(Member { uffd, changes });
        self.count += 1;
    }

    /// Gives a page to all. Those that come while this goes on are further back in the list; what
    /// their parent was given before, they have.
    fn give(&mut self, page: u64, content: *const u8) {
        let mut index = 0;
        while index < self.count {
            self.give_to(index, page::address_of(page), content);
            index += 1;
        }
    }

    fn give_to(&mut self, index: usize, address: usize, content: *const u8) {
        let agent = self.agent;
        loop {
            let Some(member) = &mut self.members[index] else { return };
            let Some(place) = member.changes.place_of(address) else { return };
            // SAFETY: the content of this page when the child was made: the lock has been held
            // since its message was read, and the child cannot have touched the page.
            match unsafe { ForkedChild::copy(&member.uffd, place, content, PAGE_SIZE) } {
                Ok(()) => {
                    let filled = &agent.process().counters.pages_filled_for_child;
                    filled.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                // Present: nothing is missing. Not mapped, or gone: nothing to give it to.
                Err(Partial { errno: Errno::EXIST | Errno::NOENT | Errno::SRCH, .. }) => return,
                Err(Partial { errno: Errno::AGAIN | Errno::NOMEM, .. }) => {
                    match ForkedChild::read_event(&member.uffd) {
                        Ok(Some(Event::Fork(grandchild))) => {
                            let changes = member.changes;
                            self.add(grandchild, changes);
                        }
                        // A fault is answered by the page's being given, or by the descriptor's
                        // closing.
                        Ok(Some(Event::Pagefault { .. })) => {}
                        Ok(Some(change)) => {
                            if !member.changes.note(&change) {
                                agent.fail(format_args!(
                                    "a child made without libc changed its mappings more than {CHANGES_MAX} times at once"
                                ));
                            }
                        }
                        Ok(None) | Err(_) => member.uffd.yield_now(),
                    }
                }
                Err(partial) => agent.fail(format_args!(
                    "cannot give page {address:#x} to a forked child: {}",
                    partial.errno
                )),
            }
        }
    }
}

/// What a process has done to its address space since it was made.
#[derive(Clone, Copy)]
struct Changes {
    count: usize,
    list: [Change; CHANGES_MAX],
}

/// A range that is gone, or has moved.
#[derive(Clone, Copy, Default)]
struct Change {
    start: usize,
    len: usize,
    moved_to: Option<usize>,
}

impl Default for Changes {
    fn default() -> Self {
        Changes { count: 0, list: [Change::default(); CHANGES_MAX] }
    }
}

impl Changes {
    /// `false` when there is no room for it.
    fn note(&mut self, event: &Event) -> bool {
        let change = match event {
            Event::Remove(range) | Event::Unmap(range) => {
                Change { start: range.start, len: range.len(), moved_to: None }
            }
            Event::Remap { from, to, len } => {
                Change { start: *from, len: *len, moved_to: Some(*to) }
            }
            Event::Fork(_) | Event::Pagefault { .. } => return true,
        };
        let Some(place) = self.list.get_mut(self.count) else { return false };
        *place = change;
        self.count += 1;
        true
    }

    /// Where the page that was at this address is to be now; `None` if it is not wanted any more.
    fn place_of(&self, address: usize) -> Option<usize> {
        let mut place = address;
        for change in &self.list[..self.count] {
            let within = |start: usize| place.wrapping_sub(start) < change.len;
            if within(change.start) {
                place = change.moved_to? + (place - change.start);
            } else if change.moved_to.is_some_and(within) {
                return None;
            }
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_what_the_child_did() {
        let mut changes = Changes::default();
        assert_eq!(changes.place_of(0x5000), Some(0x5000));
        assert!(changes.note(&Event::Remap { from: 0x4000, to: 0x9000, len: 0x2000 }));
        assert!(changes.note(&Event::Remove(0x9000..0xa000)));
        assert!(changes.note(&Event::Unmap(0x1000..0x2000)));
        assert_eq!(changes.place_of(0x4000), None);
        assert_eq!(changes.place_of(0x5000), Some(0xa000));
        // What was there before the other moved over it.
        assert_eq!(changes.place_of(0xa000), None);
        assert_eq!(changes.place_of(0x1000), None);
        assert_eq!(changes.place_of(0x2000), Some(0x2000));
        while changes.count < CHANGES_MAX {
            assert!(changes.note(&Event::Remove(0..1)));
        }
        assert!(!changes.note(&Event::Remove(0..1)));
    }
}
