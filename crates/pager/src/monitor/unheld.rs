//! What of a process cannot be taken out, by reason: for the line that says why a cap is not held.

use core::fmt;
use core::sync::atomic::Ordering;

use ramfold_sys::{Errno, PAGE_SIZE};

use crate::agent::Agent;
use crate::kernel::maps;

const MIB: u64 = 1 << 20;
/// Reasons that are named, the weightiest first.
const NAMED_MAX: usize = 3;

/// Memory in RAM of one process, in bytes.
#[derive(Default)]
pub(crate) struct Unheld {
    /// mlock(2), mlockall(2).
    locked: u64,
    /// Executable, read-only or without access: what MOVE does not take to where it is compressed.
    access: u64,
    /// Changed pages of files that are mapped privately.
    file: u64,
    /// The process's part of what it shares with forked processes.
    forked: u64,
    /// Shared memory.
    shared: u64,
    /// Page tables.
    tables: u64,
    /// Compressed pages, and what else the agent takes.
    agent: u64,
    /// All else: plain private memory.
    plain: u64,
    /// Most of that did not compress when it was tried.
    is_incompressible: bool,
}

impl Unheld {
    /// Looks at all mappings: about 10 ms for a GiB.
    ///
    /// # Errors
    /// What open(2) and read(2) say of `/proc/self/smaps`.
    pub(crate) fn of_process(agent: &Agent) -> Result<Self, Errno> {
        let process = agent.process();
        let shared = process.shared_bytes.load(Ordering::Relaxed);
        let tables = process.page_table_bytes.load(Ordering::Relaxed);
        let mut unheld = Unheld { shared, tables, ..Unheld::default() };
        let mut buffer = [0; 8192];
        maps::for_each_with_usage(&mut buffer, |mapping, usage, flags| {
            let is_plain = mapping.is_private_anonymous();
            let place = if agent.owns(&mapping.range) {
                &mut unheld.agent
            } else if flags.has(*b"lo") {
                &mut unheld.locked
            } else if !is_plain {
                &mut unheld.file
            } else if !(mapping.readable && mapping.writable) || mapping.executable {
                &mut unheld.access
            } else {
                &mut unheld.plain
            };
            *place += usage.own_anonymous;
            unheld.forked += usage.shared_anonymous;
        })?;
        // A page may have been tried more than once.
        let tried = process.counters.pages_incompressible.load(Ordering::Relaxed);
        unheld.is_incompressible = tried * PAGE_SIZE as u64 > unheld.plain / 4;
        Ok(unheld)
    }

    fn reasons(&self) -> [(u64, &'static str); 8] {
        let plain =
            if self.is_incompressible { "do not compress" } else { "are in use all the time" };
        [
            (self.locked, "are locked (mlock)"),
            (self.access, "are executable or not writable"),
            (self.file, "are changed pages of files"),
            (self.forked, "are shared with forked processes"),
            (self.shared, "are shared memory"),
            (self.tables, "are page tables"),
            (self.agent, "hold what is compressed"),
            (self.plain, plain),
        ]
    }
}

impl fmt::Display for Unheld {
    /// `of 104 MiB, 100 are locked (mlock), 3 hold what is compressed`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut reasons = self.reasons();
        reasons.sort_unstable_by_key(|&(bytes, _)| core::cmp::Reverse(bytes));
        let all: u64 = reasons.iter().map(|&(bytes, _)| bytes).sum();
        write!(f, "of {} MiB", all / MIB)?;
        let first = reasons[0].0;
        for (bytes, why) in { reasons.iter() }.take(NAMED_MAX) {
            // What is little beside the weightiest is no reason.
            if *bytes >= MIB && *bytes >= first / 8 {
                write!(f, ", {} {why}", bytes / MIB)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weightiest_reasons_are_named() {
        let mut unheld = Unheld { locked: 100 * MIB, plain: 5 * MIB, ..Unheld::default() };
        assert_eq!(unheld.to_string(), "of 105 MiB, 100 are locked (mlock)");
        unheld.plain = 40 * MIB;
        unheld.agent = 30 * MIB;
        unheld.forked = 20 * MIB;
        assert_eq!(
            unheld.to_string(),
            "of 190 MiB, 100 are locked (mlock), 40 are in use all the time, 30 hold what is compressed"
        );
        unheld.is_incompressible = true;
        assert!(unheld.to_string().contains("40 do not compress"));
        assert_eq!(Unheld::default().to_string(), "of 0 MiB");
    }
}
