//! Acting as whoever a request comes from.
//!
//! The kernel has checked already whether the caller may do what it asks (`default_permissions`), with all its
//! groups and capabilities. Whose a new file is, who pays for its blocks (quotas, blocks reserved for root) and
//! whether set-id bits survive depends on who does it, so that is done as the caller: by root only, for one
//! operation at a time, on this thread alone.

use std::cell::Cell;
use std::io;

use fuser::Request;
use ramfold_sys::file_server::{set_file_group, set_file_user, unshare_umask};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, umask};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What is needed to act as others: their ids, and all that the kernel has allowed them.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

thread_local! {
    static HAS_OWN_UMASK: Cell<bool> = const { Cell::new(false) };
}

/// What this process may do.
#[derive(Clone, Copy, Debug)]
pub struct Powers {
    user: u32,
    group: u32,
    sets: CapabilitySets,
    acts_as_others: bool,
}

/// Whoever a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub user: u32,
    pub group: u32,
    process: u32,
}

impl Caller {
    pub fn of(request: &Request) -> Caller {
        Caller { user: request.uid(), group: request.gid(), process: request.pid() }
    }

    /// The kernel itself writes back pages for nobody in particular.
    pub fn is_nobody(self) -> bool {
        self.user == u32::MAX
    }

    /// Is the caller in this group? Asked in rare cases only: it reads a file.
    fn is_in_group(self, group: u32) -> bool {
        let is_listed = |groups: &str| groups.split_whitespace().any(|g| g.parse() == Ok(group));
        self.group == group || self.status("Groups:").is_some_and(|groups| is_listed(&groups))
    }

    /// Has the caller this capability over any file? As rarely asked.
    pub fn has(self, capability: CapabilitySet) -> bool {
        // What it has in a user namespace of its own is no power over the files of this one.
        let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
        let is_ours = || {
            let ours = namespace("self");
            ours.is_some() && namespace(&self.process.to_string()) == ours
        };
        let is_effective = || {
            let set = u64::from_str_radix(self.status("CapEff:")?.trim(), 16).ok()?;
            Some(CapabilitySet::from_bits_retain(set).contains(capability))
        };
        self.user == 0 || (is_ours() && is_effective() == Some(true))
    }

    fn status(self, field: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process)).ok()?;
        status.lines().find_map(|line| line.strip_prefix(field)).map(str::to_owned)
    }
}

/// What becomes of a file's set-id bits when it is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetIdBits {
    /// As the caller's capabilities have it, which the kernel has looked at.
    Left,
    /// SOURCE clears them as for anybody without CAP_FSETID; for a member of the file's group (given where that
    /// matters) it leaves the set-group-id bit of a file that the group cannot execute.
    Cleared { group: Option<u32> },
}

/// The thread acts as somebody else as long as this is there.
#[must_use = "the thread acts as the caller only as long as this is there"]
pub struct Acting {
    back: Option<Powers>,
}

impl Powers {
    /// # Errors
    /// What capget(2) says.
    pub fn of_this_process() -> io::Result<Powers> {
        let sets = capabilities(None)?;
        let user = geteuid().as_raw();
        Ok(Powers {
            user,
            group: getegid().as_raw(),
            sets,
            acts_as_others: user == 0 && sets.effective.contains(NEEDED),
        })
    }

    /// Can files be opened by handle?
    pub fn opens_by_handle(&self) -> bool {
        self.sets.effective.contains(CapabilitySet::DAC_READ_SEARCH)
    }

    /// Root, with what makes it so.
    pub fn acts_as_others(&self) -> bool {
        self.acts_as_others
    }

    /// Does what is made for this caller belong to it? A process that cannot act as others must not make files
    /// for them: they would be its own, and run as itself with a set-user-id bit.
    fn can_own(&self, caller: Caller) -> bool {
        !caller.is_nobody() && (self.acts_as_others || caller.user == self.user)
    }

    /// For an operation that makes a file: owner and mode become what they would on SOURCE.
    ///
    /// # Errors
    /// `EPERM` when the file would belong to somebody else; what setfsuid and its kin say.
    pub fn make_as(&self, caller: Caller, mask: u32) -> io::Result<Acting> {
        if !self.can_own(caller) {
            return Err(Errno::PERM.into());
        }
        if !HAS_OWN_UMASK.get() {
            unshare_umask()?;
            HAS_OWN_UMASK.set(true);
        }
        umask(Mode::from_raw_mode(mask & 0o777));
        self.act_as(caller, SetIdBits::Left)
    }

    /// For an operation that changes a file.
    ///
    /// # Errors
    /// What setfsuid and its kin say.
    pub fn act_as(&self, caller: Caller, bits: SetIdBits) -> io::Result<Acting> {
        self.act(caller, bits, self.sets.effective)
    }

    /// For an operation that a file's owner may do alone. SOURCE looks at that once more: the kernel goes by an owner
    /// that it was told of at some time, and asks no more of who has the file open.
    ///
    /// # Errors
    /// What setfsuid and its kin say.
    pub fn act_as_owner(&self, caller: Caller, bits: SetIdBits) -> io::Result<Acting> {
        let mut effective = self.sets.effective;
        if self.acts_as_others && !caller.is_nobody() && !caller.has(CapabilitySet::FOWNER) {
            effective.remove(CapabilitySet::FOWNER);
        }
        self.act(caller, bits, effective)
    }

    fn act(
        &self,
        caller: Caller,
        bits: SetIdBits,
        mut effective: CapabilitySet,
    ) -> io::Result<Acting> {
        if !self.acts_as_others || caller.is_nobody() {
            return Ok(Acting { back: None });
        }
        let mut group = caller.group;
        if let SetIdBits::Cleared { group: of_file } = bits {
            effective.remove(CapabilitySet::FSETID);
            if let Some(of_file) = of_file.filter(|&of_file| caller.is_in_group(of_file)) {
                group = of_file;
            }
        }
        if caller.user != 0 {
            // It goes over quotas and into blocks reserved for root.
            effective.remove(CapabilitySet::SYS_RESOURCE);
        }
        if (caller.user, group, effective) == (self.user, self.group, self.sets.effective) {
            return Ok(Acting { back: None });
        }
        let acting = Acting { back: Some(*self) };
        if group != self.group {
            set_file_group(group)?;
        }
        if caller.user != self.user {
            set_file_user(caller.user)?;
        }
        // The kernel takes the capabilities about files away with the user.
        set_capabilities(None, CapabilitySets { effective, ..self.sets })?;
        Ok(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        let Some(powers) = self.back else { return };
        let back = set_file_user(powers.user)
            .and_then(|()| set_capabilities(None, powers.sets))
            .and_then(|()| set_file_group(powers.group));
        if back.is_err() {
            // Whatever this thread did next it would do as somebody else.
            eprintln!("ramfold: a thread cannot get its own user back: ending");
            std::process::abort();
        }
    }
}
