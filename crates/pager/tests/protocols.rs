//! Every interleaving of the protocols between threads, over loom's types in place of the machine's.

#![allow(unreachable_pub, reason = "the protocols are modules of the agent")]

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use protocols::fork_copy::ForkCopy;
use protocols::fork_gate::ForkGate;
use protocols::progress::Progress;
use protocols::sleep_flag::SleepFlag;
use protocols::sync::Futex;

#[expect(dead_code, reason = "each is used by the agent")]
#[path = "../src/protocols"]
mod protocols {
    pub mod fork_copy;
    pub mod fork_gate;
    pub mod progress;
    pub mod sleep_flag;

    /// The same as `src/protocols/sync.rs`, of loom's.
    pub mod sync {
        use loom::sync::{Condvar, Mutex};

        pub use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

        /// The kernel's futex: to compare and to sleep is one step. It waits without limit, so that
        /// a lost wake-up is a deadlock, which loom reports.
        #[derive(Default)]
        pub struct Futex {
            word: AtomicU32,
            queue: Mutex<()>,
            woken: Condvar,
        }

        impl Futex {
            pub fn seen(&self) -> u32 {
                self.word.load(Ordering::Acquire)
            }

            pub fn note(&self) {
                self.word.fetch_add(1, Ordering::AcqRel);
            }

            pub fn raise(&self) {
                self.note();
                drop(self.queue.lock().unwrap());
                self.woken.notify_all();
            }

            pub fn wait(&self, seen: u32, _ns: u64) {
                let queue = self.queue.lock().unwrap();
                if self.word.load(Ordering::Acquire) == seen {
                    drop(self.woken.wait(queue).unwrap());
                }
            }
        }
    }
}

#[test]
fn no_plain_fork_overlaps_with_an_active_agent() {
    loom::model(|| {
        let gate = Arc::new(ForkGate::default());
        let active = Arc::new(AtomicBool::new(false));
        let fork = {
            let (gate, active) = (Arc::clone(&gate), Arc::clone(&active));
            thread::spawn(move || {
                if gate.enter(true) {
                    // While the process is copied.
                    assert!(!active.load(Ordering::Relaxed), "the child would find zeros");
                    gate.leave();
                }
            })
        };
        if gate.close() {
            active.store(true, Ordering::Relaxed);
        }
        fork.join().unwrap();
        assert!(gate.close(), "no fork is under way any more");
    });
}

#[test]
fn what_was_read_during_a_copy_is_acted_upon_before_anybody_has_the_lock() {
    loom::model(|| {
        let copy = Arc::new(ForkCopy::default());
        let lock = Arc::new(Mutex::new(()));
        // Messages that were read and are not acted upon.
        let unread = Arc::new(AtomicU32::new(0));
        let fork = {
            let (copy, lock) = (Arc::clone(&copy), Arc::clone(&lock));
            thread::spawn(move || {
                let held = lock.lock().unwrap();
                copy.begin();
                copy.end(true);
                drop(held);
            })
        };
        let handler = {
            let (copy, lock, unread) = (Arc::clone(&copy), Arc::clone(&lock), Arc::clone(&unread));
            thread::spawn(move || {
                if copy.is_copying() {
                    copy.begin_delay();
                    if copy.is_copying() {
                        unread.store(1, Ordering::Relaxed);
                    }
                }
                let held = lock.lock().unwrap();
                unread.store(0, Ordering::Relaxed);
                copy.end_delay();
                drop(held);
            })
        };
        let held = lock.lock().unwrap();
        if copy.is_settled() {
            assert_eq!(unread.load(Ordering::Relaxed), 0, "the address space has changed");
        }
        drop(held);
        fork.join().unwrap();
        handler.join().unwrap();
        assert!(copy.is_settled() && copy.child_has_agent());
    });
}

#[test]
fn who_waits_for_room_sees_what_was_freed() {
    loom::model(|| {
        let progress = Arc::new(Progress::default());
        let cost = Arc::new(AtomicU32::new(1));
        let frees = {
            let (progress, cost) = (Arc::clone(&progress), Arc::clone(&cost));
            thread::spawn(move || {
                progress.begin_free();
                cost.fetch_sub(1, Ordering::Relaxed);
                progress.end_free();
            })
        };
        progress.set_fault_waits(true);
        loop {
            let seen = progress.seen();
            if cost.load(Ordering::Relaxed) == 0 {
                break;
            }
            progress.wait(seen, 0);
        }
        progress.set_fault_waits(false);
        frees.join().unwrap();
        assert!(!progress.fault_waits() && !progress.fork_waits());
    });
}

#[test]
fn a_thread_that_has_work_is_not_left_asleep() {
    // Without the bound it takes two minutes.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let flag = Arc::new(SleepFlag::default());
        let wake = Arc::new(Futex::default());
        let work = Arc::new(AtomicU32::new(0));
        let maker = {
            let (flag, wake, work) = (Arc::clone(&flag), Arc::clone(&wake), Arc::clone(&work));
            thread::spawn(move || {
                for _ in 0..2 {
                    work.fetch_add(1, Ordering::Relaxed);
                    if flag.take() {
                        wake.raise();
                    }
                }
            })
        };
        let mut done = 0;
        while done < 2 {
            let seen = wake.seen();
            flag.begin();
            let found = work.swap(0, Ordering::Relaxed);
            if found == 0 {
                wake.wait(seen, 0);
            }
            flag.end();
            done += found;
        }
        maker.join().unwrap();
    });
}
