//! What the kernel tells about the machine as a whole.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Reads a file of /proc or /sys as text without the final newline.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

/// Writes a kernel knob.
pub fn write_text(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, value).with_context(|| format!("cannot write '{value}' to {}", path.display()))
}

/// The value after `name` in "name value" lines (memory.stat, vmstat, "name: value kB").
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()?.trim_end_matches(':') == name).then(|| words.next()?.parse().ok())?
    })
}

/// Kernel ticks of /proc/*/stat as seconds.
pub fn ticks_to_seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Counters of the whole machine; differences of two readings are meaningful.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// CPU time spent in anything but idling, in seconds: other programs and
    /// kernel threads included.
    pub busy_seconds: f64,
    pub swap_in_pages: u64,
    pub swap_out_pages: u64,
}

impl Counters {
    pub fn read() -> Result<Self> {
        let vmstat = read_text("/proc/vmstat")?;
        // Pages served by zswap are not in pswpin (Linux 6.18, mm/page_io.c).
        let sum = |names: [&str; 2]| names.iter().filter_map(|name| field(&vmstat, name)).sum();
        Ok(Self {
            busy_seconds: busy_seconds(&read_text("/proc/stat")?)
                .context("no line 'cpu' in /proc/stat")?,
            swap_in_pages: sum(["pswpin", "zswpin"]),
            swap_out_pages: sum(["pswpout", "zswpout"]),
        })
    }

    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            busy_seconds: (self.busy_seconds - earlier.busy_seconds).max(0.0),
            swap_in_pages: self.swap_in_pages.saturating_sub(earlier.swap_in_pages),
            swap_out_pages: self.swap_out_pages.saturating_sub(earlier.swap_out_pages),
        }
    }
}

/// user + nice + system + irq + softirq + steal of the "cpu" line. Guest time
/// is part of user already.
fn busy_seconds(stat: &str) -> Option<f64> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6, 7].iter().filter_map(|&column| ticks.get(column)).sum();
    Some(ticks_to_seconds(busy))
}

/// Memory that programs can have without swapping.
pub fn available_bytes() -> Result<u64> {
    of_meminfo("MemAvailable")
}

/// Compressed bytes held by zswap now, machine-wide.
pub fn zswap_pool_bytes() -> Result<u64> {
    of_meminfo("Zswap")
}

fn of_meminfo(name: &str) -> Result<u64> {
    field(&read_text("/proc/meminfo")?, name)
        .map(|kilobytes| kilobytes * 1024)
        .with_context(|| format!("no line '{name}' in /proc/meminfo"))
}

/// Devices and files that are swapped to now.
pub fn active_swaps() -> Result<Vec<PathBuf>> {
    Ok(parse_swaps(&read_text("/proc/swaps")?))
}

fn parse_swaps(text: &str) -> Vec<PathBuf> {
    text.lines()
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next())
        // The kernel writes blanks in names as octal escapes.
        .map(|name| PathBuf::from(name.replace("\\040", " ").replace("\\011", "\t")))
        .collect()
}

/// The executable file that a command name means.
pub fn found_in_path(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
}

/// Whether it is a file that somebody may execute.
pub fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Identity of the running kernel: what was set before another boot is gone.
pub fn boot_id() -> Result<String> {
    read_text("/proc/sys/kernel/random/boot_id")
}

/// What a reader of the figures has to know about the machine.
#[derive(Debug, Serialize)]
pub struct Environment {
    pub kernel: String,
    pub cpu_model: String,
    pub cpu_count: usize,
    pub memory_bytes: u64,
    pub transparent_hugepages: String,
    pub swappiness: String,
    pub page_cluster: String,
    pub clocksource: String,
    pub cgroup: String,
    pub root: bool,
}

impl Environment {
    pub fn read(cgroup: String, root: bool) -> Self {
        let known = |path: &str| read_text(path).unwrap_or_else(|_| "unknown".to_owned());
        let cpu_model = known("/proc/cpuinfo")
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or_else(|| "unknown".to_owned(), |(_, model)| model.to_owned());
        let hugepages = known("/sys/kernel/mm/transparent_hugepage/enabled");
        Self {
            kernel: known("/proc/sys/kernel/osrelease"),
            cpu_model,
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: field(&known("/proc/meminfo"), "MemTotal").unwrap_or(0) * 1024,
            transparent_hugepages: chosen(&hugepages).unwrap_or("unknown").to_owned(),
            swappiness: known("/proc/sys/vm/swappiness"),
            page_cluster: known("/proc/sys/vm/page-cluster"),
            clocksource: known("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            cgroup,
            root,
        }
    }
}

/// The choice in brackets of a knob like "always [madvise] never".
pub fn chosen(knob: &str) -> Option<&str> {
    knob.split_once('[')?.1.split_once(']').map(|(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_whole_name() {
        let text = "anon 12\nanon_thp 7\nZswap:   33 kB\nbad x\n";
        assert_eq!(field(text, "anon"), Some(12));
        assert_eq!(field(text, "anon_thp"), Some(7));
        assert_eq!(field(text, "Zswap"), Some(33));
        assert_eq!(field(text, "bad"), None);
        assert_eq!(field(text, "ano"), None);
    }

    #[test]
    fn busy_time_leaves_out_idle_and_guest() {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let busy = busy_seconds("cpu  1 2 4 1000 1000 8 16 32 64 128\ncpu0 9 9 9\n").unwrap();
        assert!((busy - 63.0 / ticks).abs() < 1e-9, "{busy}");
        assert_eq!(busy_seconds("intr 1\n"), None);
    }

    #[test]
    fn swaps_and_choices_parse() {
        let text =
            "Filename Type Size Used Priority\n/dev/zram1 partition 1 2 3\n/a\\040b file 1 2 3\n";
        assert_eq!(parse_swaps(text), [PathBuf::from("/dev/zram1"), PathBuf::from("/a b")]);
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("plain"), None);
    }
}
