//! A cgroup for one measured program, version 1 or 2 of the memory controller.

mod disk;
mod hierarchy;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub(crate) use disk::Device;
pub(crate) use hierarchy::Hierarchy;

use super::journal::Undertaking;
use super::proc::{field, read_text, write_text};
use ramfold_sys::processors::ticks_to_seconds;

/// What a program may do when its cgroup is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swapping {
    Forbidden,
    Allowed,
}

/// A cgroup of ours; removed, with whatever still runs in it, on drop.
pub(crate) struct Cgroup {
    version: u8,
    memory: PathBuf,
    /// In version 1 where CPU time is counted.
    cpuacct: Option<PathBuf>,
    /// Where input and output are counted and slowed down.
    blkio: Option<PathBuf>,
    folders: Vec<(PathBuf, Undertaking)>,
}

impl Cgroup {
    /// Folders a process has to join.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().map(|(path, _)| path.as_path())
    }

    /// Limits memory and says whether pages may be swapped. Without a limit
    /// only the swapping is set.
    pub(crate) fn configure(&self, limit_bytes: Option<u64>, swapping: Swapping) -> Result<()> {
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
    pub(crate) fn usage_bytes(&self) -> Result<u64> {
        self.number(["memory.usage_in_bytes", "memory.current"])
    }

    /// The most bytes that were charged at once: anonymous and file pages, and
    /// kernel memory such as page tables. `None` before Linux 5.19 (version 2).
    pub(crate) fn usage_bytes_peak(&self) -> Result<Option<u64>> {
        if self.version == 2 && !self.memory.join("memory.peak").exists() {
            return Ok(None);
        }
        self.number(["memory.max_usage_in_bytes", "memory.peak"]).map(Some)
    }

    /// Resident anonymous bytes now.
    pub(crate) fn anonymous_bytes(&self) -> Result<u64> {
        let text = read_text(self.memory.join("memory.stat"))?;
        let name = if self.version == 1 { "total_rss" } else { "anon" };
        field(&text, name).with_context(|| format!("no '{name}' in memory.stat"))
    }

    /// User and system time of everything that ran in it, in seconds; `None`
    /// where nothing counts it.
    pub(crate) fn cpu_seconds(&self) -> Result<Option<f64>> {
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
    pub(crate) fn cpu_split(&self) -> Result<Option<(f64, f64)>> {
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

    /// How many processes the kernel killed for want of memory.
    pub(crate) fn out_of_memory_count(&self) -> Result<u64> {
        let name = if self.version == 1 { "memory.oom_control" } else { "memory.events" };
        Ok(field(&read_text(self.memory.join(name))?, "oom_kill").unwrap_or(0))
    }

    /// Removes it, killing what still runs in it.
    pub(crate) fn finish(self) -> Result<()> {
        self.folders.into_iter().try_for_each(|(_, undertaking)| undertaking.finish())
    }

    fn number(&self, [v1, v2]: [&str; 2]) -> Result<u64> {
        let path = self.memory.join(if self.version == 1 { v1 } else { v2 });
        let text = read_text(&path)?;
        text.parse().with_context(|| format!("{}: '{text}' is not a number", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::journal::{Journal, Setting};
    use super::*;

    pub(super) fn tree(name: &str) -> PathBuf {
        let root =
            std::env::temp_dir().join(format!("ramfold-cgroup-{}-{name}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        root
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
