//! A control group: all processes in it and in the groups below.

use std::fs;
use std::path::Path;

use ramfold_sys::cgroup::Group;

use super::watch::{Target, Watch};
use super::{Error, Options, empty, machine, read_error};
use crate::observation::{Observation, Subject};
use crate::progress::Progress;

/// Measures the control group at a folder, at a path below `/sys/fs/cgroup`, or at one as
/// `/proc/PID/cgroup` has it.
///
/// # Errors
/// When there is no such group, nobody in it can be looked at, or all end too early.
pub fn measure(path: &Path, options: &Options, progress: &Progress) -> Result<Observation, Error> {
    let mountinfo = Path::new("/proc/self/mountinfo");
    let mounts = fs::read_to_string(mountinfo).map_err(read_error(mountinfo))?;
    let group = Group::find(path, &mounts).ok_or(Error::NoGroup { path: path.to_owned() })?;
    let own = std::process::id();
    if group.processes().iter().all(|&pid| pid == own) {
        return Err(Error::EmptyGroup { path: group.folder });
    }
    let machine = machine(1, group.limit_bytes())?;
    let folder = group.folder.display().to_string();
    let mut observation = empty(Subject::Group(folder.clone()), machine);
    let target = Target {
        name: format!("the control group {folder}"),
        is_group: true,
        list: &|| group.processes(),
        anonymous_bytes: &|| group.anonymous_bytes(),
    };
    observation.not_seen.push("files and shared memory are not in here".to_owned());
    Watch::new(target, options, progress).run(&mut observation)?;
    Ok(observation)
}
