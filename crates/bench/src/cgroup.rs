//! A cgroup for one measured program, version 1 or 2 of the memory controller.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::journal::{Journal, Setting, Undertaking};
use crate::machine::{field, read_text, write_text};

/// Where cgroups for measured programs can be made.
#[derive(Clone, Debug, PartialEq)]
pub enum Hierarchy {
    /// Folders of the caller's own cgroups; CPU time is counted where the
    /// cpuacct controller is mounted.
    V1 { memory: PathBuf, cpuacct: Option<PathBuf> },
    /// Ancestors of the caller's cgroup, nearest first, that pass the memory
    /// controller on. The caller's own cgroup cannot do that, because version 2
    /// allows processes in leaves only.
    V2 { parents: Vec<PathBuf> },
}

/// What a program may do when its cgroup is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swapping {
    Forbidden,
    Allowed,
}

/// A cgroup of ours; removed, with whatever still runs in it, on drop.
pub struct Cgroup {
    version: u8,
    memory: PathBuf,
    folders: Vec<(PathBuf, Undertaking)>,
}

impl Hierarchy {
    pub fn detect() -> Result<Self> {
        Self::parse(&read_text("/proc/self/mountinfo")?, &read_text("/proc/self/cgroup")?)
    }

    fn parse(mounts: &str, own: &str) -> Result<Self> {
        let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
        let v1 = |controller: &str| {
            let mount = mounts.iter().find(|mount| {
                mount.kind == "cgroup" && mount.options.split(',').any(|word| word == controller)
            })?;
            let path = own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next()?;
                controllers.split(',').any(|word| word == controller).then(|| parts.next())?
            })?;
            Some(mount.folder(path))
        };
        if let Some(memory) = v1("memory") {
            return Ok(Self::V1 { memory, cpuacct: v1("cpuacct") });
        }
        let Some(mount) = mounts.iter().find(|mount| mount.kind == "cgroup2") else {
            bail!("no memory cgroup is mounted");
        };
        let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let parents: Vec<PathBuf> = mount
            .folder(path)
            .ancestors()
            .take_while(|folder| folder.starts_with(mount.point))
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
                mount.point
            );
        }
        Ok(Self::V2 { parents })
    }

    /// "v1" or "v2".
    pub fn version(&self) -> &'static str {
        match self {
            Self::V1 { .. } => "v1",
            Self::V2 { .. } => "v2",
        }
    }

    /// Whether the kernel charges what zswap has compressed to the cgroup that
    /// owned the page. It does in version 2 only (Linux 6.18, mm/memcontrol.c,
    /// obj_cgroup_charge_zswap returns at once for version 1).
    pub fn charges_zswap(&self) -> bool {
        matches!(self, Self::V2 { .. })
    }

    /// Makes an empty cgroup.
    pub fn create(&self, journal: &Journal, name: &str) -> Result<Cgroup> {
        match self {
            Self::V1 { memory, cpuacct } => {
                let memory = memory.join(name);
                let mut folders = vec![make(journal, &memory)?];
                if let Some(cpuacct) = cpuacct {
                    folders.push(make(journal, &cpuacct.join(name))?);
                }
                Ok(Cgroup { version: 1, memory, folders })
            }
            Self::V2 { parents } => {
                let mut last = None;
                for parent in parents {
                    let memory = parent.join(name);
                    match make(journal, &memory) {
                        Ok(folder) => {
                            return Ok(Cgroup { version: 2, memory, folders: vec![folder] });
                        }
                        Err(error) => last = Some(error),
                    }
                }
                Err(last.context("no cgroup to make another in")?)
            }
        }
    }
}

fn make(journal: &Journal, path: &Path) -> Result<(PathBuf, Undertaking)> {
    let undertaking = journal.undertake(Setting::Cgroup { path: path.to_owned() })?;
    fs::create_dir(path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
    Ok((path.to_owned(), undertaking))
}

impl Cgroup {
    /// Folders a process has to join.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(|(path, _)| path.as_path())
    }

    /// Limits memory and says whether pages may be swapped. Without a limit
    /// only the swapping is set.
    pub fn configure(&self, limit_bytes: Option<u64>, swapping: Swapping) -> Result<()> {
        let write = |name: &str, value: &str| write_text(self.memory.join(name), value);
        let limit = limit_bytes.map(|bytes| bytes.to_string());
        if self.version == 1 {
            if let Some(limit) = &limit {
                write("memory.limit_in_bytes", limit)?;
            }
            match swapping {
                Swapping::Allowed => write("memory.swappiness", "100")?,
                Swapping::Forbidden => {
                    write("memory.swappiness", "0")?;
                    // Swap accounting may be compiled out or off.
                    if let Some(limit) = &limit
                        && self.memory.join("memory.memsw.limit_in_bytes").exists()
                    {
                        write("memory.memsw.limit_in_bytes", limit)?;
                    }
                }
            }
            return Ok(());
        }
        if let Some(limit) = &limit {
            write("memory.max", limit)?;
        }
        let swap_max = self.memory.join("memory.swap.max");
        if swap_max.exists() {
            let value = if swapping == Swapping::Allowed { "max" } else { "0" };
            write_text(&swap_max, value)?;
        }
        Ok(())
    }

    /// Bytes charged now.
    pub fn usage_bytes(&self) -> Result<u64> {
        self.number(["memory.usage_in_bytes", "memory.current"])
    }

    /// The most bytes that were charged at once: anonymous and file pages, and
    /// kernel memory such as page tables. `None` before Linux 5.19 (version 2).
    pub fn usage_bytes_peak(&self) -> Result<Option<u64>> {
        if self.version == 2 && !self.memory.join("memory.peak").exists() {
            return Ok(None);
        }
        self.number(["memory.max_usage_in_bytes", "memory.peak"]).map(Some)
    }

    /// Resident anonymous bytes now.
    pub fn anonymous_bytes(&self) -> Result<u64> {
        let text = read_text(self.memory.join("memory.stat"))?;
        let name = if self.version == 1 { "total_rss" } else { "anon" };
        field(&text, name).with_context(|| format!("no '{name}' in memory.stat"))
    }

    /// User and system time of everything that ran in it, in seconds; `None`
    /// where nothing counts it.
    pub fn cpu_seconds(&self) -> Result<Option<f64>> {
        if self.version == 2 {
            let text = read_text(self.memory.join("cpu.stat"))?;
            return Ok(field(&text, "usage_usec").map(|usage| usage as f64 / 1e6));
        }
        let Some((cpuacct, _)) = self.folders.get(1) else { return Ok(None) };
        let text = read_text(cpuacct.join("cpuacct.usage"))?;
        let nanoseconds: u64 = text.parse().context("cpuacct.usage is not a number")?;
        Ok(Some(nanoseconds as f64 / 1e9))
    }

    /// How many processes the kernel killed for want of memory.
    pub fn out_of_memory_count(&self) -> Result<u64> {
        let name = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        Ok(field(&read_text(self.memory.join(name))?, "oom_kill").unwrap_or(0))
    }

    /// Removes it, killing what still runs in it.
    pub fn finish(self) -> Result<()> {
        self.folders.into_iter().try_for_each(|(_, undertaking)| undertaking.finish())
    }

    fn number(&self, [v1, v2]: [&str; 2]) -> Result<u64> {
        let path = self.memory.join(if self.version == 1 { v1 } else { v2 });
        let text = read_text(&path)?;
        text.parse().with_context(|| format!("{}: '{text}' is not a number", path.display()))
    }
}

/// A line of /proc/self/mountinfo.
struct Mount<'a> {
    /// The folder of the file system that is mounted.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let (root, point) = (before.next()?, before.next()?);
        let kind = after.next()?;
        Some(Self { root, point, kind, options: after.nth(1)? })
    }

    /// Where the cgroup `path` is seen. A container without a cgroup namespace
    /// mounts its own cgroup but is told the path from the machine's root.
    fn folder(&self, path: &str) -> PathBuf {
        let inner = path.strip_prefix(self.root).unwrap_or(path).trim_start_matches('/');
        let folder = Path::new(self.point).join(inner);
        if folder.exists() { folder } else { PathBuf::from(self.point) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("ramfold-cgroup-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        root
    }

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
        let expected = Hierarchy::V1 { memory: memory.join("box"), cpuacct: Some(cpu.clone()) };
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

    #[test]
    fn files_of_both_versions_are_read_and_written() {
        let root = tree("files");
        let journal_folder = root.join("journal");
        let journal = Journal::open(&journal_folder).unwrap();
        for (version, files, anonymous) in [
            (
                1,
                vec![
                    ("memory.usage_in_bytes", "10\n"),
                    ("memory.max_usage_in_bytes", "20\n"),
                    ("memory.stat", "rss 1\ntotal_rss 30\n"),
                    ("memory.oom_control", "under_oom 0\noom_kill 2\n"),
                ],
                30,
            ),
            (
                2,
                vec![
                    ("memory.current", "10\n"),
                    ("memory.peak", "20\n"),
                    ("memory.stat", "anon 30\nfile 1\n"),
                    ("memory.events", "oom 9\noom_kill 2\n"),
                    ("cpu.stat", "usage_usec 1500000\nuser_usec 1\n"),
                    ("memory.swap.max", "max\n"),
                ],
                30,
            ),
        ] {
            let memory = root.join(format!("v{version}"));
            fs::create_dir(&memory).unwrap();
            for (name, text) in files {
                fs::write(memory.join(name), text).unwrap();
            }
            let undertaking = journal.undertake(Setting::Folder { path: memory.clone() }).unwrap();
            let cgroup = Cgroup {
                version,
                memory: memory.clone(),
                folders: vec![(memory.clone(), undertaking)],
            };
            assert_eq!(cgroup.usage_bytes().unwrap(), 10);
            assert_eq!(cgroup.usage_bytes_peak().unwrap(), Some(20));
            assert_eq!(cgroup.anonymous_bytes().unwrap(), anonymous);
            assert_eq!(cgroup.out_of_memory_count().unwrap(), 2);
            assert_eq!(cgroup.cpu_seconds().unwrap(), (version == 2).then_some(1.5));
            cgroup.configure(Some(4096), Swapping::Forbidden).unwrap();
            let read = |name: &str| fs::read_to_string(memory.join(name)).unwrap();
            if version == 1 {
                assert_eq!(read("memory.limit_in_bytes"), "4096");
                assert_eq!(read("memory.swappiness"), "0");
            } else {
                assert_eq!(read("memory.max"), "4096");
                assert_eq!(read("memory.swap.max"), "0");
            }
            cgroup.finish().unwrap();
            assert!(!memory.exists());
        }
        drop(journal);
        fs::remove_dir_all(&root).unwrap();
    }
}
