//! Acting as whoever a request comes from.
//!
//! The kernel checks whether the caller may do what it asks (`default_permissions`), by owners and
//! modes that it was told up to half a second ago. Whatever depends on them is therefore asked of
//! SOURCE once more, with the caller's user, groups and capabilities: what is done through the
//! mount is what the caller may do now. Whose a new file is, who pays for its blocks (quotas,
//! blocks reserved for root) and whether set-id bits survive depends on who does it, too. By root
//! only, for one operation at a time, on this thread alone.

mod rights;

use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::slice;

use fuser::Request;
use ramfold_sys::file_server::{set_file_group, set_file_user, unshare_umask};
use rustix::fs::{Access, AtFlags, CWD, Mode, Statx, accessat, getxattr};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, umask};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, capabilities, set_capabilities, set_thread_groups,
};

use super::names::is_directory;
use super::source_mounts::Descriptors;
use rights::{OVER_ACCESS, Rights};

/// What is needed to act as others: their ids, and all that the kernel has allowed them.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// Capabilities that count as far as the caller has them.
const OF_CALLERS: CapabilitySet = OVER_ACCESS
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

thread_local! {
    static HAS_OWN_UMASK: Cell<bool> = const { Cell::new(false) };
    static HAS_NO_GROUPS: Cell<bool> = const { Cell::new(false) };
}

/// What this process may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Powers {
    user: u32,
    group: u32,
    sets: CapabilitySets,
    acts_as_others: bool,
    /// The threads that serve have no groups but those of the caller they act as. In a user
    /// namespace where nobody may set them (setgroups in user_namespaces(7)) all have the same.
    sets_groups: bool,
}

/// Whoever a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub user: u32,
    pub group: u32,
    /// The thread that waits for the answer.
    thread: u32,
}

impl Caller {
    pub(crate) fn of(request: &Request) -> Caller {
        Caller { user: request.uid(), group: request.gid(), thread: request.pid() }
    }

    /// The kernel itself writes back pages for nobody in particular.
    pub(crate) fn is_nobody(self) -> bool {
        self.user == u32::MAX
    }

    /// Whether a sticky directory keeps others' files in it from being removed by the caller
    /// (check_sticky, include/linux/fs.h).
    pub(crate) fn is_kept_from(self, directory: &Statx, file: &Statx) -> bool {
        let is_sticky = u32::from(directory.stx_mode) & STICKY != 0;
        is_sticky && ![directory.stx_uid, file.stx_uid].contains(&self.user)
    }

    /// May the caller administer the whole system? Asked in rare cases only: it is read in /proc.
    pub(crate) fn administers(self) -> bool {
        Rights::of(self).has_everywhere(CapabilitySet::SYS_ADMIN)
    }
}

/// A file that has to be accessible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessed<'a> {
    stat: &'a Statx,
    file: BorrowedFd<'a>,
    /// What of it, where the operation is about several files.
    access: Access,
}

impl<'a> Accessed<'a> {
    /// A directory is written and searched, another file read and written.
    pub(crate) fn new(stat: &'a Statx, file: BorrowedFd<'a>) -> Accessed<'a> {
        let access = match is_directory(stat) {
            true => Access::WRITE_OK | Access::EXEC_OK,
            false => Access::READ_OK | Access::WRITE_OK,
        };
        Accessed { stat, file, access }
    }

    /// A directory that comes to another one is written: its parent is in it.
    pub(crate) fn moved(stat: &'a Statx, file: BorrowedFd<'a>) -> Accessed<'a> {
        Accessed { stat, file, access: Access::WRITE_OK }
    }
}

/// What an operation is about, as far as somebody's rights go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// What has to be readable, writable or searchable: CAP_DAC_OVERRIDE is about these.
    pub accessed: &'a [Accessed<'a>],
    /// What only an owner may do it to: CAP_FOWNER and CAP_CHOWN are about these.
    pub owned: &'a [&'a Statx],
    /// What is removed though a sticky directory keeps it from the caller
    /// ([`Caller::is_kept_from`]): CAP_FOWNER is about these, too.
    pub removed: &'a [&'a Statx],
    pub set_id: SetId,
    /// The caller's, where something is made.
    pub umask: Option<u32>,
}

impl<'a> About<'a> {
    /// Something that is done to one file, which its owner or who may access it may.
    pub(crate) fn file(accessed: &'a Accessed<'a>) -> About<'a> {
        About {
            accessed: slice::from_ref(accessed),
            owned: slice::from_ref(&accessed.stat),
            removed: &[],
            set_id: SetId::Unchanged,
            umask: None,
        }
    }

    /// Something that is made in a directory.
    pub(crate) fn making(directory: &'a Accessed<'a>, umask: u32) -> About<'a> {
        let is_set_group_id = u32::from(directory.stat.stx_mode) & SET_GROUP_ID != 0;
        About {
            accessed: slice::from_ref(directory),
            owned: &[],
            removed: &[],
            set_id: if is_set_group_id { SetId::Set } else { SetId::Unchanged },
            umask: Some(umask),
        }
    }
}

impl About<'_> {
    /// Whether a group that the caller may be in may do less than others: then all groups matter
    /// from the start.
    fn gives_group_less(&self, caller: Caller) -> bool {
        let mut of_others = self.accessed.iter().filter(|one| one.stat.stx_uid != caller.user);
        of_others.any(|one| gives_group_less(one.stat) || has_access_list(one.file))
    }
}

/// An access list may give a group less than others; the mode does not show it.
fn has_access_list(file: BorrowedFd<'_>) -> bool {
    getxattr(Descriptors::path(file), ACCESS_LIST, &mut [0; 0]).is_ok()
}

/// The extended attribute that is an access list.
pub(super) const ACCESS_LIST: &str = "system.posix_acl_access";

const STICKY: u32 = 0o1000;
pub(super) const SET_USER_ID: u32 = 0o4000;
pub(super) const SET_GROUP_ID: u32 = 0o2000;

/// What an operation does to the set-id bits of a file. All but the first depend on the caller's
/// groups and CAP_FSETID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetId {
    /// Nothing, or there are none.
    Unchanged,
    /// Sets them: a caller that is not in the group may not set a set-group-id bit.
    Set,
    /// Clears them, but for who has CAP_FSETID everywhere: the file is written, cut off, or given
    /// away.
    Written,
    /// Clears them: the kernel has looked at the capabilities over the whole system already.
    Cleared,
}

impl SetId {
    /// The same where the file has such bits.
    pub(crate) fn of(self, file: &Statx) -> SetId {
        match u32::from(file.stx_mode) & (SET_USER_ID | SET_GROUP_ID) {
            0 => SetId::Unchanged,
            _ => self,
        }
    }
}

/// The thread acts as somebody else as long as this is there.
#[must_use = "the thread acts as the caller only as long as this is there"]
pub(crate) struct Acting {
    back: Option<Powers>,
    has_groups: bool,
}

impl Powers {
    /// # Errors
    /// What capget(2) says.
    pub(crate) fn of_this_process() -> io::Result<Powers> {
        let sets = capabilities(None)?;
        let user = geteuid().as_raw();
        let acts_as_others = user == 0 && sets.effective.contains(NEEDED);
        let sets_groups = acts_as_others && set_thread_groups(&[]).is_ok();
        Ok(Powers { user, group: getegid().as_raw(), sets, acts_as_others, sets_groups })
    }

    /// Can files be opened by handle?
    pub(crate) fn opens_by_handle(&self) -> bool {
        self.sets.effective.contains(CapabilitySet::DAC_READ_SEARCH)
    }

    /// Root, with what makes it so.
    pub(crate) fn acts_as_others(&self) -> bool {
        self.acts_as_others
    }

    /// Does what is made for this caller belong to it? A process that cannot act as others must not
    /// make files for them: they would be its own, and run as itself with a set-user-id bit.
    fn can_own(&self, caller: Caller) -> bool {
        !caller.is_nobody() && (self.acts_as_others || caller.user == self.user)
    }

    /// Whether SOURCE is asked what this caller may: an ordinary user's mount does all as that
    /// user.
    pub(crate) fn asks_again(&self, caller: Caller) -> bool {
        self.acts_as_others && !caller.is_nobody()
    }

    /// Whether the caller may set the capabilities of this file. The kernel has asked that of an
    /// owner who may have been another since, which matters in user namespaces alone, whose
    /// capabilities are about the owners that exist in them. Of root it has asked for overlayfs
    /// too. Who may remove capabilities is not asked again: the kernel removes them in the name of
    /// whoever writes.
    pub(crate) fn may_set_capabilities(&self, caller: Caller, file: &Statx) -> bool {
        !self.asks_again(caller)
            || caller.user == 0
            || Rights::of(caller).over([file]).contains(CapabilitySet::SETFCAP)
    }

    /// Does something to files of SOURCE with the rights that the caller has now. It is done again
    /// where it was refused for want of more of them.
    ///
    /// # Errors
    /// Those of `f`; `EPERM` when something would be made that belongs to somebody else; what
    /// setfsuid and its kin say.
    pub(crate) fn as_caller<T>(
        &self,
        caller: Caller,
        about: &About<'_>,
        f: impl Fn() -> io::Result<T>,
    ) -> io::Result<T> {
        if let Some(mask) = about.umask {
            if !self.can_own(caller) {
                return Err(Errno::PERM.into());
            }
            set_umask(mask)?;
        }
        if !self.asks_again(caller) {
            return f();
        }
        let try_with = |rights: &Rights, accessed: &[Accessed<'_>]| {
            let _acting = self.act_with(caller, about, rights, accessed)?;
            f()
        };
        let is_about_all_rights =
            about.set_id != SetId::Unchanged || about.gives_group_less(caller);
        if !is_about_all_rights {
            match try_with(&Rights::none(), about.accessed) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                result => return result,
            }
        }
        let rights = Rights::of(caller);
        let accessed = self.without_accessible(caller, about, &rights);
        try_with(&rights, &accessed)
    }

    /// What is accessed, without what the caller may access whatever its capabilities are about, as
    /// those of a user namespace are about some of several files.
    fn without_accessible<'a>(
        &self,
        caller: Caller,
        about: &About<'a>,
        rights: &Rights,
    ) -> Vec<Accessed<'a>> {
        let is_reached = |one: &Accessed<'_>| !rights.over([one.stat]).is_empty();
        // A file is linked, which its owner may.
        let is_linked_by_owner = |one: &Accessed<'_>| {
            let owns = !(rights.over_owners([one.stat]) & CapabilitySet::FOWNER).is_empty();
            owns && !is_directory(one.stat)
        };
        let matters = |one: &&Accessed<'_>| {
            is_reached(one)
                || !is_linked_by_owner(one)
                    && self.check_access(caller, rights, one.file, one.access).is_err()
        };
        match about.accessed.iter().any(is_reached) {
            true => about.accessed.iter().filter(matters).copied().collect(),
            false => about.accessed.to_vec(),
        }
    }

    /// Whether the caller may access a file without capabilities.
    fn check_access(
        &self,
        caller: Caller,
        rights: &Rights,
        file: BorrowedFd<'_>,
        access: Access,
    ) -> io::Result<()> {
        let effective = self.sets.effective.difference(OF_CALLERS);
        let _acting = self.act(caller, effective, &rights.groups)?;
        Ok(accessat(CWD, Descriptors::path(file), access, AtFlags::EACCESS)?)
    }

    /// For an operation on an open file, which may be done by whoever has it open. What the file is
    /// like matters where the operation does something to its set-id bits.
    ///
    /// # Errors
    /// What setfsuid and its kin say.
    pub(crate) fn act_as(
        &self,
        caller: Caller,
        set_id: SetId,
        file: Option<&Statx>,
    ) -> io::Result<Acting> {
        let mut effective = self.sets.effective;
        if set_id == SetId::Unchanged || !self.asks_again(caller) {
            return self.act(caller, effective, &[]);
        }
        let rights = Rights::of(caller);
        if set_id == SetId::Cleared || !rights.has_everywhere(CapabilitySet::FSETID) {
            effective.remove(CapabilitySet::FSETID);
        }
        self.act(caller, effective, &rights.groups_to_write(file))
    }

    fn act_with(
        &self,
        caller: Caller,
        about: &About<'_>,
        rights: &Rights,
        accessed: &[Accessed<'_>],
    ) -> io::Result<Acting> {
        let over = |accessed: &[Accessed<'_>]| rights.over(accessed.iter().map(|one| one.stat));
        let keeps_set_id = match about.set_id {
            SetId::Unchanged => CapabilitySet::FSETID,
            SetId::Set => over(about.accessed) & CapabilitySet::FSETID,
            SetId::Written if rights.has_everywhere(CapabilitySet::FSETID) => CapabilitySet::FSETID,
            SetId::Written | SetId::Cleared => CapabilitySet::empty(),
        };
        let as_owner = match (about.owned, about.removed) {
            ([], []) => CapabilitySet::empty(),
            (owned, removed) => {
                let (owned, removed) = (owned.iter().copied(), removed.iter().copied());
                rights.over_owners(owned) & rights.over(removed) & CapabilitySet::FOWNER
            }
        };
        let given = (over(accessed) & OVER_ACCESS)
            | (rights.over(about.owned.iter().copied()) & CapabilitySet::CHOWN)
            | as_owner
            | keeps_set_id;
        let own = self.sets.effective;
        let effective = own.difference(OF_CALLERS) | (own & given);
        let is_written = matches!(about.set_id, SetId::Written | SetId::Cleared);
        let written = about.accessed.iter().map(|one| one.stat).filter(|_| is_written);
        self.act(caller, effective, &rights.groups_to_write(written))
    }

    fn act(
        &self,
        caller: Caller,
        mut effective: CapabilitySet,
        groups: &[Gid],
    ) -> io::Result<Acting> {
        if !self.asks_again(caller) {
            return Ok(Acting { back: None, has_groups: false });
        }
        if caller.user != 0 {
            // It goes over quotas and into blocks reserved for root.
            effective.remove(CapabilitySet::SYS_RESOURCE);
        }
        if (caller.user, caller.group, effective) == (self.user, self.group, self.sets.effective) {
            return Ok(Acting { back: None, has_groups: false });
        }
        let has_groups = self.sets_groups && !groups.is_empty();
        let acting = Acting { back: Some(*self), has_groups };
        if has_groups || self.sets_groups && !HAS_NO_GROUPS.get() {
            set_thread_groups(groups)?;
            HAS_NO_GROUPS.set(true);
        }
        if caller.group != self.group {
            set_file_group(caller.group)?;
        }
        if caller.user != self.user {
            set_file_user(caller.user)?;
        }
        // The kernel takes the capabilities about files away with the user.
        set_capabilities(None, CapabilitySets { effective, ..self.sets })?;
        Ok(acting)
    }
}

fn set_umask(mask: u32) -> io::Result<()> {
    if !HAS_OWN_UMASK.get() {
        unshare_umask()?;
        HAS_OWN_UMASK.set(true);
    }
    umask(Mode::from_raw_mode(mask & 0o777));
    Ok(())
}

/// Whether a member of the file's group may do less than others.
fn gives_group_less(file: &Statx) -> bool {
    let mode = u32::from(file.stx_mode);
    let (group, others) = (mode >> 3 & 7, mode & 7);
    others & !group != 0
}

impl Drop for Acting {
    fn drop(&mut self) {
        let Some(powers) = self.back else { return };
        let back = set_file_user(powers.user)
            .and_then(|()| set_capabilities(None, powers.sets))
            .and_then(|()| set_file_group(powers.group))
            .and_then(|()| if self.has_groups { set_thread_groups(&[]) } else { Ok(()) });
        if back.is_err() {
            // Whatever this thread did next it would do as somebody else.
            eprintln!("ramfold: a thread cannot get its own user back: ending");
            std::process::abort();
        }
    }
}
