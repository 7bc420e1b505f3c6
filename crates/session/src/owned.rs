//! Making and mapping the shared memory.
#![expect(unsafe_code, reason = "the memory is mapped, and unmapped at the end")]

use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering;

use ramfold_codec::Choice;
use ramfold_sys::Errno;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::layout::{SEALS, SESSION_MAGIC, Session};

/// The cap / this is the usual reserve of a pool, between a least and a most.
const RESERVE_SHARE: u64 = 128;
const RESERVE_MIN: u64 = 256 << 10;
const RESERVE_MAX: u64 = 4 << 20;
/// Objects whose pages have been out for so long are compressed once more, where nothing else is
/// asked for.
const RECOMPRESS_AFTER_NS: u64 = 2_000_000_000;

impl Session {
    /// Maps a session's file.
    ///
    /// # Errors
    /// What mmap(2) says.
    ///
    /// # Safety
    /// The file must be as long as a session, and stay so.
    pub unsafe fn map(file: impl AsFd) -> Result<NonNull<Session>, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place of the kernel's choice, which is never null.
        unsafe {
            let bytes = size_of::<Session>();
            let address = mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)?;
            Ok(NonNull::new_unchecked(address.cast()))
        }
    }

    /// The reserve of a pool at a cap of so much, where nothing else is asked for. Both in bytes.
    pub fn usual_reserve_bytes(memory_cap_bytes: u64) -> u64 {
        (memory_cap_bytes / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX)
    }
}

/// A session made by the launcher, which keeps the file that agents find it by.
pub struct OwnedSession {
    file: OwnedFd,
    memory: NonNull<Session>,
}

// SAFETY: the session is atomics only.
unsafe impl Send for OwnedSession {}
// SAFETY: as above.
unsafe impl Sync for OwnedSession {}

impl OwnedSession {
    /// Makes a session with this cap, in bytes. Only processes of this user can reach it, through
    /// this process.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2) and mmap(2) say.
    pub fn create(memory_cap_bytes: u64, codec: Choice) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create(c"ramfold-session", flags)?;
        ftruncate(&file, size_of::<Session>() as u64)?;
        // Whoever maps it can rely on its length.
        fcntl_add_seals(&file, SEALS)?;
        let mut key = [0; 8];
        getrandom(&mut key, GetRandomFlags::empty())?;
        // SAFETY: the file is as long as the session, and zeroed.
        let memory = unsafe { Session::map(&file) }?;
        let session = OwnedSession { file, memory };
        session.memory_cap_bytes.store(memory_cap_bytes, Ordering::Relaxed);
        session.target_bytes.store(memory_cap_bytes, Ordering::Relaxed);
        let reserve_bytes = Session::usual_reserve_bytes(memory_cap_bytes);
        session.reserve_bytes.store(reserve_bytes, Ordering::Relaxed);
        session.codec.store(u32::from(codec.number()), Ordering::Relaxed);
        session.recompress_after_ns.store(RECOMPRESS_AFTER_NS, Ordering::Relaxed);
        session.key.store(u64::from_ne_bytes(key), Ordering::Relaxed);
        session.magic.store(SESSION_MAGIC, Ordering::Release);
        Ok(session)
    }

    /// Draws the key that the spill file is encrypted with. It stays in RAM, where that is
    /// permitted.
    ///
    /// # Errors
    /// What getrandom(2) says.
    pub fn draw_spill_key(&self) -> Result<(), Errno> {
        let words = &self.spill.key;
        // Where it is not it may go to the machine's swap, as the program's own memory may.
        // SAFETY: locks memory that is mapped, and changes nothing.
        let _ = unsafe { mlock(words.as_ptr().cast_mut().cast(), size_of_val(words)) };
        for word in words {
            let mut bytes = [0; 8];
            getrandom(&mut bytes, GetRandomFlags::empty())?;
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        Ok(())
    }

    /// The number of the file descriptor and the key, for
    /// [`SESSION_VARIABLE`](crate::SESSION_VARIABLE).
    pub fn fd_and_key(&self) -> (i32, u64) {
        (self.file.as_raw_fd(), self.key.load(Ordering::Relaxed))
    }
}

impl core::ops::Deref for OwnedSession {
    type Target = Session;
    fn deref(&self) -> &Session {
        // SAFETY: mapped for as long as this lives, and every value is valid.
        unsafe { self.memory.as_ref() }
    }
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and is not used again.
        let unmapped = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<Session>()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A session in memory of this process alone, without a cap.
    pub(crate) fn session() -> Box<Session> {
        // SAFETY: atomics may be zero.
        unsafe { Box::<Session>::new_zeroed().assume_init() }
    }
}
