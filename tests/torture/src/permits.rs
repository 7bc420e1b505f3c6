//! Who may do what at the same time.

use std::sync::{Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::current;
use crate::table::Activity;

/// Bounds how many children are alive at once: each may come to own a copy of all memory.
pub(crate) struct Permits {
    free: Mutex<usize>,
    freed: Condvar,
}

pub(crate) struct Permit<'p> {
    permits: &'p Permits,
}

impl Permits {
    pub(crate) fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    pub(crate) fn acquire(&self) -> Permit<'_> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if *free == 0 {
            let _waiting = current::during(Activity::Waiting);
            while *free == 0 {
                free = self.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
            }
        }
        *free -= 1;
        Permit { permits: self }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.permits.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.permits.freed.notify_one();
    }
}

/// Keeps mlockall(2) and advice apart: the kernel refuses most advice for locked memory.
pub(crate) struct Locking {
    lock: RwLock<()>,
}

impl Locking {
    pub(crate) fn new() -> Self {
        Self { lock: RwLock::new(()) }
    }

    /// To be held while giving advice.
    pub(crate) fn using(&self) -> RwLockReadGuard<'_, ()> {
        let _waiting = current::during(Activity::Waiting);
        self.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be held while all memory is locked.
    pub(crate) fn locking(&self) -> RwLockWriteGuard<'_, ()> {
        let _waiting = current::during(Activity::Waiting);
        self.lock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps direct I/O into private memory and fork(2) apart where the kernel cannot.
///
/// open(2) warns that the two must not overlap: before Linux 6.5 a fork could leave the parent
/// with a copy of a page that the device was writing into. From 6.5 on, direct I/O pins its pages
/// and fork copies pinned pages for the child, so there is nothing to keep apart.
pub(crate) struct Pins {
    lock: Option<RwLock<()>>,
}

impl Pins {
    pub(crate) fn new() -> Self {
        Self { lock: (kernel_version() < (6, 5)).then(|| RwLock::new(())) }
    }

    /// To be held from submitting direct I/O until its end.
    pub(crate) fn pinning(&self) -> Option<RwLockReadGuard<'_, ()>> {
        let lock = self.lock.as_ref()?;
        let _waiting = current::during(Activity::Waiting);
        Some(lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// To be held while forking.
    pub(crate) fn forking(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let lock = self.lock.as_ref()?;
        let _waiting = current::during(Activity::Waiting);
        Some(lock.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The kernel's version, or 0.0 when it does not say.
fn kernel_version() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse_version(&release)
}

fn parse_version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions() {
        assert_eq!(parse_version("6.18.44-fc\n"), (6, 18));
        assert_eq!(parse_version("5.15.0-1"), (5, 15));
        assert_eq!(parse_version("strange"), (0, 0));
        assert!((6, 1) < (6, 5) && (6, 10) > (6, 5));
    }
}
