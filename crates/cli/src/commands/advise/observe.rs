//! What is looked at, and by what.

use anyhow::bail;
use ramfold_advise::observation::{Observation, file};

use super::Arguments;

/// Measures what the arguments name, or reads what was measured.
///
/// # Errors
/// When it cannot be measured or read.
pub(super) fn observe(arguments: &Arguments) -> anyhow::Result<Observation> {
    if let Some(path) = &arguments.replay {
        return Ok(file::load(path)?);
    }
    let _ = (&arguments.pid, &arguments.cgroup, &arguments.pages, &arguments.files);
    let _ = (arguments.duration, arguments.slowdown, &arguments.program);
    bail!("only --replay is there yet")
}
