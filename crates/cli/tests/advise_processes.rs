//! `ramfold advise` about processes of another user's, and of a control group.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::unistd::geteuid;
use serde_json::Value;
use support::{RAMFOLD, text, wait_until};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const AS_NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// 36 MiB, of which a part is used all the time.
const SCRIPT: &str = "
pages = [bytes([i % 251] * 512) * 8 for i in range(8000)]
print(flush=True)
while True: sum(page[5] for page in pages[:1000])
";

/// A Python program that runs until it is dropped.
struct Python(Child);

impl Python {
    fn start(mut command: Command) -> Python {
        let mut child = command.args(["-c", SCRIPT]).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let python = Python(child);
        BufReader::new(stdout).read_line(&mut String::new()).unwrap();
        python
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that another user may use, with a copy of ramfold in it.
fn folder_of_all() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let copy = folder.path().join("ramfold");
    fs::copy(RAMFOLD, &copy).unwrap();
    (folder, copy)
}

fn advise(mut command: Command, home: &Path, arguments: &[&str]) -> Output {
    let homes = ["HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"].map(|name| (name, home));
    command.arg("advise").args(arguments).args(["--duration", "3s", "--json"]).envs(homes);
    command.output().unwrap()
}

fn needs_so_much(ended: &Output) {
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let need_bytes = advice["need_bytes"].as_u64().unwrap();
    assert!(need_bytes > 30 * MIB && need_bytes < 100 * MIB, "{advice}");
    assert!(advice["rows"].as_array().unwrap().len() >= 10, "{advice}");
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn a_user_may_ask_about_processes_of_their_own_alone() {
    if !geteuid().is_root() {
        return eprintln!("SKIPPED: only root can be another user");
    }
    let (folder, copy) = folder_of_all();
    let setpriv = || {
        let mut command = Command::new("setpriv");
        command.args(AS_NOBODY).arg("--");
        command
    };
    let start = |mut command: Command| {
        command.arg("/usr/bin/python3");
        Python::start(command)
    };
    let (own, of_root) = (start(setpriv()), start(Command::new("env")));
    let as_nobody = |pid: &str| {
        let mut command = setpriv();
        command.arg(&copy);
        advise(command, folder.path(), &["--pid", pid])
    };
    needs_so_much(&as_nobody(&own.pid()));
    let refused = as_nobody(&of_root.pid());
    assert_eq!(refused.status.code(), Some(125));
    let said = text(&refused.stderr);
    assert!(said.contains(&of_root.pid()) && said.contains("must belong to the user"), "{said}");
}

/// A control group of version 2, removed at the end.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let mounts = fs::read_to_string("/proc/mounts").unwrap();
        let mut of_version_2 = mounts.lines().filter(|line| line.contains(" cgroup2 "));
        let root = of_version_2.next()?.split(' ').nth(1)?;
        let group = Path::new(root).join(format!("ramfold-test-{}", std::process::id()));
        fs::create_dir(&group).ok().map(|()| Group(group))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until("the control group is empty", || fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn processes_of_a_control_group_are_measured_together() {
    let Some(group) = Group::new() else {
        return eprintln!("SKIPPED: there is no control group of version 2 that may be made");
    };
    let folder = tempfile::tempdir().unwrap();
    let enter =
        format!("echo $$ > {}/cgroup.procs && exec /usr/bin/python3 \"$@\"", group.0.display());
    let start = || {
        let mut command = Command::new("sh");
        command.args(["-c", &enter, "sh"]);
        Python::start(command)
    };
    let _first = start();
    let path = group.0.to_str().unwrap();
    let one = advise(Command::new(RAMFOLD), folder.path(), &["--cgroup", path]);
    needs_so_much(&one);
    let _second = start();
    let two = advise(Command::new(RAMFOLD), folder.path(), &["--cgroup", path]);
    let need = |ended: &Output| {
        let advice: Value = serde_json::from_slice(&ended.stdout).unwrap();
        advice["need_bytes"].as_u64().unwrap()
    };
    assert!(need(&two) > need(&one) + 30 * MIB, "{} and {}", need(&one), need(&two));
}
