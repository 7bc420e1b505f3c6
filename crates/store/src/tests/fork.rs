//! A child of a fork has the whole store, a copy of its own. And what is best tried in a child: a
//! system that refuses memory.

use std::sync::atomic::{AtomicBool, Ordering};

use ramfold_sys::raw::{self, nr};

use super::{MIB, Page, Random, content, store_of};
use crate::{Store, StoreError};

const WAIT4: usize = 61;
const PRLIMIT64: usize = 302;

/// Forks; the child runs `child` and exits with its result, which is returned here.
///
/// # Safety
/// `child` does not allocate, for another thread may have held the allocator's lock at the fork.
unsafe fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs what the caller vouches for and exits.
    let pid = raw::check(unsafe { raw::syscall2(nr::FORK, 0, 0) }).unwrap();
    if pid == 0 {
        raw::exit_group(i32::from(!child()));
    }
    let mut status = -1i32;
    // SAFETY: waits for the child just made and writes its status here.
    let waited = unsafe { raw::syscall6(WAIT4, pid, (&raw mut status) as usize, 0, 0, 0, 0) };
    assert_eq!(raw::check(waited), Ok(pid));
    status == 0
}

/// Uses the store in every way, without an allocation.
fn use_all(store: &Store, pages: u64) -> bool {
    let page = [3; 4096];
    (0..pages).all(|key| {
        let first = store.load(key, |loaded| matches!(loaded, crate::Loaded::Object { .. }));
        first == Ok(Some(true))
    }) && (0..pages).all(|key| store.store_object(key, 2, &page[..1 + key as usize]).is_ok())
        && store.rekey_range(0, 1 << 30, pages) == Ok(pages)
        && store.refill_reserve().is_ok()
        && store.invalidate_range(0, u64::MAX) == pages
        && store.statistics().pages() == 0
}

#[test]
fn the_child_of_a_paused_store_goes_on_with_it() {
    let store = store_of(64 * MIB, MIB);
    store.refill_reserve().unwrap();
    let pages = 2000;
    for key in 0..pages {
        store.store_object(key, 1, &content(key, 100 + key as usize % 1000)).unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (store, stop) = (&store, &stop);
            scope.spawn(move || {
                // Keys of their own, which the child forgets with the rest; they are no objects it
                // counts.
                let mut random = Random::new(thread);
                while !stop.load(Ordering::Relaxed) {
                    let key = (1 << 40) + thread * 1000 + random.below(500);
                    store.store_object(key, 1, &content(key, 500)).unwrap();
                    store.invalidate(key);
                }
            });
        }
        for _ in 0..30 {
            let paused = store.pause();
            let mut paused = Some(paused);
            // SAFETY: the store does not allocate.
            let good = unsafe {
                in_child(|| {
                    paused.take();
                    store.invalidate_range(1 << 40, 10_000);
                    use_all(&store, pages)
                })
            };
            drop(paused);
            assert!(good);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for key in 0..pages {
        let page = Page::Object { encoding: 1, bytes: content(key, 100 + key as usize % 1000) };
        assert_eq!(store.load(key, Page::keep).unwrap(), Some(page));
    }
    store.audit();
}

#[test]
fn locks_held_at_the_fork_can_be_reset() {
    let store = store_of(4 * MIB, 0);
    for key in 0..100 {
        store.store_object(key, 1, &[1; 200]).unwrap();
    }
    let paused = store.pause();
    // SAFETY: the store does not allocate; the child is its only thread, no other was inside the
    // store, and it does not use the guard again.
    let good = unsafe {
        in_child(|| {
            store.reset_locks_after_fork();
            use_all(&store, 100)
        })
    };
    drop(paused);
    assert!(good);
    assert!(use_all(&store, 100));
}

#[test]
fn copies_after_a_fork_are_spared_and_those_made_are_counted() {
    let store = store_of(4 * MIB, 0);
    let put = |key| store.store_object(key, 1, &[1; 1000]).unwrap();
    (0..100).for_each(put);
    assert_eq!(store.take_copied_bytes(), 0);
    store.begin_sharing(false);
    store.load(3, |_| ()).unwrap();
    // A slot that is freed is not written to, and the object that comes goes elsewhere.
    store.invalidate(3);
    put(3);
    (100..300).for_each(put);
    assert_eq!(store.take_copied_bytes(), 0);
    store.audit();
    // What lies there by now is shared as well.
    store.begin_sharing(false);
    put(300);
    assert_eq!(store.invalidate_range(0, 300), 300);
    assert_eq!(store.take_copied_bytes(), 0);
    store.audit();
    store.end_sharing();
    let copied = store.take_copied_bytes();
    assert!((200_000..=320_000).contains(&copied), "{copied}");
    store.audit();
    assert_eq!(store.statistics().pool_used_bytes, 1008);
}

/// Forks that go on and on must not leave a page behind for each object.
#[test]
fn only_some_copies_are_spared() {
    let store = store_of(16 * MIB, 0);
    for key in 0..2000 {
        store.begin_sharing(false);
        store.store_object(key, 1, &[1; 1000]).unwrap();
    }
    let statistics = store.statistics();
    let unused = statistics.pool_total_bytes - statistics.pool_used_bytes;
    assert!(unused < MIB as u64, "{unused}");
    assert!(store.take_copied_bytes() > 1000 * 4096);
    store.audit();
}

/// The count follows the kernel's: pages of the child that are its own.
#[test]
fn the_copies_are_those_that_the_kernel_makes() {
    let store = store_of(4 * MIB, 0);
    (0..1000).for_each(|key| store.store_object(key, 1, &[1; 1000]).unwrap());
    // SAFETY: the store does not allocate.
    let good = unsafe {
        in_child(|| {
            store.begin_sharing(true);
            let pool = store.memory_ranges().pool;
            let pagemap = ramfold_sys::pagemap::Pagemap::open().unwrap();
            let own =
                || pool.clone().step_by(4096).filter(|&page| pagemap.is_exclusive(page)).count();
            (0..1000).step_by(50).for_each(|key| {
                store.invalidate(key);
                store.store_object(key, 1, &[2; 1000]).unwrap();
            });
            // 20 objects.
            let new = own();
            let spares = new == 5 && store.take_copied_bytes() == 0;
            store.end_sharing();
            let copies = own() - new;
            spares && copies > 0 && store.take_copied_bytes() == copies * 4096
        })
    };
    assert!(good);
}

/// Limits the writable memory of this process, in bytes; keeps the hard limit.
fn limit_data(bytes: u64) {
    const RLIMIT_DATA: usize = 2;
    let limits = [bytes, u64::MAX];
    // SAFETY: the kernel reads the two words of a struct rlimit64.
    let set =
        unsafe { raw::syscall6(PRLIMIT64, 0, RLIMIT_DATA, limits.as_ptr() as usize, 0, 0, 0) };
    assert_eq!(raw::check(set), Ok(0));
}

#[test]
fn a_system_without_memory_is_an_error_and_loses_nothing() {
    let store = store_of(16 * MIB, MIB);
    store.refill_reserve().unwrap();
    let page = [5; 1500];
    // SAFETY: the store does not allocate.
    let good = unsafe {
        in_child(|| {
            // Not 0, which the kernel takes for no limit at all.
            limit_data(4096);
            // The reserve serves, of both kinds; then there is no more.
            let mut count = 0;
            let refusal = loop {
                match store.store_object(count * 64, 1, &page) {
                    Ok(()) => count += 1,
                    Err(refusal) => break refusal,
                }
            };
            let refused = matches!(refusal, StoreError::NoMemory { .. })
                && matches!(store.refill_reserve(), Err(StoreError::NoMemory { .. }))
                && store.statistics().rejects.no_memory == 1
                && (100..700).contains(&count)
                && (0..count).all(|i| store.load(i * 64, |_| ()) == Ok(Some(())))
                && store.load(count * 64, |_| ()) == Ok(None);
            limit_data(u64::MAX);
            refused
                && store.refill_reserve().is_ok()
                && (count..2000).all(|i| store.store_object(i * 64, 1, &page).is_ok())
                && store.invalidate_range(0, u64::MAX) == 2000
        })
    };
    assert!(good);
}
