//! fio: finding it, and reading what it prints.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::latency::Latency;
use crate::machine::cgroup::Cgroup;
use crate::machine::host::Host;
use crate::machine::interrupt;
use crate::machine::program::{Program, enter_command, found_in_path};

/// # Errors
/// Unless it can be started.
pub(crate) fn is_here() -> Result<()> {
    let output = Command::new("fio").arg("--version").output();
    let output = output.context("cannot start fio (apt-get install fio)")?;
    ensure!(output.status.success(), "fio --version ended with {}", output.status);
    Ok(())
}

/// Reads fio's program and libraries, 80 MB, from outside of any cgroup that is measured: they are
/// in memory then, and at nobody's cost. Inside, where memory is for a cache, each start would read
/// them from the disk anew and push pages of the cache out.
///
/// # Errors
/// When there is no fio, or one of them cannot be read.
pub(crate) fn read_program() -> Result<()> {
    let program = found_in_path("fio").context("there is no fio in PATH")?;
    // What ldd does: the dynamic linker names a program's libraries instead of starting it.
    let listed = Command::new(&program).env("LD_TRACE_LOADED_OBJECTS", "1").output()?;
    // A program without libraries starts instead, and fails for want of arguments.
    let listed = if listed.status.success() { listed.stdout } else { Vec::new() };
    let listed = String::from_utf8_lossy(&listed);
    let libraries = listed.lines().filter_map(library).map(Path::new);
    for file in libraries.chain([program.as_path()]) {
        fs::read(file).with_context(|| format!("cannot read {}, a part of fio", file.display()))?;
    }
    Ok(())
}

/// The file in a line of the dynamic linker's: `NAME => FILE (ADDRESS)`, or `FILE (ADDRESS)`.
fn library(line: &str) -> Option<&str> {
    line.split_whitespace().find(|word| word.starts_with('/'))
}

/// Runs fio in a cgroup, and returns its first job. (`measure` would end what stays in the cgroup.)
///
/// # Errors
/// When it fails, does not end within the time limit, or the bench is interrupted.
pub(crate) fn run(
    host: &Host,
    cgroup: Option<&Cgroup>,
    arguments: &[String],
    time_limit: Duration,
) -> Result<Value> {
    let mut command = vec!["fio".into(), "--output-format=json".into(), "--thread".into()];
    command.extend(arguments.iter().map(Into::into));
    let program = Program { command, environment: Vec::new() };
    let child = enter_command(host, cgroup, &program)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start fio")?;
    let (pid, started) = (Pid::from_child(&child), Instant::now());
    let waiter = thread::spawn(move || child.wait_with_output());
    let mut killed = false;
    while !waiter.is_finished() {
        thread::sleep(Duration::from_millis(10));
        if !killed && (interrupt::check().is_err() || started.elapsed() > time_limit) {
            killed = true;
            // It may have ended just now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    interrupt::check()?;
    ensure!(!killed, "fio did not end within the time limit");
    let output = waiter.join().map_err(|_| anyhow!("waiting for fio failed"))??;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio ended with {}: {}", output.status, said.trim());
    first_job(&output.stdout)
}

/// The first job in what fio printed with `--output-format=json`.
///
/// # Errors
/// When it is not that.
pub(crate) fn first_job(printed: &[u8]) -> Result<Value> {
    // Notes may precede it.
    let start = printed.iter().position(|&byte| byte == b'{').unwrap_or(0);
    let mut told: Value =
        serde_json::from_slice(&printed[start..]).context("fio told something odd")?;
    Ok(told["jobs"][0].take())
}

/// # Errors
/// When there is no such number.
pub(crate) fn number(value: &Value, what: &str) -> Result<f64> {
    value.as_f64().with_context(|| format!("fio told no {what}"))
}

/// Quantiles of completion times.
///
/// # Errors
/// When fio printed none.
pub(crate) fn latency(direction: &Value) -> Result<Latency> {
    let times = &direction["clat_ns"];
    let quantile = |name: &str| -> Result<u64> {
        Ok(number(&times["percentile"][name], &format!("quantile {name}"))? as u64)
    };
    Ok(Latency {
        p50_ns: quantile("50.000000")?,
        p90_ns: quantile("90.000000")?,
        p99_ns: quantile("99.000000")?,
        p999_ns: quantile("99.900000")?,
        max_ns: number(&times["max"], "longest time")? as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_the_dynamic_linker_says() {
        let said = "\tlinux-vdso.so.1 (0x00007f2df65d9000)\n\t\
                    libz.so.1 => /lib/libz.so.1 (0x00007f2df659a000)\n\t\
                    /lib64/ld-linux-x86-64.so.2 (0x00007f2df65db000)\n";
        let found: Vec<_> = said.lines().filter_map(library).collect();
        assert_eq!(found, ["/lib/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
