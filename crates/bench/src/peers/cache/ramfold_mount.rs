//! `ramfold mount`, with or without settings.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Active, Cache, Place};
use crate::machine::journal::{Setting, Undertaking};
use crate::machine::program::{Program, enter_command};
use crate::machine::{say, wait};

/// `--memory` is less than the limit of the cgroup: ramfold does not count its code, heap and
/// stacks, and the program that reads allocates memory. This much is left for both, and at most
/// this part of the limit.
const UNTOLD_BYTES: u64 = 32 << 20;
const UNTOLD_PART: u64 = 4;
/// How long it may take to write its statistics.
const READY: Duration = Duration::from_secs(30);
const SHARE_OPTION: &str = "--compressed-share=";

struct RamfoldMount {
    name: String,
    options: Vec<String>,
}

/// With settings like `codec=lz4:compressed-share=40%`.
pub(super) fn named(name: &str, settings: Option<&str>) -> Result<Box<dyn Cache>> {
    let mut options = Vec::new();
    for setting in settings.unwrap_or("").split(':').filter(|setting| !setting.is_empty()) {
        match setting.split_once('=') {
            Some((option @ ("codec" | "cluster" | "compressed-share"), value)) => {
                options.push(format!("--{option}={value}"));
            }
            _ => bail!(
                "'{name}': write ramfold:OPTION=VALUE with codec, cluster or compressed-share"
            ),
        }
    }
    Ok(Box::new(RamfoldMount { name: name.to_owned(), options }))
}

impl Cache for RamfoldMount {
    fn name(&self) -> &str {
        &self.name
    }

    fn fixed_share(&self) -> Option<(f64, Vec<&str>)> {
        let share = self.options.iter().find_map(|option| {
            option.strip_prefix(SHARE_OPTION)?.trim_end_matches('%').parse().ok()
        })?;
        let others = self.options.iter().filter(|option| !option.starts_with(SHARE_OPTION));
        Some((share, others.map(String::as_str).collect()))
    }

    fn start(&self, place: &Place<'_>) -> Result<Box<dyn Active>> {
        Ok(Box::new(Mounted::start(place, &self.options)?))
    }
}

/// ramfold's process and its mount.
struct Mounted {
    process: Child,
    mountpoint: PathBuf,
    statistics: PathBuf,
    mount: Undertaking,
    _folder: Undertaking,
}

impl Mounted {
    fn start(place: &Place<'_>, options: &[String]) -> Result<Mounted> {
        let &Place { host, source, cgroup, memory_bytes, ramfold } = place;
        let mountpoint = host.scratch.join("mount");
        let statistics = host.scratch.join("statistics.json");
        let folder = host.journal.undertake(Setting::Folder { path: mountpoint.clone() })?;
        fs::create_dir(&mountpoint)?;
        let mount = host.journal.undertake(Setting::Mount { path: mountpoint.clone() })?;
        let told = memory_bytes - UNTOLD_BYTES.min(memory_bytes / UNTOLD_PART);
        let mut command = vec![ramfold.into(), "mount".into()];
        command.extend(["--memory".into(), told.to_string().into()]);
        command.extend(["--stats".into(), statistics.clone().into()]);
        command.extend(options.iter().map(Into::into));
        command.extend([source.into(), mountpoint.clone().into()]);
        let program = Program { command, environment: Vec::new() };
        let mut process = enter_command(host, Some(cgroup), &program)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start ramfold mount")?;
        let mut errors = BufReader::new(process.stderr.take().context("no standard error")?);
        let mut first = String::new();
        errors.read_line(&mut first)?;
        // The rest is for the user.
        thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| say(&line)));
        ensure!(first.contains("is mounted"), "ramfold mount says: {}", first.trim());
        Ok(Mounted { process, mountpoint, statistics, mount, _folder: folder })
    }
}

impl Active for Mounted {
    fn folder(&self) -> &Path {
        &self.mountpoint
    }

    /// What `--stats` says now.
    fn statistics(&self) -> Result<Option<Value>> {
        let pid = Pid::from_child(&self.process);
        // The old file is replaced as a whole.
        let _ = fs::remove_file(&self.statistics);
        kill_process(pid, Signal::USR2).context("ramfold mount has ended")?;
        wait::until_done(READY, || {
            ensure!(self.statistics.exists(), "ramfold mount does not write its statistics");
            Ok(())
        })?;
        let text = fs::read(&self.statistics)?;
        serde_json::from_slice(&text).map(Some).context("what ramfold mount --stats wrote")
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        kill_process(Pid::from_child(&self.process), Signal::TERM)
            .context("ramfold mount has ended")?;
        let status = self.process.wait()?;
        self.mount.finish()?;
        if !status.success() {
            bail!("ramfold mount ended with {status}");
        }
        Ok(())
    }
}
