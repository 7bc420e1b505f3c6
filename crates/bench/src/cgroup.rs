//! A cgroup for one measured program, version 1 or 2 of the memory controller.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::journal::{Journal, Setting, Undertaking};
use crate::machine::{field, read_text, ticks_to_seconds, write_text};

/// Where cgroups for measured programs can be made.
#[derive(Clone, Debug, PartialEq)]
pub enum Hierarchy {
    /// Folders of the caller's own cgroups; CPU time is counted where the
    /// cpuacct controller is mounted, and disks are slowed down where blkio is.
    V1 { memory: PathBuf, cpuacct: Option<PathBuf>, blkio: Option<PathBuf> },
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
    /// In version 1 where CPU time is counted.
    cpuacct: Option<PathBuf>,
    /// Where input and output are counted and slowed down.
    blkio: Option<PathBuf>,
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
            return Ok(Self::V1 { memory, cpuacct: v1("cpuacct"), blkio: v1("blkio") });
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
        let Some(cpuacct) = &self.cpuacct else { return Ok(None) };
        let text = read_text(cpuacct.join("cpuacct.usage"))?;
        let nanoseconds: u64 = text.parse().context("cpuacct.usage is not a number")?;
        Ok(Some(nanoseconds as f64 / 1e9))
    }

    /// User and system time so far, in seconds, where that is counted.
    pub fn cpu_split(&self) -> Result<Option<(f64, f64)>> {
        if self.version == 2 {
            let text = read_text(self.memory.join("cpu.stat"))?;
            let seconds = |name| field(&text, name).map(|usec| usec as f64 / 1e6);
            return Ok(seconds("user_usec").zip(seconds("system_usec")));
        }
        let Some(cpuacct) = &self.cpuacct else { return Ok(None) };
        let text = read_text(cpuacct.join("cpuacct.stat"))?;
        let seconds = |name| field(&text, name).map(ticks_to_seconds);
        Ok(seconds("user").zip(seconds("system")))
    }

    /// From now on what runs in it reads so many bytes and so many times a second from a disk, at most.
    pub fn slow_down(
        &self,
        device: Device,
        bytes_per_s: u64,
        reads_per_s: Option<u64>,
    ) -> Result<()> {
        let blkio =
            self.blkio.as_ref().context("no cgroup controller for disks is mounted (blkio)")?;
        if self.version == 2 {
            let reads = reads_per_s.map_or_else(|| "max".to_owned(), |reads| reads.to_string());
            return write_text(
                blkio.join("io.max"),
                &format!("{device} rbps={bytes_per_s} riops={reads}"),
            );
        }
        let write = |name: &str, value: u64| {
            write_text(blkio.join(format!("blkio.throttle.{name}")), &format!("{device} {value}"))
        };
        write("read_bps_device", bytes_per_s)?;
        reads_per_s.map_or(Ok(()), |reads| write("read_iops_device", reads))
    }

    /// Has what runs in it counted, as [`Cgroup::slow_down`] has too: since Linux 6.10 the first version
    /// counts only for a disk that somebody has limited since boot. No disk reaches this limit.
    pub fn count_reads(&self, device: Device) -> Result<()> {
        match self.version {
            1 => self.slow_down(device, 1 << 50, None),
            _ => Ok(()),
        }
    }

    /// Bytes that what runs in it has read from a disk.
    pub fn disk_read_bytes(&self, device: Device) -> Result<u64> {
        let blkio =
            self.blkio.as_ref().context("no cgroup controller for disks is mounted (blkio)")?;
        if self.version == 2 {
            return Ok(read_bytes_v2(&read_text(blkio.join("io.stat"))?, device));
        }
        Ok(read_bytes_v1(&read_text(blkio.join("blkio.throttle.io_service_bytes"))?, device))
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

/// A disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    /// The disk that a file lies on, of which a partition is a part.
    pub fn of(path: &Path) -> Result<Device> {
        let metadata =
            fs::metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
        let number = std::os::unix::fs::MetadataExt::dev(&metadata);
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let part = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        if !part.exists() {
            bail!("{} is on no disk that could be slowed down", path.display());
        }
        if !part.join("partition").exists() {
            return Ok(Device { major, minor });
        }
        let whole = fs::canonicalize(&part)?.join("../dev");
        let text = read_text(&whole)?;
        let (major, minor) = text.split_once(':').context("a disk without a number")?;
        Ok(Device { major: major.parse()?, minor: minor.parse()? })
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// Of lines like `254:0 Read 4096`.
fn read_bytes_v1(text: &str, device: Device) -> u64 {
    let start = format!("{device} Read ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.parse().ok()).unwrap_or(0)
}

/// Of lines like `254:0 rbytes=4096 wbytes=0`.
fn read_bytes_v2(text: &str, device: Device) -> u64 {
    let start = format!("{device} ");
    text.lines()
        .find_map(|line| {
            let mut words = line.strip_prefix(&start)?.split(' ');
            words.find_map(|word| word.strip_prefix("rbytes=")?.parse().ok())
        })
        .unwrap_or(0)
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
                    ("blkio.throttle.io_service_bytes", "8:1 Read 3\n8:0 Write 5\n8:0 Read 7\n"),
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
                    ("io.stat", "8:1 rbytes=3 wbytes=9\n8:0 wbytes=5 rbytes=7 rios=1\n"),
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
                cpuacct: None,
                blkio: Some(memory.clone()),
                folders: vec![(memory.clone(), undertaking)],
            };
            assert_eq!(cgroup.usage_bytes().unwrap(), 10);
            assert_eq!(cgroup.usage_bytes_peak().unwrap(), Some(20));
            assert_eq!(cgroup.anonymous_bytes().unwrap(), anonymous);
            assert_eq!(cgroup.out_of_memory_count().unwrap(), 2);
            assert_eq!(cgroup.cpu_seconds().unwrap(), (version == 2).then_some(1.5));
            let disk = Device { major: 8, minor: 0 };
            assert_eq!(cgroup.disk_read_bytes(disk).unwrap(), 7);
            assert_eq!(cgroup.disk_read_bytes(Device { major: 9, minor: 0 }).unwrap(), 0);
            cgroup.slow_down(disk, 1000, Some(50)).unwrap();
            cgroup.configure(Some(4096), Swapping::Forbidden).unwrap();
            let read = |name: &str| fs::read_to_string(memory.join(name)).unwrap();
            if version == 1 {
                assert_eq!(read("memory.limit_in_bytes"), "4096");
                assert_eq!(read("memory.swappiness"), "0");
                assert_eq!(read("blkio.throttle.read_bps_device"), "8:0 1000");
                assert_eq!(read("blkio.throttle.read_iops_device"), "8:0 50");
            } else {
                assert_eq!(read("memory.max"), "4096");
                assert_eq!(read("memory.swap.max"), "0");
                assert_eq!(read("io.max"), "8:0 rbps=1000 riops=50");
            }
            cgroup.finish().unwrap();
            assert!(!memory.exists());
        }
        drop(journal);
        fs::remove_dir_all(&root).unwrap();
    }
}
