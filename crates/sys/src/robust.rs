//! A word in shared memory that tells whether its owner lives, also to processes that cannot see it
//! by its number (pid_namespaces(7)).
//!
//! The kernel marks the word when the owning thread ends, however it does: a list of one robust
//! futex (set_robust_list(2)).

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::{Errno, proc, raw};

/// `FUTEX_OWNER_DIED` of linux/futex.h.
const OWNER_DIED: u32 = 0x4000_0000;
/// No thread's number: the kernel has none above 2^22.
const LEFT: u32 = 0x3fff_ffff;
/// An owner that has left does not look as if it had died, nor like a thread.
const _: () = assert!(LEFT & OWNER_DIED == 0 && LEFT > 1 << 22);

/// Zeroed memory is a word that nobody has owned yet.
#[repr(C)]
pub struct OwnedWord {
    /// The list's next entry: its head again.
    next: AtomicUsize,
    word: AtomicU32,
}

/// `struct robust_list_head` of linux/futex.h. Zeroed memory is valid.
#[repr(C)]
pub struct RobustList {
    next: AtomicUsize,
    futex_offset: AtomicUsize,
    pending: AtomicUsize,
}

/// What is known of a word's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// No thread has owned the word, or it was reset.
    Nobody,
    /// The owner has not ended, or the kernel has not marked the word yet.
    Alive,
    /// The owner has left: [`OwnedWord::leave`].
    Left,
    /// The owner has ended without leaving.
    Died,
}

impl OwnedWord {
    /// Makes the calling thread the owner.
    ///
    /// # Errors
    /// What set_robust_list(2) says: then nobody is told when the thread ends.
    ///
    /// # Safety
    /// The word and the list must stay where they are as long as the thread lives. It must have no
    /// other list, and no C library that would have one.
    pub unsafe fn own(&self, list: &RobustList) -> Result<(), Errno> {
        let entry = (&raw const self.next) as usize;
        let word = (&raw const self.word) as usize;
        self.next.store((&raw const *list) as usize, Ordering::Relaxed);
        list.futex_offset.store(word - entry, Ordering::Relaxed);
        list.pending.store(0, Ordering::Relaxed);
        list.next.store(entry, Ordering::Relaxed);
        self.word.store(proc::own_thread(), Ordering::Release);
        let head = (&raw const *list) as usize;
        // SAFETY: the structure is as large as is said, and stays.
        let set = unsafe { raw::syscall2(raw::nr::SET_ROBUST_LIST, head, size_of::<RobustList>()) };
        raw::check(set).map(drop)
    }

    /// To be called by the owner before it ends.
    pub fn leave(&self) {
        self.word.store(LEFT, Ordering::Release);
    }

    /// To be called by others that know that the owner has ended: the kernel does not mark the word
    /// where the owner's memory was gone by then.
    pub fn note_ended(&self) {
        let word = self.word.load(Ordering::Acquire);
        if word != 0 && word != LEFT {
            let died = word | OWNER_DIED;
            let _ = self.word.compare_exchange(word, died, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Makes it a word that nobody owns, for the next owner.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// What is known of the owner.
    pub fn owner(&self) -> Owner {
        match self.word.load(Ordering::Acquire) {
            0 => Owner::Nobody,
            LEFT => Owner::Left,
            word if word & OWNER_DIED != 0 => Owner::Died,
            _ => Owner::Alive,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaked<T>() -> &'static T {
        // SAFETY: atomics may be zero.
        Box::leak(unsafe { Box::<T>::new_zeroed().assume_init() })
    }

    #[test]
    fn the_end_of_an_owner_shows() {
        let word: &OwnedWord = leaked();
        assert_eq!(word.owner(), Owner::Nobody);
        for (leaves, expected) in [(true, Owner::Left), (false, Owner::Died)] {
            let shared = core::ptr::from_ref(crate::mem::tests_shared_word());
            // SAFETY: zeroed memory, a page of it.
            let shared: &OwnedWord = unsafe { &*shared.cast() };
            // The child gives up the list of its C library, and uses no locks of that.
            // SAFETY: it allocates, which is safe here, and makes system calls.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: both live as long as the child.
                unsafe { shared.own(leaked()) }.unwrap();
                assert_eq!(shared.owner(), Owner::Alive);
                if leaves {
                    shared.leave();
                }
                raw::exit_group(0);
            }
            // SAFETY: nothing is written.
            unsafe { libc::waitpid(child, core::ptr::null_mut(), 0) };
            assert_eq!(shared.owner(), expected);
            shared.note_ended();
            assert_eq!(shared.owner(), expected);
            shared.reset();
            shared.note_ended();
            assert_eq!(shared.owner(), Owner::Nobody);
        }
        word.word.store(1, Ordering::Relaxed);
        assert_eq!(word.owner(), Owner::Alive);
        word.note_ended();
        assert_eq!(word.owner(), Owner::Died);
    }
}
