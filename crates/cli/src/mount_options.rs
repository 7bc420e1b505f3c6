//! Options as mount(8) and fstab(5) have them, and being called by them.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::str::FromStr;

use rustix::fs::StatVfsMountFlags;

use crate::size::{Size, SizeError};

/// mount(8) calls the program of this name to mount the type fuse.ramfold.
const HELPER: &str = "mount.fuse.ramfold";

/// One of the options that stand in a row behind `-o`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MountOption {
    Restriction(StatVfsMountFlags),
    AllowOther,
    Memory(Size),
    /// It says what is so anyway, or is for mount(8) itself.
    Nothing,
}

impl FromStr for MountOption {
    type Err = String;

    fn from_str(text: &str) -> Result<MountOption, String> {
        if let Some(size) = text.strip_prefix("memory=") {
            return size
                .parse()
                .map(MountOption::Memory)
                .map_err(|error: SizeError| error.to_string());
        }
        Ok(match text {
            "ro" => MountOption::Restriction(StatVfsMountFlags::RDONLY),
            "nosuid" => MountOption::Restriction(StatVfsMountFlags::NOSUID),
            "nodev" => MountOption::Restriction(StatVfsMountFlags::NODEV),
            "noexec" => MountOption::Restriction(StatVfsMountFlags::NOEXEC),
            "noatime" => MountOption::Restriction(StatVfsMountFlags::NOATIME),
            "allow_other" => MountOption::AllowOther,
            "rw" | "suid" | "dev" | "exec" | "atime" | "relatime" | "defaults" | "auto"
            | "noauto" | "nofail" | "nouser" | "_netdev" => MountOption::Nothing,
            _ if text.starts_with("x-") || text.is_empty() => MountOption::Nothing,
            _ => {
                return Err("the options are ro, nosuid, nodev, noexec, noatime, allow_other and \
                            memory=SIZE"
                    .to_owned());
            }
        })
    }
}

/// What the program was called with; by mount(8), what stands for that.
pub(crate) fn arguments() -> Vec<OsString> {
    let given: Vec<OsString> = std::env::args_os().collect();
    let called = given.first().map(Path::new).and_then(Path::file_name);
    if called == Some(OsStr::new(HELPER)) { of_helper(&given[1..]) } else { given }
}

/// `SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS] [-t TYPE]` (mount(8), external helpers).
fn of_helper(given: &[OsString]) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["ramfold", "mount", "--daemon"].map(OsString::from).into();
    let mut given = given.iter();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-o") => {
                arguments.push(argument.clone());
                arguments.extend(given.next().cloned());
            }
            Some("-t" | "-N") => drop(given.next()),
            // Says more, does not write to mtab, passes over unknown options.
            Some("-v" | "-n" | "-s") => {}
            _ => arguments.push(argument.clone()),
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_mount() {
        let option = |text: &str| text.parse::<MountOption>();
        assert_eq!(option("ro"), Ok(MountOption::Restriction(StatVfsMountFlags::RDONLY)));
        assert_eq!(option("memory=2G"), Ok(MountOption::Memory("2G".parse().unwrap())));
        assert_eq!(option("x-systemd.automount"), Ok(MountOption::Nothing));
        for wrong in ["memory=", "memory=much", "size=1G", "RO"] {
            assert!(option(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_call_by_mount_is_one_of_mount() {
        let given = ["/srv/data", "/mnt", "-n", "-o", "rw,memory=1G", "-t", "fuse.ramfold"];
        let expected = ["ramfold", "mount", "--daemon", "/srv/data", "/mnt", "-o", "rw,memory=1G"];
        assert_eq!(of_helper(&given.map(OsString::from)), expected.map(OsString::from));
    }
}
