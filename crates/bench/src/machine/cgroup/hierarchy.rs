//! Where cgroups can be made: version 1 or 2 of the memory controller.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ramfold_sys::cgroup::{self, Group};

use super::Cgroup;
use crate::machine::journal::{Journal, Setting, Undertaking};
use crate::machine::proc::read_text;

/// Where cgroups for measured programs can be made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Hierarchy {
    /// Folders of the caller's own cgroups; CPU time is counted where the
    /// cpuacct controller is mounted, and disks are slowed down where blkio is.
    V1 { memory: PathBuf, cpuacct: Option<PathBuf>, blkio: Option<PathBuf> },
    /// Ancestors of the caller's cgroup, nearest first, that pass the memory
    /// controller on. The caller's own cgroup cannot do that, because version 2
    /// allows processes in leaves only.
    V2 { parents: Vec<PathBuf> },
}

impl Hierarchy {
    pub(crate) fn detect() -> Result<Self> {
        Self::parse(&read_text("/proc/self/mountinfo")?, &read_text("/proc/self/cgroup")?)
    }

    fn parse(mounts: &str, own: &str) -> Result<Self> {
        let own =
            |controller: Option<&str>| cgroup::groups(controller, own, mounts).into_iter().next();
        let v1 = |controller: &str| own(Some(controller)).map(|group| seen(&group));
        if let Some(memory) = v1("memory") {
            return Ok(Self::V1 { memory, cpuacct: v1("cpuacct"), blkio: v1("blkio") });
        }
        let Some(group) = own(None) else { bail!("no memory cgroup is mounted") };
        let parents: Vec<PathBuf> = seen(&group)
            .ancestors()
            .take_while(|folder| folder.starts_with(&group.mount_point))
            .filter(|folder| {
                read_text(folder.join("cgroup.subtree_control"))
                    .is_ok_and(|text| text.split(' ').any(|word| word == "memory"))
            })
            .map(Path::to_owned)
            .collect();
        if parents.is_empty() {
            bail!(
                "no cgroup above this process passes the memory controller on \
                 (as root: echo +memory > {}/cgroup.subtree_control)",
                group.mount_point.display()
            );
        }
        Ok(Self::V2 { parents })
    }

    /// "v1" or "v2".
    pub(crate) fn version(&self) -> &'static str {
        match self {
            Self::V1 { .. } => "v1",
            Self::V2 { .. } => "v2",
        }
    }

    /// Whether the kernel charges what zswap has compressed to the cgroup that
    /// owned the page. It does in version 2 only (Linux 6.18, mm/memcontrol.c,
    /// obj_cgroup_charge_zswap returns at once for version 1).
    pub(crate) fn charges_zswap(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }

    /// Makes an empty cgroup.
    pub(crate) fn create(&self, journal: &Journal, name: &str) -> Result<Cgroup> {
        match self {
            Self::V1 { memory, cpuacct, blkio } => {
                let place = |parent: &Option<PathBuf>| parent.as_ref().map(|path| path.join(name));
                let (memory, cpuacct, blkio) = (memory.join(name), place(cpuacct), place(blkio));
                let mut folders = vec![make(journal, &memory)?];
                for path in [&cpuacct, &blkio].into_iter().flatten() {
                    folders.push(make(journal, path)?);
                }
                Ok(Cgroup { version: 1, memory, cpuacct, blkio, folders })
            }
            Self::V2 { parents } => {
                let mut last = None;
                for parent in parents {
                    let memory = parent.join(name);
                    match make(journal, &memory) {
                        Ok(folder) => {
                            let (cpuacct, blkio) = (None, Some(memory.clone()));
                            let folders = vec![folder];
                            return Ok(Cgroup { version: 2, memory, cpuacct, blkio, folders });
                        }
                        Err(error) => last = Some(error),
                    }
                }
                Err(last.context("no cgroup to make another in")?)
            }
        }
    }
}

/// The folder of the group. In a container without a cgroup namespace its own group is mounted, but
/// its path is from the root of the machine.
fn seen(group: &Group) -> PathBuf {
    if group.folder.exists() { group.folder.clone() } else { group.mount_point.clone() }
}

fn make(journal: &Journal, path: &Path) -> Result<(PathBuf, Undertaking)> {
    let undertaking = journal.undertake(Setting::Cgroup { path: path.to_owned() })?;
    fs::create_dir(path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
    Ok((path.to_owned(), undertaking))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn version_1_uses_the_callers_own_cgroups() {
        let root = tree("v1");
        fs::create_dir_all(root.join("memory/box")).unwrap();
        fs::create_dir_all(root.join("cpu,cpuacct")).unwrap();
        let (memory, cpu) = (root.join("memory"), root.join("cpu,cpuacct"));
        let mounts = format!(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             32 31 0:29 / {} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
             33 31 0:30 / {} rw,relatime shared:9 - cgroup cgroup rw,memory\n\
             34 31 0:31 / {}/unified rw - cgroup2 cgroup2 rw",
            cpu.display(),
            memory.display(),
            root.display()
        );
        let own = "4:memory:/box\n2:cpu,cpuacct:/\n0::/";
        let expected =
            Hierarchy::V1 { memory: memory.join("box"), cpuacct: Some(cpu.clone()), blkio: None };
        let found = Hierarchy::parse(&mounts, own).unwrap();
        assert_eq!(found, expected);
        assert!(!found.charges_zswap());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn version_2_looks_upwards_for_a_parent() {
        let root = tree("v2");
        let leaf = root.join("user.slice/session.scope");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(root.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        fs::write(root.join("user.slice/cgroup.subtree_control"), "memory\n").unwrap();
        fs::write(leaf.join("cgroup.subtree_control"), "\n").unwrap();
        let mounts = format!("31 23 0:28 / {} rw shared:4 - cgroup2 cgroup2 rw", root.display());
        let found = Hierarchy::parse(&mounts, "0::/user.slice/session.scope").unwrap();
        assert_eq!(found, Hierarchy::V2 { parents: vec![root.join("user.slice"), root.clone()] });
        assert!(found.charges_zswap());
        fs::write(root.join("cgroup.subtree_control"), "pids\n").unwrap();
        fs::write(root.join("user.slice/cgroup.subtree_control"), "\n").unwrap();
        assert!(Hierarchy::parse(&mounts, "0::/user.slice/session.scope").is_err());
        assert!(Hierarchy::parse("", "").is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
