//! A thread that tortures.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Instant;

use crate::handlers::SignalStack;
use crate::heap::Blocks;
use crate::operations::{self, Action, INDEX_MAX, Operation, Turn};
use crate::rng::{Rng, mix};
use crate::table::Activity;
use crate::world::World;
use crate::{current, fail};

/// The operations of this run, each with its number and its share of the draws.
pub(crate) struct Drawing {
    entries: Vec<(usize, &'static Operation)>,
    weights: Vec<usize>,
    total: usize,
}

impl Drawing {
    /// What `--only` and `--skip` leave. When that is nothing that threads can do, they read and
    /// write.
    pub(crate) fn new(only: &[String], skip: &[String]) -> Self {
        let has = |names: &[String], operation: &Operation| {
            names.iter().any(|name| name == operation.name)
        };
        let is_turn = |operation: &Operation| matches!(operation.action, Action::Turn(_));
        let mut entries: Vec<_> = operations::all()
            .filter(|(_, operation)| {
                is_turn(operation)
                    && !has(skip, operation)
                    && if only.is_empty() { operation.weight > 0 } else { has(only, operation) }
            })
            .collect();
        if entries.is_empty() {
            entries = operations::all()
                .filter(|(_, operation)| ["write-full", "read-random"].contains(&operation.name))
                .collect();
        }
        let weights: Vec<usize> =
            entries.iter().map(|(_, operation)| operation.weight.max(1)).collect();
        let total = weights.iter().sum();
        Self { entries, weights, total }
    }

    fn draw(&self, rng: &mut Rng) -> (usize, &'static Operation) {
        let mut left = rng.below(self.total);
        for (entry, weight) in self.entries.iter().zip(&self.weights) {
            if left < *weight {
                return *entry;
            }
            left -= weight;
        }
        unreachable!("the weights add up to the total")
    }
}

/// What was done, by number of operation.
pub(crate) struct Tally {
    pub done: [AtomicU64; INDEX_MAX],
    pub took_us: [AtomicU64; INDEX_MAX],
    pub skipped: Mutex<BTreeMap<(usize, String), u64>>,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self {
            done: [const { AtomicU64::new(0) }; INDEX_MAX],
            took_us: [const { AtomicU64::new(0) }; INDEX_MAX],
            skipped: Mutex::new(BTreeMap::new()),
        }
    }

    /// Lines that say what could not be done, and with `all` also what was done.
    pub(crate) fn text(&self, all: bool) -> String {
        let mut lines = String::new();
        for (index, operation) in operations::all().filter(|_| all) {
            let done = self.done[index].load(Relaxed);
            if let Some(mean_us) = self.took_us[index].load(Relaxed).checked_div(done) {
                let name = operation.name;
                lines +=
                    &format!("ramfold-torture: {name:26} {done:7} done, {mean_us:9} us each\n");
            }
        }
        if let Ok(skipped) = self.skipped.lock() {
            for ((index, reason), count) in skipped.iter() {
                let name = operations::name(*index);
                lines += &format!("ramfold-torture: note: {name} skipped {count}: {reason}\n");
            }
        }
        lines
    }
}

pub(crate) struct Worker {
    world: &'static World,
    thread: usize,
    turns: u64,
    hash: u64,
    heap: Blocks,
    _signal_stack: SignalStack,
}

impl Worker {
    /// To be called on the thread itself.
    pub(crate) fn start(world: &'static World, thread: usize) -> Self {
        take_slot(world, thread, Activity::Working);
        let signal_stack = join_in(thread);
        for index in world.own(thread) {
            world.regions[index].lock(world).fill();
        }
        let seed = mix(&[world.recipe.seed, thread as u64, 0x6865_6170]);
        let heap = Blocks::new(world.recipe, seed, world.spare_pages() / world.options.threads);
        Self { world, thread, turns: 0, hash: 0, heap, _signal_stack: signal_stack }
    }

    /// Does up to `turns` operations, fewer when `deadline` passes, but one. Returns how
    /// many.
    pub(crate) fn torture(
        &mut self,
        choice: &Drawing,
        tally: &Tally,
        turns: u64,
        deadline: Option<Instant>,
    ) -> u64 {
        let slot = &self.world.table.threads[self.thread];
        for done in 0..turns {
            if done > 0 && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return done;
            }
            self.turns += 1;
            let seed = mix(&[self.world.recipe.seed, self.thread as u64, self.turns]);
            let mut rng = Rng::new(seed);
            let (index, operation) = choice.draw(&mut rng);
            slot.turns.store(self.turns, SeqCst);
            slot.operation.store(index as u32, SeqCst);
            current::beat();
            let Action::Turn(run) = operation.action else {
                fail!("{} is no operation for a thread", operation.name)
            };
            let mut turn =
                Turn { world: self.world, thread: self.thread, rng, heap: &mut self.heap };
            let started = Instant::now();
            match run(&mut turn) {
                Ok(()) => {
                    let took_us = started.elapsed().as_micros() as u64;
                    tally.took_us[index].fetch_add(took_us, Relaxed);
                    tally.done[index].fetch_add(1, Relaxed);
                }
                Err(skip) => {
                    if let Ok(mut skipped) = tally.skipped.lock() {
                        *skipped.entry((index, skip.to_string())).or_default() += 1;
                    }
                }
            }
            self.hash = mix(&[self.hash, index as u64]);
        }
        turns
    }

    /// Compares all memory of this thread.
    pub(crate) fn check(&mut self) {
        let slot = &self.world.table.threads[self.thread];
        slot.operation.store(operations::CHECK_ALL as u32, SeqCst);
        for index in self.world.own(self.thread) {
            let region = self.world.regions[index].lock(self.world);
            region.check_all();
        }
        self.heap.check();
    }

    /// A hash of the operations done and of the bytes they left.
    pub(crate) fn hash(&self) -> u64 {
        self.world.own(self.thread).fold(self.hash, |hash, index| {
            mix(&[hash, self.world.regions[index].lock(self.world).hash()])
        })
    }
}

/// Lets this thread act for worker `thread`, and gives it a signal stack in tortured memory for as
/// long as it runs.
pub(crate) fn join_in(thread: usize) -> SignalStack {
    current::assume(thread);
    match SignalStack::install() {
        Ok(stack) => stack,
        Err(errno) => fail!("cannot install a signal stack: {errno}"),
    }
}

/// Makes this thread known to the watchdog.
pub(crate) fn take_slot(world: &World, index: usize, activity: Activity) {
    current::assume(index);
    let slot = &world.table.threads[index];
    slot.operation.store(operations::SET_UP as u32, SeqCst);
    slot.tid.store(current::tid() as u32, SeqCst);
    slot.activity.store(activity as u32, SeqCst);
    current::beat();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(only: &[&str], skip: &[&str]) -> Vec<&'static str> {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let choice = Drawing::new(&owned(only), &owned(skip));
        choice.entries.iter().map(|(_, operation)| operation.name).collect()
    }

    #[test]
    fn only_and_skip() {
        assert_eq!(names(&["mlock", "read-zipf"], &[]), ["read-zipf", "mlock"]);
        assert_eq!(names(&["mlock", "read-zipf"], &["mlock"]), ["read-zipf"]);
        assert!(!names(&[], &["mlock"]).contains(&"mlock"));
        assert!(!names(&[], &[]).contains(&"mlockall-populate"));
        assert_eq!(names(&["mlockall-populate"], &[]), ["mlockall-populate"]);
        assert_eq!(names(&["exec-self"], &[]), ["write-full", "read-random"]);
    }

    #[test]
    fn draws_follow_the_weights() {
        let choice = Drawing::new(&[], &[]);
        let mut rng = Rng::new(3);
        let mut counts = BTreeMap::new();
        for _ in 0..choice.total * 100 {
            *counts.entry(choice.draw(&mut rng).0).or_insert(0_usize) += 1;
        }
        for (index, operation) in &choice.entries {
            let share = counts[index] as f64 / (operation.weight * 100) as f64;
            assert!((0.5..2.0).contains(&share), "{}: {share}", operation.name);
        }
    }
}
