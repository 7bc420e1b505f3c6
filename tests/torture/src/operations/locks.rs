//! Futexes and pthread's locks that lie in tortured memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use super::{Operation, Outcome, Turn, operation};
use crate::errno::Errno;
use crate::handlers::Quiet;
use crate::memory::{PAGE, Span};
use crate::region::RegionGuard;
use crate::{current, fail, worker};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("futex", 4, "threads wait for each other on words in pages", futex),
    operation("pthread-mutex", 4, "threads lock mutexes in pages to count in pages", mutex),
    operation("pthread-condition", 3, "threads wait on conditions in pages", condition),
];

/// Lends pages to `work` as they are, zeroed, and writes them anew afterwards.
fn borrow(region: &mut RegionGuard<'_>, first: usize, pages: usize, work: impl FnOnce(Span<'_>)) {
    let contents = (first..first + pages).map(|page| region.next(page)).collect();
    region.change(first, pages, |span| {
        span.store(&vec![0; pages * PAGE]);
        work(span);
        (contents, ())
    });
    // The contents just recorded are not there yet; nobody looks while the lock is held, but
    // children do, so the region is one being reshaped.
    for page in first..first + pages {
        region.write_full(page);
    }
    region.check(first, pages);
}

fn word(span: Span<'_>) -> &AtomicU32 {
    // SAFETY: aligned, zeroed, held for the span's life, and used as this word only.
    unsafe { AtomicU32::from_ptr(span.pointer().cast()) }
}

fn futex_call(word: &AtomicU32, operation: i32, value: u32) -> Result<i64, Errno> {
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: the word outlives the call; no timeout is given.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, none, 0, 0) };
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Waits until the word has the value `wanted`.
fn await_value(word: &AtomicU32, wanted: u32, flag: i32) {
    loop {
        let value = word.load(SeqCst);
        if value == wanted {
            return;
        }
        match futex_call(word, libc::FUTEX_WAIT | flag, value) {
            Ok(_) | Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            Err(errno) => fail!("a futex wait at {:p} gave {errno}", word.as_ptr()),
        }
    }
}

fn set_value(word: &AtomicU32, value: u32, flag: i32) {
    word.store(value, SeqCst);
    current::beat();
    if let Err(errno) = futex_call(word, libc::FUTEX_WAKE | flag, i32::MAX as u32) {
        fail!("a futex wake at {:p} gave {errno}", word.as_ptr());
    }
}

/// Two threads take turns, round after round on another page.
fn futex(turn: &mut Turn<'_>) -> Outcome {
    let thread = turn.thread;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 32);
    let rounds = turn.rng.between(1, 4) * pages;
    // The flag tells the kernel that no other process waits for the word; it is optional.
    let flag = *turn.rng.pick(&[0, libc::FUTEX_PRIVATE_FLAG]);
    let offset = turn.rng.below(PAGE / 4) * 4;
    region.reshape(|region| {
        borrow(region, first, pages, |span| {
            let place = |round: usize| word(span.page(round % pages).part(offset, 4));
            // Each visit of a page adds two: odd values are set by one thread, even ones by the
            // other.
            let value = |round: usize| (round / pages * 2) as u32;
            let _quiet = Quiet::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let _stack = worker::join_in(thread);
                    for round in 0..rounds {
                        await_value(place(round), value(round) + 1, flag);
                        set_value(place(round), value(round) + 2, flag);
                    }
                });
                for round in 0..rounds {
                    await_value(place(round), value(round), flag);
                    set_value(place(round), value(round) + 1, flag);
                    await_value(place(round), value(round) + 2, flag);
                }
            });
        });
    });
    Ok(())
}

fn expect(result: i32, what: &str) {
    if result != 0 {
        fail!("{what} gave {}", Errno(result));
    }
}

/// Makes a mutex on zeroed memory, plain or with priority inheritance, which the kernel handles.
fn make_mutex(place: Span<'_>, inherit: bool) -> *mut libc::pthread_mutex_t {
    let mutex: *mut libc::pthread_mutex_t = place.pointer().cast();
    assert!(place.bytes() >= size_of::<libc::pthread_mutex_t>());
    // SAFETY: all bit patterns are valid for the attribute, which init fills in; the place is
    // aligned, large enough, and held.
    unsafe {
        let mut attribute: libc::pthread_mutexattr_t = std::mem::zeroed();
        expect(libc::pthread_mutexattr_init(&mut attribute), "pthread_mutexattr_init");
        if inherit {
            // Where it is not supported, the mutex stays a plain one.
            libc::pthread_mutexattr_setprotocol(&mut attribute, libc::PTHREAD_PRIO_INHERIT);
        }
        expect(libc::pthread_mutex_init(mutex, &attribute), "pthread_mutex_init");
        libc::pthread_mutexattr_destroy(&mut attribute);
    }
    mutex
}

fn plain(place: Span<'_>) -> &AtomicU64 {
    // SAFETY: aligned, zeroed, held for the span's life, and used as this word only.
    unsafe { AtomicU64::from_ptr(place.pointer().cast()) }
}

const THREADS: usize = 3;

fn mutex(turn: &mut Turn<'_>) -> Outcome {
    let thread = turn.thread;
    let mut region = turn.region();
    let count = region.pages().min(turn.rng.between(2, 40));
    let first = turn.rng.below(region.pages() - count + 1);
    region.remember(first, count);
    let inherit = turn.rng.percent(30);
    let offset = turn.rng.below(40) * 64;
    let steps = turn.rng.between(50, 500);
    region.reshape(|region| {
        borrow(region, first, count, |span| {
            // A mutex on each page guards a sum on the next.
            let mutexes: Vec<usize> = (0..count)
                .map(|page| {
                    make_mutex(span.page(page).part(offset, 64), inherit).expose_provenance()
                })
                .collect();
            let sum = |page: usize| plain(span.page((page + 1) % count).part(PAGE - 8, 8));
            let _quiet = Quiet::new();
            std::thread::scope(|scope| {
                for index in 0..THREADS {
                    let mutexes = &mutexes;
                    scope.spawn(move || {
                        let _stack = worker::join_in(thread);
                        for step in 0..steps {
                            let page = (step * 7 + index) % count;
                            let mutex = std::ptr::with_exposed_provenance_mut(mutexes[page]);
                            // SAFETY: the mutex was made above and is destroyed after the scope.
                            expect(
                                unsafe { libc::pthread_mutex_lock(mutex) },
                                "pthread_mutex_lock",
                            );
                            // Two steps on purpose: only the mutex makes them one.
                            let value = sum(page).load(SeqCst);
                            std::hint::spin_loop();
                            sum(page).store(value + 1, SeqCst);
                            // SAFETY: as above; this thread has it locked.
                            let result = unsafe { libc::pthread_mutex_unlock(mutex) };
                            expect(result, "pthread_mutex_unlock");
                            current::beat();
                        }
                    });
                }
            });
            let total: u64 = (0..count).map(|page| sum(page).load(SeqCst)).sum();
            if total != (THREADS * steps) as u64 {
                fail!("{THREADS} threads added {steps} each under mutexes, the sum is {total}");
            }
            for mutex in mutexes {
                let mutex = std::ptr::with_exposed_provenance_mut(mutex);
                // SAFETY: no thread uses it any more.
                expect(unsafe { libc::pthread_mutex_destroy(mutex) }, "pthread_mutex_destroy");
            }
        });
    });
    Ok(())
}

/// A queue of one number: its mutex, its condition and its number lie on three pages.
fn condition(turn: &mut Turn<'_>) -> Outcome {
    let thread = turn.thread;
    let mut region = turn.region();
    let first = turn.rng.below(region.pages() - 2);
    region.remember(first, 3);
    let items = turn.rng.between(20, 300) as u64;
    region.reshape(|region| {
        borrow(region, first, 3, |span| {
            let mutex = make_mutex(span.page(0).part(128, 64), false).expose_provenance();
            let condition = span.page(1).part(256, 64).pointer().expose_provenance();
            // SAFETY: aligned, large enough, held; null asks for the default attributes.
            let result = unsafe {
                let condition = std::ptr::with_exposed_provenance_mut(condition);
                libc::pthread_cond_init(condition, std::ptr::null())
            };
            expect(result, "pthread_cond_init");
            let number = plain(span.page(2).part(512, 8));
            // The number is even when the queue is empty, odd when it is full.
            let pass_on = move |parity: u64| {
                let mutex = std::ptr::with_exposed_provenance_mut(mutex);
                let condition: *mut libc::pthread_cond_t =
                    std::ptr::with_exposed_provenance_mut(condition);
                for _ in 0..items {
                    // SAFETY: both were made above and are destroyed after the scope.
                    unsafe {
                        expect(libc::pthread_mutex_lock(mutex), "pthread_mutex_lock");
                        while number.load(SeqCst) % 2 != parity {
                            let result = libc::pthread_cond_wait(condition, mutex);
                            expect(result, "pthread_cond_wait");
                        }
                        number.store(number.load(SeqCst) + 1, SeqCst);
                        expect(libc::pthread_cond_broadcast(condition), "pthread_cond_broadcast");
                        expect(libc::pthread_mutex_unlock(mutex), "pthread_mutex_unlock");
                    }
                    current::beat();
                }
            };
            let _quiet = Quiet::new();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _stack = worker::join_in(thread);
                    pass_on(0);
                });
                pass_on(1);
            });
            if number.load(SeqCst) != 2 * items {
                fail!("{items} items were passed on, the number is {}", number.load(SeqCst));
            }
            // SAFETY: no thread uses them any more.
            unsafe {
                let condition = std::ptr::with_exposed_provenance_mut(condition);
                expect(libc::pthread_cond_destroy(condition), "pthread_cond_destroy");
                let mutex = std::ptr::with_exposed_provenance_mut(mutex);
                expect(libc::pthread_mutex_destroy(mutex), "pthread_mutex_destroy");
            }
        });
    });
    Ok(())
}
