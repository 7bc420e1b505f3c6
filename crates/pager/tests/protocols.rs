//! Every interleaving of the protocols between threads, over loom's types in place of the
//! machine's.

#![allow(unreachable_pub, reason = "the protocols are modules of the agent")]

use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use protocols::activation::Activation;
use protocols::announcements::{Announcements, Ranges};
use protocols::fork_copy::ForkCopy;
use protocols::fork_gate::ForkGate;
use protocols::move_gate::MoveGate;
use protocols::privileges::FollowedPrivileges;
use protocols::progress::Progress;
use protocols::sharing::Sharing;
use protocols::spill_work::SpillWork;
use protocols::sync::Futex;
use protocols::take_over::TakeOver;

#[expect(dead_code, reason = "each is used by the agent")]
#[path = "../src/protocols"]
mod protocols {
    pub mod activation;
    pub mod announcements;
    pub mod fork_copy;
    pub mod fork_gate;
    pub mod move_gate;
    pub mod privileges;
    pub mod progress;
    pub mod sharing;
    pub mod sleep_flag;
    pub mod spill_work;
    pub mod take_over;

    /// The same as `src/protocols/sync.rs`, of loom's.
    pub mod sync {
        use loom::sync::{Condvar, Mutex};

        pub use loom::cell::UnsafeCell;
        pub use loom::sync::atomic::{
            AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
        };

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

            pub fn replace(&self, number: u32) {
                if self.word.swap(number, Ordering::Release) != number {
                    drop(self.queue.lock().unwrap());
                    self.woken.notify_all();
                }
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
fn no_memory_moves_while_some_is_registered() {
    loom::model(|| {
        let gate = Arc::new(MoveGate::default());
        // How many mappings there are: the agent divides one.
        let mappings = Arc::new(AtomicU32::new(1));
        let moves = {
            let (gate, mappings) = (Arc::clone(&gate), Arc::clone(&mappings));
            thread::spawn(move || {
                gate.begin_move(thread::yield_now);
                let seen = mappings.load(Ordering::Relaxed);
                let moved = mappings.load(Ordering::Relaxed);
                assert_eq!(seen, moved, "the kernel would move a part");
                gate.end_move();
            })
        };
        if gate.begin_register() {
            mappings.store(2, Ordering::Relaxed);
            mappings.store(3, Ordering::Relaxed);
            gate.end_register();
        }
        moves.join().unwrap();
        assert!(gate.begin_register(), "no thread moves memory any more");
    });
}

#[test]
fn who_moves_memory_waits_for_the_monitor_and_for_the_handler() {
    loom::model(|| {
        let gate = MoveGate::default();
        assert!(gate.begin_register() && gate.begin_register());
        gate.end_register();
        let mut has_waited = false;
        gate.begin_move(|| {
            has_waited = true;
            gate.end_register();
        });
        assert!(has_waited, "the other one registers still");
        assert!(!gate.begin_register(), "a thread moves memory");
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
        let spill = Arc::new(SpillWork::default());
        let work = Arc::new(AtomicU32::new(0));
        let maker = {
            let (spill, work) = (Arc::clone(&spill), Arc::clone(&work));
            thread::spawn(move || {
                for _ in 0..2 {
                    work.fetch_add(1, Ordering::Relaxed);
                    spill.wake();
                }
            })
        };
        let mut done = 0;
        while done < 2 {
            let seen = spill.seen();
            spill.sleep(seen, 0, || {
                let found = work.swap(0, Ordering::Relaxed);
                done += found;
                found == 0
            });
        }
        maker.join().unwrap();
    });
}

#[test]
fn the_parts_of_an_active_agent_are_there() {
    loom::model(|| {
        let activation = Arc::new(Activation::default());
        let monitor = {
            let activation = Arc::clone(&activation);
            // SAFETY: this thread alone changes the state, once.
            thread::spawn(move || unsafe { activation.activate(7) })
        };
        assert!(activation.parts().is_none_or(|&parts| parts == 7));
        monitor.join().unwrap();
        assert_eq!(activation.parts(), Some(&7));
    });
}

#[test]
fn who_has_grown_is_answered_after_a_look_that_saw_the_mapping() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let announcements = Arc::new(Announcements::<1>::default());
        let wake = Arc::new(Futex::default());
        let is_mapped = Arc::new(AtomicBool::new(false));
        let is_registered = Arc::new(AtomicBool::new(false));
        let caller = {
            let (announcements, wake) = (Arc::clone(&announcements), Arc::clone(&wake));
            let (is_mapped, is_registered) = (Arc::clone(&is_mapped), Arc::clone(&is_registered));
            thread::spawn(move || {
                is_mapped.store(true, Ordering::Relaxed);
                assert!(!announcements.grow(&(1..2)), "nothing is allowed");
                let asked = announcements.ask();
                wake.raise();
                loop {
                    let answered = announcements.answered();
                    if Announcements::<1>::is_answered(asked, answered) {
                        break;
                    }
                    announcements.wait(answered, 0);
                }
                assert!(is_registered.load(Ordering::Relaxed), "the memory grows unseen");
            })
        };
        loop {
            let asked = announcements.asked();
            if is_mapped.load(Ordering::Relaxed) {
                is_registered.store(true, Ordering::Relaxed);
            }
            announcements.answer(asked);
            if asked == 1 {
                break;
            }
            let seen = wake.seen();
            if !announcements.is_waited_for() {
                wake.wait(seen, 0);
            }
        }
        caller.join().unwrap();
    });
}

#[test]
fn ranges_that_were_made_are_had_whole_and_once() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let ranges = Arc::new(Ranges::<1>::default());
        let wake = Arc::new(Futex::default());
        let callers = [1, 2].map(|start| {
            let (ranges, wake) = (Arc::clone(&ranges), Arc::clone(&wake));
            thread::spawn(move || {
                ranges.put(&(start..start + 10));
                wake.raise();
            })
        });
        let mut taken = [0; 3];
        let mut take = || {
            let range = ranges.take()?;
            assert_eq!(range.len(), 10);
            taken[range.start - 1] += 1;
            Some(range)
        };
        loop {
            let seen = wake.seen();
            if take().is_some() {
                break;
            }
            wake.wait(seen, 0);
        }
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        take();
        ranges.put(&(3..13));
        assert_eq!(take(), Some(3..13), "there is room for another");
        // One of the first may have found none.
        assert!(matches!(taken, [1, 1, 1] | [1, 0, 1] | [0, 1, 1]), "{taken:?}");
    });
}

#[test]
fn who_waits_for_privileges_to_be_followed_is_not_forgotten() {
    const BEFORE: u64 = 1;
    const AFTER: u64 = 2;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let privileges = Arc::new(FollowedPrivileges::default());
        privileges.note(BEFORE);
        let wake = Arc::new(Futex::default());
        // Of the program's first thread.
        let credentials = Arc::new(AtomicU64::new(BEFORE));
        let program = {
            let (privileges, wake) = (Arc::clone(&privileges), Arc::clone(&wake));
            let credentials = Arc::clone(&credentials);
            thread::spawn(move || {
                credentials.store(AFTER, Ordering::Relaxed);
                if privileges.digest() != Some(AFTER) {
                    privileges.ask();
                    wake.raise();
                }
            })
        };
        // It looks unasked too, but seldom.
        while privileges.digest() != Some(AFTER) {
            if privileges.take_ask() {
                privileges.note(credentials.load(Ordering::Relaxed));
            }
            let seen = wake.seen();
            if !privileges.is_asked() && privileges.digest() != Some(AFTER) {
                wake.wait(seen, 0);
            }
        }
        program.join().unwrap();
    });
}

#[test]
fn a_fork_is_not_forgotten_when_sharing_ends() {
    loom::model(|| {
        let sharing = Arc::new(Sharing::default());
        sharing.begin();
        let store_shares = Arc::new(AtomicBool::new(true));
        // As the kernel knows it. The relative that there was has ended.
        let has_relative = Arc::new(AtomicBool::new(false));
        let fork = {
            let (sharing, store_shares) = (Arc::clone(&sharing), Arc::clone(&store_shares));
            let has_relative = Arc::clone(&has_relative);
            thread::spawn(move || {
                has_relative.store(true, Ordering::SeqCst);
                sharing.begin();
                store_shares.swap(true, Ordering::Relaxed);
            })
        };
        let seen = sharing.seen();
        if !has_relative.load(Ordering::SeqCst) && sharing.end(seen) {
            store_shares.swap(false, Ordering::Relaxed);
            if sharing.has_begun_again() {
                store_shares.swap(true, Ordering::Relaxed);
            }
        }
        fork.join().unwrap();
        assert!(sharing.is_shared(), "the agent forgets a fork");
        assert!(store_shares.load(Ordering::Relaxed), "the store forgets a fork");
    });
}

#[test]
fn no_object_is_kept_unknown_to_the_monitor() {
    loom::model(|| {
        let sharing = Arc::new(Sharing::default());
        sharing.begin();
        // Is an object kept? Under the agent's lock.
        let core = Arc::new(Mutex::new(false));
        let handler = {
            let (sharing, core) = (Arc::clone(&sharing), Arc::clone(&core));
            thread::spawn(move || {
                let mut is_kept = core.lock().unwrap();
                if sharing.is_shared() {
                    sharing.note_kept();
                    *is_kept = true;
                }
            })
        };
        let drop_unneeded = || {
            if sharing.take_kept() {
                *core.lock().unwrap() = false;
            }
        };
        drop_unneeded();
        assert!(sharing.end(sharing.seen()));
        drop_unneeded();
        handler.join().unwrap();
        drop_unneeded();
        assert!(!*core.lock().unwrap(), "the object stays for ever");
    });
}

#[test]
fn a_child_touches_nothing_before_it_is_taken_over() {
    loom::model(|| {
        let take_over = Arc::new(TakeOver::default());
        // The child's parent was a child itself.
        take_over.finish();
        let is_registered = Arc::new(AtomicBool::new(false));
        take_over.begin();
        let monitor = {
            let (take_over, is_registered) = (Arc::clone(&take_over), Arc::clone(&is_registered));
            thread::spawn(move || {
                is_registered.store(true, Ordering::Relaxed);
                take_over.finish();
            })
        };
        while !take_over.is_finished_within(0) {}
        assert!(is_registered.load(Ordering::Relaxed), "the child finds zeros");
        monitor.join().unwrap();
    });
}
