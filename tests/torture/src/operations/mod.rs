//! The table of operations, and what each of them works with.

use std::fmt;

use crate::errno::Errno;
use crate::heap::Blocks;
use crate::region::RegionGuard;
use crate::rng::Rng;
use crate::world::World;

mod beside;
mod brk;
mod clone;
mod copy;
mod counters;
mod descriptors;
mod direct;
mod discard;
mod execute;
mod files;
mod fork;
mod heap;
mod huge;
mod inherit;
mod locks;
mod madvise;
mod mlock;
mod mprotect;
mod mremap;
mod munmap;
mod pipes;
mod proc_mem;
mod process_vm;
mod ptrace;
mod query;
mod read;
mod signals;
mod sockets;
mod threads;
mod uring;
mod write;

pub(crate) use descriptors::close_from;

/// Why an operation could not be done on this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Skip {
    what: &'static str,
    errno: Option<Errno>,
}

impl Skip {
    pub(crate) fn note(what: &'static str) -> Self {
        Self { what, errno: None }
    }

    pub(crate) fn errno(what: &'static str, errno: Errno) -> Self {
        Self { what, errno: Some(errno) }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Some(errno) => write!(f, "{} gave {errno}", self.what),
            None => f.write_str(self.what),
        }
    }
}

/// An operation was done, or it could not be done here. What is wrong does not return.
pub(crate) type Outcome = Result<(), Skip>;

#[derive(Clone, Copy)]
pub(crate) enum Action {
    /// Done by a thread in its turn.
    Turn(fn(&mut Turn<'_>) -> Outcome),
    /// Done by the coordinator between rounds: replaces the program.
    Replace,
}

pub(crate) struct Operation {
    pub name: &'static str,
    pub about: &'static str,
    /// How often it comes, relative to the others. 0: only when asked for by name.
    pub weight: usize,
    pub action: Action,
}

/// An entry for the table.
const fn operation(
    name: &'static str,
    weight: usize,
    about: &'static str,
    run: fn(&mut Turn<'_>) -> Outcome,
) -> Operation {
    Operation { name, about, weight, action: Action::Turn(run) }
}

const GROUPS: [&[Operation]; 31] = [
    write::OPERATIONS,
    read::OPERATIONS,
    counters::OPERATIONS,
    copy::OPERATIONS,
    fork::OPERATIONS,
    descriptors::OPERATIONS,
    clone::OPERATIONS,
    execute::OPERATIONS,
    mremap::OPERATIONS,
    munmap::OPERATIONS,
    discard::OPERATIONS,
    madvise::OPERATIONS,
    inherit::OPERATIONS,
    huge::OPERATIONS,
    mprotect::OPERATIONS,
    mlock::OPERATIONS,
    files::OPERATIONS,
    direct::OPERATIONS,
    pipes::OPERATIONS,
    sockets::OPERATIONS,
    uring::OPERATIONS,
    process_vm::OPERATIONS,
    proc_mem::OPERATIONS,
    ptrace::OPERATIONS,
    locks::OPERATIONS,
    signals::OPERATIONS,
    threads::OPERATIONS,
    heap::OPERATIONS,
    brk::OPERATIONS,
    beside::OPERATIONS,
    query::OPERATIONS,
];

/// More than there are operations and stages.
pub(crate) const INDEX_MAX: usize = 128;

/// What threads do besides operations. Numbered from 0; operations follow.
pub(crate) const SET_UP: usize = 0;
pub(crate) const CHECK_ALL: usize = 1;
const STAGES: [&str; 2] = ["set-up", "check of all memory"];

/// All operations with their numbers.
pub(crate) fn all() -> impl Iterator<Item = (usize, &'static Operation)> {
    GROUPS
        .iter()
        .flat_map(|group| group.iter())
        .enumerate()
        .map(|(at, operation)| (at + STAGES.len(), operation))
}

/// Name of an operation or stage by its number. Does not allocate.
pub(crate) fn name(index: usize) -> &'static str {
    match STAGES.get(index) {
        Some(stage) => stage,
        None => all()
            .find(|&(at, _)| at == index)
            .map_or("unknown operation", |(_, operation)| operation.name),
    }
}

pub(crate) fn index_of(name: &str) -> Option<usize> {
    all().find(|(_, operation)| operation.name == name).map(|(index, _)| index)
}

/// The text of `--list`.
pub(crate) fn list() -> String {
    all()
        .map(|(_, operation)| {
            let request = if operation.weight == 0 { " (on request only)" } else { "" };
            format!("{:26} {}{request}\n", operation.name, operation.about)
        })
        .collect()
}

/// One operation of one thread.
pub(crate) struct Turn<'t> {
    pub world: &'static World,
    pub thread: usize,
    /// Numbers for this turn alone, so that what one turn draws does not change the next.
    pub rng: Rng,
    pub heap: &'t mut Blocks,
}

impl Turn<'_> {
    /// Locks a region: mostly one of the thread's own, else one that all threads share.
    pub(crate) fn region(&mut self) -> RegionGuard<'static> {
        let choices =
            if self.rng.percent(75) { self.world.own(self.thread) } else { self.world.shared() };
        let index = choices.start + self.rng.below(choices.len());
        self.lock(index)
    }

    pub(crate) fn lock(&self, region: usize) -> RegionGuard<'static> {
        self.world.regions[region].lock(self.world)
    }

    /// Chooses up to `most` neighbouring pages of a region, at least one, and notes them in its
    /// history.
    pub(crate) fn range(&mut self, region: &RegionGuard<'_>, most: usize) -> (usize, usize) {
        let pages = region.pages();
        let count = self.rng.between(1, most.min(pages));
        let first = self.rng.below(pages - count + 1);
        region.remember(first, count);
        (first, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        let mut names: Vec<&str> = all().map(|(_, operation)| operation.name).collect();
        for &name in &names {
            assert_eq!(super::name(index_of(name).unwrap()), name);
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(count + STAGES.len() < INDEX_MAX);
    }

    #[test]
    fn list_has_a_line_for_each() {
        let list = list();
        assert_eq!(list.lines().count(), all().count());
        assert!(all().all(|(_, operation)| list.contains(operation.name)));
        assert!(all().all(|(_, operation)| !operation.about.is_empty()));
    }

    #[test]
    fn unknown_numbers_have_a_name() {
        assert_eq!(name(SET_UP), "set-up");
        assert_eq!(name(INDEX_MAX), "unknown operation");
    }
}
