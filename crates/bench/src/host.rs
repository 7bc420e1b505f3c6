//! What this process may use of the machine.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cgroup::{Cgroup, Hierarchy};
use crate::interrupt;
use crate::journal::{Journal, Setting, Undertaking};
use crate::measure::{Launch, Program, measure};

/// The harness's means.
pub struct Host {
    pub root: bool,
    /// The binary that runs now; also the program of the synthetic workloads.
    pub own_program: PathBuf,
    /// Where cgroups can be made, or why not.
    pub hierarchy: Result<Hierarchy, String>,
    /// A folder of ours for generated files and the swap file.
    pub scratch: PathBuf,
    pub journal: Journal,
    cgroup_count: AtomicU32,
    // Removes the folder; declared last, so dropped after all that uses it.
    _scratch: Undertaking,
}

impl Host {
    /// Takes the machine for this process. `scratch` is the folder in which a
    /// folder of ours is made; the default is on a local disk for root.
    pub fn open(scratch: Option<&Path>) -> Result<Self> {
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
        let host = Self {
            root,
            own_program: std::env::current_exe().context("cannot find my own program file")?,
            hierarchy: Hierarchy::detect().map_err(|error| format!("{error:#}")),
            scratch,
            journal,
            cgroup_count: AtomicU32::new(0),
            _scratch: undertaking,
        };
        Ok(host.with_usable_hierarchy())
    }

    /// A fresh cgroup, or `None` where none can be made.
    pub fn cgroup(&self) -> Result<Option<Cgroup>> {
        self.hierarchy.as_ref().ok().map(|hierarchy| self.make_cgroup(hierarchy)).transpose()
    }

    /// "v1", "v2" or "none: reason".
    pub fn cgroup_description(&self) -> String {
        match &self.hierarchy {
            Ok(hierarchy) => hierarchy.version().to_owned(),
            Err(reason) => format!("none: {reason}"),
        }
    }

    fn make_cgroup(&self, hierarchy: &Hierarchy) -> Result<Cgroup> {
        let number = self.cgroup_count.fetch_add(1, Ordering::Relaxed);
        hierarchy.create(&self.journal, &format!("ramfold-bench-{}-{number}", std::process::id()))
    }

    /// Mounted is not permitted: find out once, by making and entering one.
    fn with_usable_hierarchy(mut self) -> Self {
        if let Ok(hierarchy) = self.hierarchy.clone()
            && let Err(error) = self.try_hierarchy(&hierarchy)
        {
            self.hierarchy = Err(format!("{error:#}"));
        }
        self
    }

    fn try_hierarchy(&self, hierarchy: &Hierarchy) -> Result<()> {
        let cgroup = self.make_cgroup(hierarchy)?;
        let program = Program {
            command: vec![self.own_program.clone().into_os_string(), "--version".into()],
            environment: Vec::new(),
        };
        let outcome = measure(
            self,
            &Launch {
                program: &program,
                cgroup: Some(&cgroup),
                pool: None,
                pool_bytes_max: None,
                idle: None,
                time_limit: Duration::from_secs(30),
            },
        )?;
        outcome.check()?;
        cgroup.finish()
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
