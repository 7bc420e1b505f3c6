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
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    folders(&membership, &mounts)
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

/// The folders whose limits apply: the group itself and all above it.
fn folders(membership: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for controller in [Some("memory"), None] {
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
            "0::/a.slice/b.scope\n",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        );
        let want = ["/sys/fs/cgroup/a.slice/b.scope", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(found, want.map(PathBuf::from));
    }

    #[test]
    fn version_1_in_a_container_sees_its_own_part() {
        let found = folders(
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
    fn this_machine_has_memory() {
        assert!(machine_memory_bytes().unwrap() > 1 << 20);
    }
}
