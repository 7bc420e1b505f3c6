//! Memory limits around the process: control groups of either version, and the machine's RAM.

use std::fs;
use std::path::{Path, PathBuf};

/// A control group with a limit on memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// The limit, in bytes.
    pub bytes: u64,
    folder: PathBuf,
}

/// Of the control groups this process is in, the one with the tightest memory limit; `None` when
/// there is none (or none that can be read).
pub fn tightest() -> Option<Limited> {
    tightest_by("/proc/self/cgroup")
}

/// The same for another process.
pub fn tightest_of(pid: u32) -> Option<Limited> {
    tightest_by(&format!("/proc/{pid}/cgroup"))
}

/// The processor time that the control groups of a process leave it, in processors; `None` where
/// there is no limit.
pub fn processors_of(pid: u32) -> Option<f64> {
    let membership = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    folders("cpu", &membership, &mounts)
        .iter()
        .filter_map(|folder| processors_in(folder))
        .min_by(f64::total_cmp)
}

fn processors_in(folder: &Path) -> Option<f64> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.to_owned(), period.to_owned())
        }
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    // No limit is "max" or -1.
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    Some(quota as f64 / period as f64)
}

fn tightest_by(membership: &str) -> Option<Limited> {
    let membership = fs::read_to_string(membership).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    tightest_in(folders("memory", &membership, &mounts))
}

fn tightest_in(folders: impl IntoIterator<Item = PathBuf>) -> Option<Limited> {
    folders
        .into_iter()
        .filter_map(|folder| Some(Limited { bytes: limit_in(&folder)?, folder }))
        .min_by_key(|limited| limited.bytes)
}

/// The tightest memory limit of the control groups this process is in, in bytes.
pub fn memory_limit_bytes() -> Option<u64> {
    tightest().map(|limited| limited.bytes)
}

impl Limited {
    /// File pages of the group that had to be read again soon after they were dropped, ever
    /// (`workingset_refault_file`, Linux 5.9). They say that the group has too little memory left
    /// for files.
    pub fn refaulted_file_pages(&self) -> Option<u64> {
        let text = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        // Version 1 counts groups below under another name; version 2 always counts them.
        ["total_workingset_refault_file ", "workingset_refault_file "].iter().find_map(|name| {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
        })
    }
}

/// RAM of the machine in bytes.
///
/// # Errors
/// When `/proc/meminfo` cannot be read or is not what it should be.
pub fn machine_memory_bytes() -> std::io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok()
        })
        .map(|kibibytes: u64| kibibytes * 1024)
        .ok_or_else(|| std::io::Error::other("/proc/meminfo has no MemTotal in kB"))
}

/// A control group that this process is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its folder. It may be missing in a container that sees another part of the hierarchy.
    pub folder: PathBuf,
    /// Where the hierarchy is mounted.
    pub mount_point: PathBuf,
}

/// The groups that this process is in, one for each mount of the hierarchy: of a controller of
/// version 1, or of version 2 where none is named. `membership` is `/proc/self/cgroup`, `mounts` is
/// `/proc/self/mountinfo`.
pub fn groups(controller: Option<&str>, membership: &str, mounts: &str) -> Vec<Group> {
    let path_of = |line: &str| {
        // "0::/user.slice" (version 2) or "7:memory:/docker/abc" (version 1).
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = match controller {
            Some(name) => controllers.split(',').any(|one| one == name),
            None => number == "0" && controllers.is_empty(),
        };
        fits.then(|| PathBuf::from(path))
    };
    let mut groups = Vec::new();
    for path in membership.lines().filter_map(path_of) {
        for (root, mount_point) in mounts.lines().filter_map(|line| mount(line, controller)) {
            // A container may see only its own part of the hierarchy.
            let inside = path.strip_prefix(root).unwrap_or(&path);
            let inside = inside.strip_prefix("/").unwrap_or(inside);
            // Joined with nothing, a path would end in a slash.
            let at_root = inside.as_os_str().is_empty();
            let folder = if at_root { mount_point.clone() } else { mount_point.join(inside) };
            groups.push(Group { folder, mount_point });
        }
    }
    groups
}

impl Group {
    /// The group of this path: a folder, or the part of one below a mount of the hierarchy, as
    /// `/proc/PID/cgroup` has it. `mounts` is `/proc/self/mountinfo`.
    pub fn find(path: &Path, mounts: &str) -> Option<Group> {
        let mounted: Vec<(&str, PathBuf)> = [Some("memory"), None]
            .iter()
            .flat_map(|controller| mounts.lines().filter_map(|line| mount(line, *controller)))
            .collect();
        let is_group = |folder: &Path| folder.join("cgroup.procs").is_file();
        // The folder itself, of any hierarchy of version 1 too, which has processes if no limit.
        let as_it_is = [path.to_owned(), Path::new("/sys/fs/cgroup").join(path)];
        if let Some(folder) = as_it_is.into_iter().find(|folder| is_group(folder)) {
            let folder = folder.canonicalize().unwrap_or(folder);
            let mounts = mounted.iter().map(|(_, mount_point)| mount_point);
            let mount_point = mounts.filter(|mount| folder.starts_with(mount)).max();
            let mount_point = mount_point.unwrap_or(&folder).clone();
            return Some(Group { folder, mount_point });
        }
        mounted.into_iter().find_map(|(root, mount_point)| {
            let inside = path.strip_prefix(root).unwrap_or(path);
            let inside = inside.strip_prefix("/").unwrap_or(inside);
            let folder = mount_point.join(inside);
            is_group(&folder).then_some(Group { folder, mount_point })
        })
    }

    /// The processes in it and in all groups below, by their numbers. A group that is removed
    /// meanwhile has none.
    pub fn processes(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = Vec::new();
        let mut folders = vec![self.folder.clone()];
        while let Some(folder) = folders.pop() {
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            // 0 is a process of a namespace that this one does not see.
            pids.extend(
                text.lines().filter_map(|line| line.parse().ok()).filter(|&pid: &u32| pid != 0),
            );
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|it| it.is_dir());
            folders.extend(entries.filter(is_folder).map(|entry| entry.path()));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The tightest memory limit of the group and of those above it.
    pub fn limit_bytes(&self) -> Option<u64> {
        let above =
            self.folder.ancestors().take_while(|above| above.starts_with(&self.mount_point));
        tightest_in(above.map(Path::to_owned)).map(|limited| limited.bytes)
    }

    /// Anonymous memory of the group and of those below, swapped out or not, in bytes: each page
    /// once, whoever shares it. `None` where the kernel does not count it.
    pub fn anonymous_bytes(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.folder.join("memory.stat")).ok()?;
        let value = |name: &str| {
            stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        // Version 1 counts groups below under another name; version 2 always counts them.
        let anonymous = value("total_rss ").or_else(|| value("anon "))?;
        let swapped = value("total_swap ").or_else(|| {
            let file = self.folder.join("memory.swap.current");
            fs::read_to_string(file).ok()?.trim().parse().ok()
        });
        Some(anonymous + swapped.unwrap_or(0))
    }
}

/// The folders whose limits of a controller apply: the group itself and all above it.
fn folders(controller: &str, membership: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for controller in [Some(controller), None] {
        for Group { folder, mount_point } in groups(controller, membership, mounts) {
            let above = folder.ancestors().take_while(|above| above.starts_with(&mount_point));
            folders.extend(above.map(Path::to_owned));
        }
    }
    folders
}

/// Root and mount point of a line of mountinfo that is the hierarchy of that controller, or version
/// 2.
fn mount<'a>(line: &'a str, controller: Option<&str>) -> Option<(&'a str, PathBuf)> {
    let (before, after) = line.split_once(" - ")?;
    let mut kind = after.split(' ');
    let fits = match (kind.next()?, controller) {
        ("cgroup2", None) => true,
        ("cgroup", Some(name)) => kind.nth(1)?.split(',').any(|option| option == name),
        _ => false,
    };
    if !fits {
        return None;
    }
    let mut fields = before.split(' ').skip(3);
    Some((fields.next()?, PathBuf::from(fields.next()?)))
}

fn limit_in(folder: &Path) -> Option<u64> {
    // Version 1 says "no limit" with a huge number.
    const NO_LIMIT: u64 = 1 << 60;
    ["memory.max", "memory.high", "memory.limit_in_bytes"]
        .iter()
        .filter_map(|file| fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok())
        .filter(|&limit: &u64| limit < NO_LIMIT)
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_2_counts_every_level() {
        let found = folders(
            "memory",
            "0::/a.slice/b.scope\n",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        );
        let want = ["/sys/fs/cgroup/a.slice/b.scope", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(found, want.map(PathBuf::from));
    }

    #[test]
    fn version_1_in_a_container_sees_its_own_part() {
        let found = folders(
            "memory",
            "7:memory:/docker/abc\n3:cpu:/docker/abc\n0::/\n",
            "41 30 0:36 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
             42 30 0:37 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        );
        assert_eq!(found, [PathBuf::from("/sys/fs/cgroup/memory")]);
    }

    #[test]
    fn limits_are_read_and_no_limit_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(limit_in(folder.path()), None);
        fs::write(folder.path().join("memory.max"), "max\n").unwrap();
        fs::write(folder.path().join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(limit_in(folder.path()), None);
        fs::write(folder.path().join("memory.max"), "1048576\n").unwrap();
        fs::write(folder.path().join("memory.high"), "524288\n").unwrap();
        assert_eq!(limit_in(folder.path()), Some(524_288));
    }

    #[test]
    fn refaults_are_read_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let limited = Limited { bytes: 1, folder: folder.path().to_owned() };
        assert_eq!(limited.refaulted_file_pages(), None);
        let file = folder.path().join("memory.stat");
        fs::write(&file, "anon 5\nworkingset_refault_file 17\n").unwrap();
        assert_eq!(limited.refaulted_file_pages(), Some(17));
        let text = "workingset_refault_file 3\ntotal_workingset_refault_file 20\n";
        fs::write(&file, text).unwrap();
        assert_eq!(limited.refaulted_file_pages(), Some(20));
    }

    #[test]
    fn processors_are_read_in_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        assert_eq!(processors_in(folder.path()), None);
        write("cpu.cfs_period_us", "100000\n");
        for (quota, processors) in [("-1\n", None), ("50000\n", Some(0.5))] {
            write("cpu.cfs_quota_us", quota);
            assert_eq!(processors_in(folder.path()), processors);
        }
        for (text, processors) in
            [("max 100000\n", None), ("150000 100000\n", Some(1.5)), ("5 0\n", None), ("", None)]
        {
            write("cpu.max", text);
            assert_eq!(processors_in(folder.path()), processors);
        }
        assert!(processors_of(std::process::id()).is_none_or(|processors| processors > 0.0));
    }

    /// A hierarchy of version 2 that is a folder, and the line of its mount.
    fn hierarchy() -> (tempfile::TempDir, String) {
        let root = tempfile::tempdir().unwrap();
        let [outer, inner] = ["a.slice", "a.slice/b c"].map(|name| root.path().join(name));
        fs::create_dir_all(&inner).unwrap();
        for folder in [root.path(), &outer, &inner] {
            fs::write(folder.join("cgroup.procs"), "").unwrap();
        }
        let mount = format!("30 23 0:26 / {} rw - cgroup2 x rw\n", root.path().display());
        (root, mount)
    }

    #[test]
    fn a_group_is_found_by_its_folder_and_by_its_path() {
        let (root, mounts) = hierarchy();
        let root = root.path();
        for path in [root.join("a.slice"), "/a.slice".into(), "a.slice".into()] {
            let found = Group::find(&path, &mounts).unwrap();
            let expected = Group { folder: root.join("a.slice"), mount_point: root.to_owned() };
            assert_eq!(found, expected, "{path:?}");
        }
        for path in ["b.slice", "/", "", "/etc", "/sys/fs/cgroup/nothing"] {
            let found = Group::find(Path::new(path), &mounts);
            let is_root = path.len() <= 1;
            assert!(
                found.is_none_or(|found| is_root && found.mount_point == found.folder),
                "{path}"
            );
        }
    }

    #[test]
    fn a_group_has_the_processes_and_limits_around_it() {
        let (root, mounts) = hierarchy();
        let write = |file: &str, text: &str| fs::write(root.path().join(file), text).unwrap();
        let group = Group::find(Path::new("a.slice"), &mounts).unwrap();
        assert_eq!((group.processes(), group.limit_bytes()), (vec![], None));
        assert_eq!(group.anonymous_bytes(), None);
        write("a.slice/cgroup.procs", "7\n0\n");
        write("a.slice/b c/cgroup.procs", "9\n7\n3\n");
        write("a.slice/memory.max", "max\n");
        write("memory.max", "4096000\n");
        write("a.slice/memory.stat", "anon 50\nfile 70\n");
        assert_eq!((group.processes(), group.limit_bytes()), (vec![3, 7, 9], Some(4_096_000)));
        assert_eq!(group.anonymous_bytes(), Some(50));
        write("a.slice/memory.swap.current", "8\n");
        assert_eq!(group.anonymous_bytes(), Some(58));
        write("a.slice/memory.stat", "rss 1\ntotal_rss 40\ntotal_swap 2\n");
        assert_eq!(group.anonymous_bytes(), Some(42));
    }

    #[test]
    fn the_limit_around_a_process_is_that_around_this_one() {
        assert_eq!(tightest_of(std::process::id()), tightest());
        assert_eq!(tightest_of(u32::MAX >> 1), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(machine_memory_bytes().unwrap() > 1 << 20);
    }
}
