//! Real mounts whose server is killed while a thread of it cannot end: it waits in the kernel for
//! an answer of the server itself.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use support::RAMFOLD;
use support::mounted::{Mounted, can_mount, ended_well, is_seen, umount};

/// In a mount namespace of its own, `/dev/fuse` is open to all, as it is on most machines. Root
/// needs no fusectl.
fn kill_while_pages_are_dropped(who: &str, signal: i32) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    // Where others can execute it.
    let program = folder.path().join("ramfold");
    fs::copy(RAMFOLD, &program).unwrap();
    let script = r#"
set -e
cd "$1"
mknod fuse c 10 229; chmod 666 fuse; mount --bind fuse /dev/fuse
umount /sys/fs/fuse/connections 2> /dev/null || :
if [ "$4" = user ]; then mount -t fusectl fusectl /sys/fs/fuse/connections; fi
exec python3 "$2" "$3" "$1" "$4" "$5"
"#;
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/killed_server.py"))
        .arg(program)
        .args([who, &signal.to_string()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    eprintln!("{said}");
}

#[test]
fn readers_of_a_killed_server_get_an_error() {
    if can_mount() {
        kill_while_pages_are_dropped("root", libc::SIGKILL);
    }
}

/// A core dump waits for all threads.
#[test]
fn readers_of_a_server_that_dumps_core_get_an_error() {
    if can_mount() {
        kill_while_pages_are_dropped("root", libc::SIGQUIT);
    }
}

#[test]
fn readers_of_an_ordinary_users_killed_server_get_an_error() {
    if !can_mount() {
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: fusermount3 is not installed (package fuse3)");
        return;
    }
    kill_while_pages_are_dropped("user", libc::SIGKILL);
}

/// The process that a server has started to look after it.
fn guard_of(server: u32) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.find(|process: &u32| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.split_once(" (ramfold-guard) ").is_some_and(|(_, fields)| {
            fields.split(' ').nth(1) == Some(&server.to_string()) && !fields.starts_with('Z')
        })
    })
}

/// Of the memory that the process has to itself, in KiB.
fn private_kib(process: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let lines = rollup.lines().filter_map(|line| line.strip_prefix("Private_Dirty:"));
    lines.map(|line| line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()).sum()
}

#[test]
fn what_guards_a_mount_costs_little_and_ends_with_it() {
    let Some(mut mounted) = Mounted::new() else { return };
    let server = mounted.server.id();
    let mut guard = None;
    is_seen("a process that guards the mount", || {
        guard = guard_of(server);
        guard.is_some()
    });
    let guard = guard.unwrap();
    let has_two_files = || fs::read_dir(format!("/proc/{guard}/fd")).unwrap().count() == 2;
    is_seen("only two open files", has_two_files);
    is_seen("little memory", || private_kib(guard) < 256);
    assert_eq!(fs::read_link(format!("/proc/{guard}/cwd")).unwrap().to_str(), Some("/"));
    let pid = nix::unistd::Pid::from_raw(guard as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    // Still there after what is done next.
    fs::write(mounted.mount("file"), "text").unwrap();
    assert_eq!(guard_of(server), Some(guard));
    umount(&[], &mounted.mount("")).unwrap();
    ended_well(&mut mounted.server);
    assert_eq!(guard_of(server), None);
    mounted.server = support::mounted::serve(&mounted.source(""), &mounted.mount(""));
    let server = mounted.server.id();
    is_seen("another", || guard_of(server).is_some());
    let guard = guard_of(server).unwrap();
    mounted.server.kill().unwrap();
    mounted.server.wait().unwrap();
    // It has another parent now, which may not have waited for it.
    is_seen("its end", || {
        let stat = fs::read_to_string(format!("/proc/{guard}/stat")).unwrap_or_default();
        !stat.contains(" (ramfold-guard) ") || stat.contains(" (ramfold-guard) Z ")
    });
}
