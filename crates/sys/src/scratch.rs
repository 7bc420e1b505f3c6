//! Memory for the duration of one system call of the program, which may be made on a small stack.
//!
//! A child of vfork has its parent's memory, and does not return from a call that executes another
//! program. What it has taken would be lost to its parent, so the kernel gives it back: it clears a
//! word when a thread ends or executes (set_tid_address(2)).

use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::process::{end_word, set_end_word};
use crate::{Errno, PAGE_SIZE};

/// Callers that can have memory of a place at the same time; more get a mapping of their own.
const PLACES: usize = 16;
const LEAST_BYTES: usize = 4 * PAGE_SIZE;
/// A larger mapping is not kept for the next caller.
const KEPT_BYTES_MAX: usize = 64 * PAGE_SIZE;
/// A mapping of the least size is kept.
const _: () = assert!(LEAST_BYTES <= KEPT_BYTES_MAX);

/// Memory that is taken, used and given back, and taken again. The words must stay in RAM: the
/// kernel clears them for threads that cannot wait for a page any more.
#[derive(Debug)]
pub struct Scratches([Place; PLACES]);

/// The mapping belongs to whoever has taken the place.
#[derive(Debug)]
struct Place {
    is_taken: AtomicU32,
    start: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

/// Who takes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taker {
    /// A thread of the process whose memory it is.
    Own,
    /// A child that shares the memory, and may end without giving it back.
    Guest,
}

/// Memory that is given back when this is dropped, or when a guest ends or executes another
/// program.
#[derive(Debug)]
pub struct Scratch<'a> {
    start: *mut u8,
    bytes: usize,
    place: Option<&'a Place>,
    is_noted: bool,
}

impl Scratches {
    /// No memory is mapped yet.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Scratches {
        Scratches(
            [const {
                Place {
                    is_taken: AtomicU32::new(0),
                    start: AtomicPtr::new(ptr::null_mut()),
                    bytes: AtomicUsize::new(0),
                }
            }; PLACES],
        )
    }

    /// Takes at least `bytes` bytes.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn take(&self, bytes: usize, taker: Taker) -> Result<Scratch<'_>, Errno> {
        // A thread that has such a word for another purpose keeps it.
        let may_have_a_place = taker == Taker::Own || end_word().is_none();
        let mut place = self.0.iter().find(|place| may_have_a_place && place.take());
        let mut is_noted = false;
        if taker == Taker::Guest
            && let Some(taken) = place
        {
            // SAFETY: the word is cleared when the place is to be left, or by a drop before.
            is_noted = unsafe { set_end_word((&raw const taken.is_taken) as usize) }.is_ok();
            if !is_noted {
                taken.leave();
                place = None;
            }
        }
        let Some(place) = place else {
            // A guest that executes another program leaves this behind.
            let bytes = bytes.next_multiple_of(PAGE_SIZE);
            return Ok(Scratch { start: map(bytes)?, bytes, place: None, is_noted: false });
        };
        let mut scratch =
            Scratch { start: ptr::null_mut(), bytes: 0, place: Some(place), is_noted };
        place.make_room(bytes)?;
        scratch.start = place.start.load(Ordering::Relaxed);
        scratch.bytes = place.bytes.load(Ordering::Relaxed);
        Ok(scratch)
    }

    /// To be called in a forked child: the parent's callers are not in it.
    pub fn begin_child(&self) {
        self.0.iter().for_each(Place::leave);
    }
}

impl Place {
    fn take(&self) -> bool {
        self.is_taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn leave(&self) {
        self.is_taken.store(0, Ordering::Release);
    }

    /// Makes the mapping large enough. The caller has taken the place.
    fn make_room(&self, bytes: usize) -> Result<(), Errno> {
        let there = self.bytes.load(Ordering::Relaxed);
        let is_too_much = there > KEPT_BYTES_MAX && bytes <= KEPT_BYTES_MAX;
        if there >= bytes && !is_too_much {
            return Ok(());
        }
        self.unmap();
        let bytes = bytes.next_multiple_of(LEAST_BYTES);
        self.start.store(map(bytes)?, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn unmap(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if bytes > 0 {
            unmap(self.start.load(Ordering::Relaxed), bytes);
        }
    }
}

impl Scratch<'_> {
    /// The memory. It holds what an earlier caller has left there.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped, its own while it lives, and never without a value.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let Some(place) = self.place else { return unmap(self.start, self.bytes) };
        if self.bytes > KEPT_BYTES_MAX {
            place.unmap();
        }
        // Before the place is given back: the kernel would clear the word of its next taker.
        if self.is_noted {
            // SAFETY: it had none before.
            let _ = unsafe { set_end_word(0) };
        }
        place.leave();
    }
}

fn map(bytes: usize) -> Result<*mut u8, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory at a place of the kernel's choice.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
    Ok(start.cast())
}

fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: mapped by `map`, and nobody uses it any more.
    let _ = unsafe { munmap(start.cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(scratches: &Scratches) -> usize {
        scratches.0.iter().filter(|place| place.is_taken.load(Ordering::SeqCst) != 0).count()
    }

    #[test]
    fn what_was_left_is_taken_again() {
        let scratches = Scratches::new();
        let mut scratch = scratches.take(100, Taker::Own).unwrap();
        scratch.bytes()[99] = 7;
        let first = scratch.start;
        let second = scratches.take(5 * PAGE_SIZE, Taker::Own).unwrap();
        assert_ne!(first, second.start);
        assert!(second.bytes >= 5 * PAGE_SIZE);
        assert_eq!(taken(&scratches), 2);
        drop(scratch);
        let again = scratches.take(LEAST_BYTES, Taker::Own).unwrap();
        assert_eq!((again.start, taken(&scratches)), (first, 2));
        drop((again, second));
        assert_eq!(taken(&scratches), 0);
    }

    #[test]
    fn there_is_room_for_any_number_of_any_size() {
        let scratches = Scratches::new();
        let mut all: Vec<_> =
            (0..PLACES + 3).map(|_| scratches.take(100, Taker::Own).unwrap()).collect();
        all.iter_mut().for_each(|scratch| scratch.bytes()[..100].fill(1));
        assert_eq!(taken(&scratches), PLACES);
        drop(all);
        let bytes = 10 * KEPT_BYTES_MAX;
        let mut large = scratches.take(bytes, Taker::Own).unwrap();
        large.bytes()[bytes - 1] = 1;
        drop(large);
        // Not kept.
        assert_eq!(scratches.0[0].bytes.load(Ordering::SeqCst), 0);
        assert!(scratches.take(1 << 60, Taker::Own).is_err());
        assert_eq!(taken(&scratches), 0);
    }

    static OF_GUESTS: Scratches = Scratches::new();

    /// A child that shares memory. Executes a program, or ends.
    extern "C" fn guest(executes: *mut libc::c_void) -> i32 {
        let refused = OF_GUESTS.take(1 << 60, Taker::Guest);
        let dropped = OF_GUESTS.take(100, Taker::Guest);
        drop((refused, dropped));
        let Ok(mut scratch) = OF_GUESTS.take(100, Taker::Guest) else { return 2 };
        scratch.bytes()[..10].copy_from_slice(b"/bin/true\0");
        let arguments = [scratch.start.cast_const().cast(), ptr::null()];
        if !executes.is_null() {
            // SAFETY: a string, and a list of it that ends with null.
            unsafe { libc::execv(arguments[0], arguments.as_ptr()) };
        }
        crate::raw::exit_group(if executes.is_null() { 0 } else { 1 })
    }

    /// The kernel gives back what a child has that shares memory, when that ends or executes.
    #[test]
    fn what_a_guest_takes_is_left_when_it_goes() {
        let mut stack = vec![0u128; 1 << 14];
        for executes in [true, false] {
            let mut word = u8::from(executes);
            let argument = if executes { (&raw mut word).cast() } else { ptr::null_mut() };
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let mut status = 0;
            // SAFETY: the child has a stack of its own, and this thread waits as long as it uses
            // that.
            let (child, waited) = unsafe {
                let child =
                    libc::clone(guest, stack.as_mut_ptr_range().end.cast(), flags, argument);
                (child, libc::waitpid(child, &mut status, 0))
            };
            assert!(child > 0 && child == waited);
            assert_eq!(status, 0);
            assert_eq!(taken(&OF_GUESTS), 0);
            assert_eq!(OF_GUESTS.0[0].bytes.load(Ordering::SeqCst), LEAST_BYTES);
        }
    }

    #[test]
    fn a_forked_child_has_what_its_parent_had_taken() {
        let scratches = Scratches::new();
        let taken_before = scratches.take(100, Taker::Own).unwrap();
        // As in the child's copy.
        scratches.begin_child();
        assert_eq!(taken(&scratches), 0);
        core::mem::forget(taken_before);
    }
}
