//! What this process may use of the machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use super::cgroup::{Cgroup, Hierarchy};
use super::interrupt;
use super::journal::{Journal, Setting, Undertaking};

/// The machine, taken for this process.
pub(crate) struct Host {
    pub(crate) root: bool,
    /// The binary that runs now; also the program of the synthetic workloads.
    pub(crate) own_program: PathBuf,
    /// Where cgroups can be made, or why not.
    pub(crate) hierarchy: Result<Hierarchy, String>,
    /// A folder of ours for generated files and the swap file.
    pub(crate) scratch: PathBuf,
    pub(crate) journal: Journal,
    cgroup_count: AtomicU32,
    // Removes the folder; declared last, so dropped after all that uses it.
    _scratch: Undertaking,
}

impl Host {
    /// Takes the machine for this process. `scratch` is the folder in which a
    /// folder of ours is made; the default is on a local disk for root.
    ///
    /// That cgroups are mounted does not mean that they may be used: `try_cgroup` tries one.
    pub(crate) fn open(
        scratch: Option<&Path>,
        try_cgroup: impl FnOnce(&Host, Cgroup) -> Result<()>,
    ) -> Result<Self> {
        let root = rustix::process::geteuid().is_root();
        let state = state_folder(root);
        interrupt::install()?;
        let journal = Journal::open(&state)?;
        let parent =
            scratch.map_or_else(|| if root { state } else { std::env::temp_dir() }, Path::to_owned);
        let parent = std::path::absolute(&parent)
            .with_context(|| format!("cannot resolve {}", parent.display()))?;
        let scratch = parent.join(format!("ramfold-bench-{}", std::process::id()));
        let undertaking = journal.undertake(Setting::Folder { path: scratch.clone() })?;
        DirBuilder::new().mode(0o700).create(&scratch).with_context(|| {
            format!("cannot create {} (another place: --scratch)", scratch.display())
        })?;
        let mut host = Self {
            root,
            own_program: std::env::current_exe().context("cannot find my own program file")?,
            hierarchy: Hierarchy::detect().map_err(|error| format!("{error:#}")),
            scratch,
            journal,
            cgroup_count: AtomicU32::new(0),
            _scratch: undertaking,
        };
        if let Some(cgroup) = host.cgroup().transpose()
            && let Err(error) = cgroup.and_then(|cgroup| try_cgroup(&host, cgroup))
        {
            host.hierarchy = Err(format!("{error:#}"));
        }
        Ok(host)
    }

    /// A fresh cgroup, or `None` where none can be made.
    pub(crate) fn cgroup(&self) -> Result<Option<Cgroup>> {
        let Ok(hierarchy) = &self.hierarchy else { return Ok(None) };
        let number = self.cgroup_count.fetch_add(1, Ordering::Relaxed);
        let name = format!("ramfold-bench-{}-{number}", std::process::id());
        hierarchy.create(&self.journal, &name).map(Some)
    }

    /// "v1", "v2" or "none: reason".
    pub(crate) fn cgroup_description(&self) -> String {
        match &self.hierarchy {
            Ok(hierarchy) => hierarchy.version().to_owned(),
            Err(reason) => format!("none: {reason}"),
        }
    }
}

/// Where the journal lies: on disk, because a swap file outlives a reboot.
fn state_folder(root: bool) -> PathBuf {
    if root {
        return PathBuf::from("/var/lib/ramfold-bench");
    }
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state")));
    state
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("ramfold-{user}"))
        })
        .join("ramfold-bench")
}
