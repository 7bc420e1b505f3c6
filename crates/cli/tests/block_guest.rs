//! Block devices of the kernel in guests, whose kernel has nbd and ublk: swap, file systems, and
//! servers that are killed.
//!
//! `scripts/guest` starts a guest with a script and this test program itself, which serves devices
//! and checks memory in there.

#[path = "block_guest/exercise.rs"]
mod exercise;
#[path = "block_guest/mapped.rs"]
mod mapped;
#[path = "block_guest/roles.rs"]
mod roles;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names what this program is to do in a guest.
const ROLE: &str = "GUEST_ROLE";
/// Exit status of `scripts/guest` where the machine lacks something.
const LACKING: i32 = 77;

/// Runs a script in a guest. Panics when it fails.
fn run_in_guest(options: &[&str], script: &str, tools: &[&str]) {
    let found: Vec<_> = tools.iter().filter_map(|tool| path_of(tool)).collect();
    if found.len() < tools.len() {
        return eprintln!("SKIPPED: not all of {tools:?} are here (scripts/setup test-all)");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("script");
    fs::write(&path, [include_str!("block_guest/common.sh"), script].concat()).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    let this = std::env::current_exe().unwrap();
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/guest"))
        .args(["--seconds", "600"])
        .args(options)
        .arg(&path)
        .arg(format!("{}=/guest/program", this.display()))
        .arg(format!("{}=/guest/ramfold", env!("CARGO_BIN_EXE_ramfold")))
        .args(found)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(LACKING) {
        return eprintln!("{errors}");
    }
    println!("{said}");
    assert!(output.status.success(), "{}\n{errors}", output.status);
}

fn path_of(tool: &str) -> Option<String> {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    folders.iter().map(|folder| format!("{folder}/{tool}")).find(|path| Path::new(path).exists())
}

/// In a guest; nothing anywhere else.
#[test]
fn plays_its_role() {
    if let Ok(role) = std::env::var(ROLE) {
        roles::play(&role);
    }
}

#[test]
fn an_exercise_knows_a_wrong_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    exercise::exercise(&path, 3, 100);
    exercise::check(&path, 3, 100);
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(std::panic::catch_unwind(|| exercise::check(&path, 3, 100)).is_err());
}

/// Each takes one processor: `make test-all` runs two at a time, and leaves them out of those that
/// are run one at a time.
mod in_guests {
    use super::run_in_guest;

    /// `ramfold block --swap` where memory is short: programs have 100 MiB of this guest, beside
    /// what the server keeps of them; in RAM alone, and before a disk. `RAMFOLD_GUEST_SEED` has the
    /// program do something else.
    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn swap_holds_a_program_that_memory_does_not() {
        let seed = std::env::var("RAMFOLD_GUEST_SEED").unwrap_or_else(|_| "7".to_owned());
        let seed: u64 = seed.parse().unwrap();
        let script = include_str!("block_guest/swap.sh");
        for words in [
            "HOG_MIB=112 OPTIONS='--device nbd --size 256M --memory 64M --codec auto'",
            "HOG_MIB=200 OPTIONS='--device ublk --backing /dev/vda --memory 16M'",
        ] {
            let script = format!("{words} SEED={seed}\n{script}");
            let modules = "nbd,ublk_drv,virtio_blk";
            let options = ["--memory", "192M", "--disk", "512M", "--modules", modules];
            run_in_guest(&options, &script, &[]);
        }
    }

    /// Programs get SIGBUS for what was swapped out, and no wrong byte; the next server cleans up.
    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn a_killed_server_of_swap_ends_who_needs_its_pages() {
        let script = include_str!("block_guest/killed_swap.sh");
        for device in ["ublk", "nbd"] {
            run_in_guest(&["--memory", "176M"], &format!("DEVICE={device}\n{script}"), &[]);
        }
    }

    /// Paper 004's memeater (Figure 7): 16 MB without CRAMES, 33 with it.
    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn a_program_that_takes_all_there_is_gets_twice_as_much() {
        run_in_guest(&["--memory", "176M"], include_str!("block_guest/memeater.sh"), &[]);
    }

    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn a_file_system_on_ublk_survives_its_killed_server() {
        run_in_guest(&[], include_str!("block_guest/killed_ublk.sh"), &["mke2fs", "e2fsck"]);
    }

    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn a_killed_server_of_nbd_costs_no_byte_that_was_synced() {
        run_in_guest(&[], include_str!("block_guest/killed_nbd.sh"), &["mke2fs", "e2fsck"]);
    }

    /// `ramfold block --backing --device ublk` under ext4.
    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn a_killed_server_that_writes_through_is_followed_by_another() {
        run_in_guest(&[], include_str!("block_guest/takeover.sh"), &["mke2fs", "e2fsck"]);
    }

    /// Programs that change files at random on xfs, whose server is killed, and on btrfs.
    #[test]
    #[ignore = "slow: make test-all runs it"]
    fn file_systems_have_what_programs_wrote() {
        let tools = ["mkfs.xfs", "xfs_repair", "mkfs.btrfs", "btrfs"];
        let modules = ["--modules", "nbd,ublk_drv,xfs,btrfs"];
        run_in_guest(&modules, include_str!("block_guest/file_systems.sh"), &tools);
    }
}
