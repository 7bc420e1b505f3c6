//! `ramfold run` as a command: statuses, signals, messages, and what cannot be looked after.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{RAMFOLD, is_root, ramfold, run, stats, text};

/// Debian's, not a wrapper script that may stand in for it in PATH.
const PYTHON: &str = "/usr/bin/python3";

/// A program that needs 60 MB and says whether it read back what it wrote.
const HOG: &str = "
import sys
pages = [bytes([i % 7]) * 4000 for i in range(15000)]
for _ in range(3):
    for i, page in enumerate(pages):
        assert page == bytes([i % 7]) * 4000
print('right')
";

#[test]
fn the_exit_status_is_the_programs_own() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143)] {
        let ended = run(&mut ramfold(["--", "sh", "-c", script]));
        assert_eq!(ended.output.status.code(), Some(status), "{script}");
        assert_eq!(text(&ended.output.stderr), "", "{script}");
    }
}

#[test]
fn ramfolds_own_failures_have_their_own_status() {
    let status = |arguments: &[&str]| run(&mut ramfold(arguments)).output.status.code();
    assert_eq!(status(&["--", "no-such-program-anywhere"]), Some(127));
    assert_eq!(status(&["--", "/etc/passwd"]), Some(126));
    assert_eq!(status(&["--memory", "12Q", "--", "true"]), Some(2));
    assert_eq!(status(&["--codec", "none", "--", "true"]), Some(2));
    assert_eq!(status(&["--stats", "/no/such/folder/file", "--", "true"]), Some(125));
}

#[test]
fn nothing_is_printed_and_stats_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let path = file.to_str().unwrap();
    let ended = run(&mut ramfold(["--memory", "30M", "--stats", path, "--", PYTHON, "-c", HOG]));
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert_eq!(text(&ended.output.stderr), "");
    let stats = stats(&file);
    for field in [
        "memory_cap_bytes",
        "cost_bytes_max",
        "resident_bytes",
        "pool_used_bytes",
        "pool_total_bytes",
        "metadata_bytes",
        "staging_bytes",
        "pages_swapped_out",
        "pages_swapped_in",
        "pages_same_filled",
        "pages_incompressible",
        "faults",
        "fault_ns_p50",
        "fault_ns_p99",
        "compressed_bytes",
        "codec",
        "over_cap_bytes_max",
    ] {
        assert!(!stats[field].is_null(), "{field} is missing");
    }
    assert!(stats["pages_swapped_out"].as_u64().unwrap() > 1000, "{stats}");
    assert!(stats["faults"].as_u64().unwrap() > 1000, "{stats}");
    let cap = stats["memory_cap_bytes"].as_u64().unwrap();
    assert_eq!(cap, 30 << 20);
}

#[test]
fn the_cap_holds_while_the_program_grows_as_fast_as_it_can() {
    let script = "
blocks = [bytes([i % 7]) * 4000 for i in range(60000)]
print(sum(block[17] for block in blocks))
";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let path = file.to_str().unwrap();
    let ended =
        run(&mut ramfold(["--memory", "120M", "--stats", path, "--", PYTHON, "-c", script]));
    assert_eq!(text(&ended.output.stdout), "179994\n");
    let stats = stats(&file);
    let over = stats["over_cap_bytes_max"].as_u64().unwrap();
    assert!(over <= (120 << 20) / 50, "{over} bytes over: {stats}");
}

#[test]
fn every_codec_works() {
    for codec in ["lz4", "zstd", "zstd-3", "wkdm", "pbpm"] {
        let ended =
            run(&mut ramfold(["--memory", "40M", "--codec", codec, "--", PYTHON, "-c", HOG]));
        assert_eq!(
            text(&ended.output.stdout),
            "right\n",
            "{codec}: {}",
            text(&ended.output.stderr)
        );
    }
}

#[test]
fn below_the_cap_nothing_is_registered() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let path = file.to_str().unwrap();
    run(&mut ramfold(["--memory", "1G", "--stats", path, "--", PYTHON, "-c", HOG]));
    let stats = stats(&file);
    assert_eq!(stats["processes_started"], 1, "{stats}");
    assert_eq!(stats["processes_activated"], 0, "{stats}");
    assert_eq!(stats["faults"], 0, "{stats}");
}

#[test]
fn a_preload_of_the_callers_stays() {
    let mut command = ramfold(["--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("LD_PRELOAD", "/usr/lib/none.so");
    let ended = run(&mut command);
    let printed = text(&ended.output.stdout);
    let (first, second) = printed.trim().split_once(':').unwrap();
    assert_eq!(first, "/usr/lib/none.so");
    assert!(second.contains("agent-"), "{second}");
}

#[test]
fn a_static_program_runs_without_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.c");
    let program = folder.path().join("a");
    fs::write(&source, "#include <stdio.h>\nint main(){puts(\"right\");return 3;}\n").unwrap();
    let compiled = Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program).status();
    assert!(compiled.unwrap().success());
    let ended = run(&mut ramfold(["--memory", "10M", "--", program.to_str().unwrap()]));
    assert_eq!(ended.output.status.code(), Some(3));
    assert_eq!(text(&ended.output.stdout), "right\n");
    assert!(text(&ended.output.stderr).contains("statically linked"));
}

#[test]
fn a_setuid_program_runs_without_and_says_so() {
    if !is_root() {
        eprintln!("not root: cannot make a program of somebody else's");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    let status = Command::new("chmod").arg("4755").arg(&program).status();
    assert!(status.unwrap().success());
    let ended = run(&mut ramfold(["--memory", "10M", "--", program.to_str().unwrap(), "-u"]));
    assert_eq!(ended.output.status.code(), Some(0));
    assert!(text(&ended.output.stderr).contains("gains privileges"));
}

#[test]
fn without_permission_it_says_how_to_get_it_and_the_program_runs() {
    if !is_root() {
        eprintln!("not root: cannot become somebody without permission");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .unwrap();
    let copy = folder.path().join("ramfold");
    fs::copy(support::RAMFOLD, &copy).unwrap();
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["run", "--memory", "30M", "--", PYTHON, "-c", HOG])
        .env("HOME", folder.path())
        .env_remove("XDG_CACHE_HOME");
    let ended = run(&mut command);
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert!(message.contains("sudo ramfold doctor --fix"), "{message}");
    assert!(message.contains("vm.unprivileged_userfaultfd"), "{message}");
}

#[test]
fn a_cap_too_small_is_refused_and_the_program_runs() {
    let ended = run(&mut ramfold(["--memory", "1M", "--", PYTHON, "-c", HOG]));
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert!(message.contains("runs without ramfold"), "{message}");
}

#[test]
fn data_that_does_not_compress_is_said_once_and_is_right() {
    let script = "
import os, hashlib, time
blocks = [os.urandom(4096) for _ in range(12000)]
first = [hashlib.md5(b).digest() for b in blocks]
end = time.monotonic() + 12
while time.monotonic() < end:
    assert first == [hashlib.md5(b).digest() for b in blocks]
print('right')
";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let path = file.to_str().unwrap();
    let ended = run(&mut ramfold(["--memory", "30M", "--stats", path, "--", PYTHON, "-c", script]));
    assert_eq!(text(&ended.output.stdout), "right\n");
    let message = text(&ended.output.stderr);
    assert_eq!(message.matches("cannot be held").count(), 1, "{message}");
    assert!(stats(&file)["over_cap_bytes_max"].as_u64().unwrap() > 10 << 20);
}

#[test]
fn signals_reach_the_program() {
    let mut child =
        ramfold(["--", "sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    wait_for_a_line(&mut child);
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn sigusr2_writes_stats_while_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("stats.json");
    let mut child =
        ramfold(["--stats", file.to_str().unwrap(), "--", "sh", "-c", "echo up; sleep 1000"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    wait_for_a_line(&mut child);
    let kill = |signal: &str| {
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    };
    kill("-USR2");
    for _ in 0..1000 {
        if file.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(stats(&file)["memory_cap_bytes"].as_u64().unwrap() > 0);
    kill("-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn the_program_survives_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let result = folder.path().join("result");
    let script = format!("print('up', flush=True)\n{HOG}\nopen({result:?}, 'w').write('right')");
    let mut child = ramfold(["--memory", "30M", "--", PYTHON, "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_a_line(&mut child);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    for _ in 0..3000 {
        if fs::read_to_string(&result).is_ok_and(|text| text == "right") {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the program did not finish by itself");
}

fn wait_for_a_line(child: &mut std::process::Child) {
    use std::io::{BufRead, BufReader};
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
}

#[test]
fn bench_measures_this_ramfold() {
    // `make test` builds ramfold-bench beside ramfold.
    let output = Command::new(RAMFOLD)
        .args(["bench", "run", "--peer", "none,ramfold", "--workload", "random-rw,zipf-ro"])
        .args(["--size", "64M", "--scale", "0.1", "--runs", "1", "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows.iter().filter(|row| row["peer"] == "ramfold") {
        assert_eq!(row["output_right"], true, "{row}");
        assert!(row["ramfold"]["pages_swapped_out"].as_u64().unwrap() > 0, "{row}");
        let cap = row["ramfold"]["memory_cap_bytes"].as_u64().unwrap();
        assert!(cap <= row["need_bytes"].as_u64().unwrap() * 51 / 100, "{row}");
    }
}
