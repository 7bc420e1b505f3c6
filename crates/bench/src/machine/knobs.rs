//! Settings of the kernel that hold one value, and those of zswap.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::journal::{Journal, Setting, Undertaking};
use super::proc::{read_text, write_text};

/// Pages read at once around the one wanted from swap, as a power of two.
pub(crate) const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
/// The folder of zswap's parameters; it is missing where the kernel has no zswap.
pub(crate) const ZSWAP_PARAMETERS: &str = "/sys/module/zswap/parameters";

/// The file of a parameter of zswap.
pub(crate) fn zswap_parameter(name: &str) -> PathBuf {
    Path::new(ZSWAP_PARAMETERS).join(name)
}

/// Sets a kernel knob until the undertaking ends; `None` if it has the value
/// already.
pub(crate) fn set_knob(journal: &Journal, path: &Path, value: &str) -> Result<Option<Undertaking>> {
    let before = read_text(path)?;
    if before == value {
        return Ok(None);
    }
    let undertaking = journal.undertake(Setting::Knob {
        path: path.to_owned(),
        before,
        ours: value.to_owned(),
    })?;
    write_text(path, value)?;
    Ok(Some(undertaking))
}

/// Keeps zswap from standing in front of another peer's swap.
pub(crate) fn without_zswap(journal: &Journal) -> Result<Option<Undertaking>> {
    let enabled = zswap_parameter("enabled");
    if enabled.exists() { set_knob(journal, &enabled, "N") } else { Ok(None) }
}
