//! `ramfold mount` while it is measured.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cgroup::Cgroup;
use crate::host::Host;
use crate::journal::{Setting, Undertaking};
use crate::measure::{Program, enter_command};
use crate::progress::say;

/// What ramfold is not told of the memory: it is for its program, heap and stacks, which its own count leaves out, and for
/// what the program that reads allocates. At most this part.
const UNTOLD_BYTES: u64 = 32 << 20;
const UNTOLD_PART: u64 = 4;
const READY: Duration = Duration::from_secs(30);

/// ramfold's process and its mount.
pub(super) struct Mounted {
    process: Child,
    pub mountpoint: PathBuf,
    statistics: PathBuf,
    mount: Undertaking,
    _folder: Undertaking,
}

impl Mounted {
    pub fn new(
        host: &Host,
        source: &Path,
        cgroup: &Cgroup,
        ramfold: &Path,
        memory_bytes: u64,
        options: &[String],
    ) -> Result<Mounted> {
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
        // What else it says is for the person at the terminal.
        thread::spawn(move || errors.lines().map_while(Result::ok).for_each(|line| say(&line)));
        ensure!(first.contains("is mounted"), "ramfold mount says: {}", first.trim());
        Ok(Mounted { process, mountpoint, statistics, mount, _folder: folder })
    }

    /// What `--stats` says now.
    pub fn statistics(&self) -> Result<Value> {
        let pid = Pid::from_child(&self.process);
        // The old file is replaced as a whole.
        let _ = fs::remove_file(&self.statistics);
        kill_process(pid, Signal::USR2).context("ramfold mount has ended")?;
        let started = Instant::now();
        while !self.statistics.exists() {
            ensure!(started.elapsed() < READY, "ramfold mount does not write its statistics");
            thread::sleep(Duration::from_millis(5));
        }
        let text = fs::read(&self.statistics)?;
        serde_json::from_slice(&text).context("what ramfold mount --stats wrote")
    }

    pub fn finish(mut self) -> Result<()> {
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
