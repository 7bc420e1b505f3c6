//! What readers of figures have to know about the machine.

use ramfold_sys::cgroup::machine_memory_bytes;
use serde::Serialize;

use super::proc::{chosen, read_text};

/// The machine, as reports in JSON name it.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    pub(crate) kernel: String,
    pub(crate) cpu_model: String,
    pub(crate) cpu_count: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) transparent_hugepages: String,
    pub(crate) swappiness: String,
    pub(crate) page_cluster: String,
    pub(crate) clocksource: String,
    pub(crate) cgroup: String,
    pub(crate) root: bool,
}

impl Environment {
    pub(crate) fn read(cgroup: String, root: bool) -> Self {
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
            memory_bytes: machine_memory_bytes().unwrap_or(0),
            transparent_hugepages: chosen(&hugepages).unwrap_or("unknown").to_owned(),
            swappiness: known("/proc/sys/vm/swappiness"),
            page_cluster: known("/proc/sys/vm/page-cluster"),
            clocksource: known("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            cgroup,
            root,
        }
    }
}
