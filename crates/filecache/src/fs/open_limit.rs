//! Limits the files that a user may have open, so that other users can open files too.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// Descriptors that an open file has: one more reads past the page cache.
const EACH: u64 = 2;
/// Descriptors that are left for root and for what is done in between, or this part of them where
/// there are few.
const RESERVE: u64 = 1024;
const RESERVE_PART: u64 = 8;

/// Counts the files that users have open. Root, and whose mount it is, may open as many as there
/// are.
#[derive(Debug)]
pub(super) struct OpenLimit {
    max: u64,
    owner: u32,
    open: Mutex<HashMap<u32, u64>>,
}

/// One of them, as long as it is open.
#[derive(Debug)]
pub(super) struct Counted {
    limit: Arc<OpenLimit>,
    user: u32,
}

impl OpenLimit {
    /// With as many descriptors as this process may have.
    pub(super) fn new() -> Arc<OpenLimit> {
        OpenLimit::of(raise_descriptor_limit(), geteuid().as_raw())
    }

    fn of(descriptors: u64, owner: u32) -> Arc<OpenLimit> {
        let reserve = RESERVE.min(descriptors / RESERVE_PART);
        let max = (descriptors - reserve) / EACH;
        Arc::new(OpenLimit { max, owner, open: Mutex::default() })
    }

    /// # Errors
    /// `EMFILE` where a user has as many open as are left for others.
    pub(super) fn count(self: &Arc<Self>, user: u32) -> io::Result<Counted> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.get(&user).copied().unwrap_or(0);
        let others = open.values().sum::<u64>() - own;
        if user != 0 && user != self.owner && own >= self.max.saturating_sub(others + own) {
            return Err(Errno::MFILE.into());
        }
        open.insert(user, own + 1);
        Ok(Counted { limit: Arc::clone(self), user })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.limit.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = open.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.user);
            }
        }
    }
}

/// As far as it goes: where files cannot be found by handles, each that the kernel knows is held by
/// a descriptor, too.
fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let most = most.and_then(|text| text.trim().parse().ok()).or(limit.maximum);
    // Root may raise the maximum; where that is refused what there is has to do.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most })
        .or_else(|_| setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }));
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_as_many_to_others_as_he_has() {
        let limit = OpenLimit::of(2 * 100 + 28, 9);
        let max = limit.max;
        let open = |user| std::iter::from_fn(|| limit.count(user).ok()).take(1000).collect();
        let first: Vec<_> = open(1);
        assert_eq!(first.len() as u64, max / 2);
        let second: Vec<_> = open(2);
        assert_eq!(second.len() as u64, max / 4);
        assert_eq!(limit.count(1).unwrap_err().raw_os_error(), Some(24));
        let (root, owner): (Vec<_>, Vec<_>) = (open(0), open(9));
        assert_eq!((root.len(), owner.len()), (1000, 1000));
        drop((first, second, root, owner));
        assert!(limit.open.lock().unwrap().is_empty());
        assert_eq!(open(3).len() as u64, max / 2);
    }
}
