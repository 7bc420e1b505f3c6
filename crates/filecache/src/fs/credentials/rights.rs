//! What a caller may do beyond what its user and its first group may. It is read in /proc, which
//! takes longer than most operations do: only where it decides.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use rustix::fs::Statx;
use rustix::thread::{CapabilitySet, Gid, Pid, capabilities};

use super::{Caller, OF_CALLERS};

/// Capabilities to access files whatever their modes are.
pub(super) const OVER_ACCESS: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH);

/// The groups and capabilities of a caller.
#[derive(Debug)]
pub(super) struct Rights {
    pub groups: Vec<Gid>,
    effective: CapabilitySet,
    reach: Reach,
}

/// Which files the capabilities are about.
#[derive(Debug)]
enum Reach {
    AnyFile,
    /// Those of a user namespace below this one: files whose owner and group exist in it.
    Mapped {
        users: IdMap,
        groups: IdMap,
    },
}

/// Ids, as they are here, that exist in a user namespace.
#[derive(Debug)]
struct IdMap(Vec<Range<u64>>);

impl IdMap {
    /// Of the text of uid_map or gid_map, as this process reads it (user_namespaces(7)).
    fn of(text: &str) -> IdMap {
        let range = |line: &str| {
            let mut numbers = line.split_whitespace().skip(1).map(str::parse::<u64>);
            let (first, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some(first..first + count)
        };
        IdMap(text.lines().filter_map(range).collect())
    }

    fn has(&self, id: u32) -> bool {
        self.0.iter().any(|range| range.contains(&id.into()))
    }
}

impl Rights {
    pub(super) fn none() -> Rights {
        Rights { groups: Vec::new(), effective: CapabilitySet::empty(), reach: Reach::AnyFile }
    }

    /// None where /proc does not show the caller.
    pub(super) fn of(caller: Caller) -> Rights {
        Rights::read(caller).unwrap_or_else(Rights::none)
    }

    fn read(caller: Caller) -> Option<Rights> {
        let path = |name| PathBuf::from(format!("/proc/{}/{name}", caller.thread));
        let thread = Pid::from_raw(caller.thread.cast_signed())?;
        let effective = capabilities(Some(thread)).ok()?.effective;
        // To see it takes CAP_SYS_PTRACE; without it capabilities count for nothing.
        let namespace = fs::read_link(path("ns/user")).ok();
        let is_here = namespace.is_some() && namespace == fs::read_link("/proc/self/ns/user").ok();
        if is_here && caller.user == 0 && effective.contains(OF_CALLERS) {
            // Root may do it in whatever groups it is.
            return Some(Rights { groups: Vec::new(), effective, reach: Reach::AnyFile });
        }
        let status = fs::read_to_string(path("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        // The fourth is the one that counts for files (proc_pid_status(5)).
        let user: u32 = field("Uid:")?.split_whitespace().nth(3)?.parse().ok()?;
        if user != caller.user {
            // The kernel acts for somebody else in this thread, as overlayfs does for who has
            // mounted it, and has checked what that one may.
            let acts_for_root = caller.user == 0;
            return acts_for_root.then(|| Rights {
                groups: Vec::new(),
                effective: OF_CALLERS,
                reach: Reach::AnyFile,
            });
        }
        let groups = field("Groups:")?.split_whitespace().map(str::parse).map(Result::ok);
        let groups = groups.map(|group| group.map(Gid::from_raw)).collect::<Option<Vec<Gid>>>()?;
        if is_here {
            return Some(Rights { groups, effective, reach: Reach::AnyFile });
        }
        let map = |name| fs::read_to_string(path(name)).ok().map(|text| IdMap::of(&text));
        let maps = namespace.and_then(|_| Some((map("uid_map")?, map("gid_map")?)));
        Some(match maps {
            Some((users, of_groups)) => {
                Rights { groups, effective, reach: Reach::Mapped { users, groups: of_groups } }
            }
            None => Rights { groups, ..Rights::none() },
        })
    }

    /// Whether it has a capability over the whole system.
    pub(super) fn has_everywhere(&self, capability: CapabilitySet) -> bool {
        matches!(self.reach, Reach::AnyFile) && self.effective.contains(capability)
    }

    /// Capabilities that count for all of these files (capable_wrt_inode_uidgid,
    /// kernel/capability.c).
    pub(super) fn over<'a>(&self, files: impl IntoIterator<Item = &'a Statx>) -> CapabilitySet {
        self.over_mapped(files, |file, users, groups| {
            users.has(file.stx_uid) && groups.has(file.stx_gid)
        })
    }

    /// The same where the group does not matter (inode_owner_or_capable, fs/inode.c).
    pub(super) fn over_owners<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Statx>,
    ) -> CapabilitySet {
        self.over_mapped(files, |file, users, _| users.has(file.stx_uid))
    }

    /// The groups in which files are written. In their own ones what a user namespace's CAP_FSETID
    /// keeps stays: the set-group-id bit of a file that its group cannot execute
    /// (in_group_or_capable, fs/inode.c).
    pub(super) fn groups_to_write<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Statx>,
    ) -> Vec<Gid> {
        let keeps = |file: &&Statx| {
            !self.has_everywhere(CapabilitySet::FSETID)
                && self.over([*file]).contains(CapabilitySet::FSETID)
        };
        let own = files.into_iter().filter(keeps).map(|file| Gid::from_raw(file.stx_gid));
        self.groups.iter().copied().chain(own).collect()
    }

    fn over_mapped<'a>(
        &self,
        files: impl IntoIterator<Item = &'a Statx>,
        reaches: impl Fn(&Statx, &IdMap, &IdMap) -> bool,
    ) -> CapabilitySet {
        let counts = match &self.reach {
            Reach::AnyFile => true,
            Reach::Mapped { users, groups } => {
                files.into_iter().all(|file| reaches(file, users, groups))
            }
        };
        if counts { self.effective } else { CapabilitySet::empty() }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{getegid, geteuid};
    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn ids_of_a_namespace_are_those_outside() {
        let map = IdMap::of("         0       1000          1\n         1     100000      65536\n");
        assert_eq!(map.0, [1000..1001, 100_000..165_536]);
        assert!(map.has(1000) && map.has(100_000) && map.has(165_535));
        assert!(!map.has(0) && !map.has(1001) && !map.has(165_536));
        let all = IdMap::of("0 0 4294967295\n");
        assert!(all.has(0) && all.has(u32::MAX - 1) && !all.has(u32::MAX));
    }

    #[test]
    fn only_who_asks_is_looked_at() {
        let thread = gettid().as_raw_nonzero().get().cast_unsigned();
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let own = Rights::read(Caller { user, group, thread }).unwrap();
        assert!(matches!(own.reach, Reach::AnyFile));
        // A thread that has come by the number of another.
        assert!(Rights::read(Caller { user: user + 1, group, thread }).is_none());
        // As overlayfs acts for root in somebody's thread.
        if user != 0 {
            let root = Rights::read(Caller { user: 0, group, thread }).unwrap();
            assert!(root.has_everywhere(CapabilitySet::DAC_OVERRIDE));
        }
        assert!(Rights::read(Caller { user, group, thread: 0 }).is_none());
    }
}
