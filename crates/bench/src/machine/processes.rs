//! Processes of a program: which there are, and what they have used.

use std::fs;
use std::iter;

use anyhow::{Context, Result};
use rustix::process::Pid;

use super::proc::{field, read_text};
use ramfold_sys::other_process::with_descendants;
use ramfold_sys::processors::ticks_to_seconds;

/// A process, the others of the group that it leads, and the descendants of all of them.
pub(crate) fn family(leader: Pid) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids =
        processes.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    let others = ids.filter(|pid| group(*pid) == Some(leader));
    let first = iter::once(leader).chain(others).map(number);
    with_descendants(first).into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())).collect()
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// The group that a process is in.
fn group(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Pid::from_raw(fields_behind_the_name(&stat)?.nth(2)?.parse().ok()?)
}

/// The fields of /proc/PID/stat from the third on: state, parent, group ... The second is the name
/// in parentheses, in which there may be anything.
fn fields_behind_the_name(stat: &str) -> Option<impl Iterator<Item = &str>> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace())
}

/// Processor time of a process and its reaped children, in seconds. That of a zombie is known too.
pub(crate) fn cpu_seconds(pid: Pid) -> Result<f64> {
    let text = read_text(format!("/proc/{pid}/stat"))?;
    parse_cpu_seconds(&text).context("/proc/PID/stat has no CPU times")
}

fn parse_cpu_seconds(stat: &str) -> Option<f64> {
    // utime, stime, cutime and cstime are fields 14 to 17.
    let times = fields_behind_the_name(stat)?.skip(11).take(4);
    let times: Vec<u64> = times.map_while(|word| word.parse().ok()).collect();
    (times.len() == 4).then(|| ticks_to_seconds(times.iter().sum()))
}

/// Resident anonymous bytes of a process and its descendants. Processes that end meanwhile count as
/// nothing.
pub(crate) fn anonymous_bytes_of_tree(leader: Pid) -> u64 {
    let of = |pid| {
        let status = read_text(format!("/proc/{pid}/status")).ok()?;
        field(&status, "RssAnon")
    };
    with_descendants([number(leader)]).into_iter().filter_map(of).sum::<u64>() * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_survive_odd_names() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 5";
        let expected = ticks_to_seconds(100);
        assert_eq!(parse_cpu_seconds(stat), Some(expected));
        assert_eq!(parse_cpu_seconds("7 (a) S 1"), None);
    }
}
