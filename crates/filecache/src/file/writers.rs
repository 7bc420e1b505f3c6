//! Whether somebody may be changing a file without a trace in its times.
//!
//! A change shows in mtime and ctime, but not each one does: a write(2) sets them when it begins,
//! and may go on for long; a process that has a page mapped for writing sets them with the first
//! store to it, and not again before it was written to the disk, which on tmpfs never
//! happens. So as long as somebody else has the file open for writing, or mapped, it is believed to
//! stay as it is only if all that was changed has been written to the disk, and that some time ago.

use std::os::fd::BorrowedFd;

use ramfold_sys::file_server::{is_open_for_writing, unwritten_pages};
use rustix::fs::fstatfs;

use super::stamp::Stamp;

/// The longest that a single write(2) may take, about: 2 GiB to a disk of 35 MB/s.
const WRITE_NS_MAX: i128 = 60_000_000_000;
/// File systems that have what is changed through a mapping fault again once it was written to the
/// disk, and count what was not, by f_type of statfs(2).
const ACCOUNTED: [u64; 5] = [
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
];

/// What is known of those who write a file behind the mount.
#[derive(Debug)]
pub(super) struct Writers {
    /// Not before the first look.
    is_accounted: Option<bool>,
    /// There may be some: it was not looked, or the file has changed since.
    may_be: bool,
    changes_unseen: bool,
}

impl Default for Writers {
    fn default() -> Writers {
        Writers { is_accounted: None, may_be: true, changes_unseen: false }
    }
}

impl Writers {
    /// The file was found changed.
    pub(super) fn note_change(&mut self) {
        self.may_be = true;
    }

    /// Whether the file may have been changed without a trace since the last look, or may be from
    /// now on. `is_own` where this process has it open for writing, so that nothing can be known.
    pub(super) fn look(&mut self, file: BorrowedFd<'_>, stamp: &Stamp, is_own: bool) -> bool {
        let before = self.changes_unseen;
        if is_own || !(self.may_be || self.is_accounted == Some(false)) {
            return before;
        }
        let is_accounted = *self.is_accounted.get_or_insert_with(|| {
            fstatfs(file).is_ok_and(|of| ACCOUNTED.contains(&(of.f_type as u64)))
        });
        self.may_be = is_open_for_writing(file) == Some(true);
        let is_settled = || {
            is_accounted
                && stamp.age_ns() > WRITE_NS_MAX
                && unwritten_pages(file).is_ok_and(|pages| pages == 0)
        };
        self.changes_unseen = self.may_be && !is_settled();
        before || self.changes_unseen
    }

    /// As it was last seen.
    pub(super) fn changes_unseen(&self) -> bool {
        self.changes_unseen
    }
}
