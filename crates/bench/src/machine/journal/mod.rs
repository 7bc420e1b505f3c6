//! What the harness has set on the machine, and how it is taken back.
//!
//! Every setting is written to a journal on disk *before* it is made and struck
//! out after it is undone. A guard undoes it in the ordinary course, on errors
//! and after signals; the panic hook and the next start read the journal
//! instead. So one function, [`Setting::undo`], serves all of them, and it is
//! harmless for a setting that was never made or is undone already.

mod setting;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

pub(crate) use setting::Setting;

use super::proc::read_text;
use super::{interrupt, say};

#[derive(Debug, Default, Serialize, Deserialize)]
struct Pages {
    boot_id: String,
    pid: u32,
    settings: Vec<(u64, Setting)>,
}

/// The journal of this process. Holding it is holding the machine: a second
/// harness waits.
#[derive(Clone)]
pub(crate) struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    pages: Mutex<Pages>,
    next: std::sync::atomic::AtomicU64,
    _lock: File,
}

/// A setting in force; undone by [`Undertaking::finish`] or, at the latest, on drop.
pub(crate) struct Undertaking {
    journal: Journal,
    id: u64,
    open: bool,
}

impl Journal {
    /// Takes the machine, undoes what a killed predecessor left, and starts an
    /// empty journal in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let owner =
            fs::metadata(folder).with_context(|| format!("cannot look at {}", folder.display()))?;
        // The journal names folders to remove, so other users must not be able to write it.
        if owner.uid() != rustix::process::geteuid().as_raw() || owner.mode() & 0o022 != 0 {
            bail!("{} can be written by others; remove it", folder.display());
        }
        let lock = take_lock(&folder.join("lock"))?;
        let path = folder.join("journal.json");
        mend(&path)?;
        let pages = Pages { boot_id: boot_id()?, pid: std::process::id(), settings: Vec::new() };
        let journal = Self {
            shared: Arc::new(Shared {
                path: path.clone(),
                pages: Mutex::new(pages),
                next: 0.into(),
                _lock: lock,
            }),
        };
        let hook_path = path;
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            // The process aborts after this: no guard will run. The journal is
            // read from disk because the panicking thread may hold its lock.
            interrupt::kill_running();
            if let Err(error) = mend(&hook_path) {
                say(&format!("ramfold-bench: cannot undo after the panic: {error:#}"));
            }
        }));
        Ok(journal)
    }

    /// Records a setting that the caller is about to make.
    pub(crate) fn undertake(&self, setting: Setting) -> Result<Undertaking> {
        let id = self.shared.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut pages = self.pages();
        pages.settings.push((id, setting));
        write_pages(&self.shared.path, &pages)?;
        Ok(Undertaking { journal: self.clone(), id, open: true })
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.shared.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Undertaking {
    /// Undoes the setting now. On failure it stays in the journal, so that the
    /// next start tries again.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        self.open = false;
        let mut pages = self.journal.pages();
        let Some(index) = pages.settings.iter().position(|(id, _)| *id == self.id) else {
            return Ok(());
        };
        pages.settings[index].1.undo()?;
        pages.settings.remove(index);
        write_pages(&self.journal.shared.path, &pages)
    }
}

impl Drop for Undertaking {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.undo()
        {
            say(&format!("ramfold-bench: {error:#}; the next start of ramfold-bench tries again"));
        }
    }
}

/// Waits until no other harness holds the machine.
fn take_lock(path: &Path) -> Result<File> {
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    let mut told = false;
    while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        if error != rustix::io::Errno::WOULDBLOCK {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
        interrupt::check()?;
        if !told {
            let mut holder = String::new();
            let _ = lock.read_to_string(&mut holder);
            say(&format!(
                "ramfold-bench: waiting for another run to end (process {})",
                holder.trim()
            ));
            told = true;
        }
        sleep(Duration::from_millis(200));
    }
    lock.set_len(0)
        .and_then(|()| lock.rewind())
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(lock)
}

/// Undoes, latest first, what the journal lists. What cannot be undone stays
/// listed and is reported.
fn mend(path: &Path) -> Result<()> {
    let text = match fs::read_to_string(path) {
        Ok(text) if text.is_empty() => return Ok(()),
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    let mut pages: Pages = serde_json::from_str(&text)
        .with_context(|| format!("{} is damaged; remove it after a look", path.display()))?;
    let same_boot = pages.boot_id == boot_id()?;
    let own = pages.pid == std::process::id();
    if !own && !pages.settings.is_empty() {
        say(&format!(
            "ramfold-bench: undoing {} setting(s) left by process {}",
            pages.settings.len(),
            pages.pid
        ));
    }
    let mut failed = Vec::new();
    while let Some((id, setting)) = pages.settings.pop() {
        // A reboot takes everything but files.
        if !same_boot && !matches!(setting, Setting::Folder { .. }) {
            continue;
        }
        if let Err(error) = setting.undo() {
            say(&format!("ramfold-bench: {error:#}"));
            failed.insert(0, (id, setting));
        }
    }
    if failed.is_empty() {
        return fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()));
    }
    let count = failed.len();
    pages.settings = failed;
    write_pages(path, &pages)?;
    bail!("{count} setting(s) listed in {} could not be undone", path.display())
}

fn write_pages(path: &Path, pages: &Pages) -> Result<()> {
    let describe = || format!("cannot write {}", path.display());
    if pages.settings.is_empty() {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(describe),
            _ => Ok(()),
        };
    }
    let fresh = path.with_extension("new");
    // Not synced: it has to outlive this process, not the machine. What a crash
    // of the machine can leave is an empty file, which mend takes for none.
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .with_context(describe)?;
    serde_json::to_writer(&mut file, pages).with_context(describe)?;
    fs::rename(&fresh, path).with_context(describe)
}

/// Identity of the running kernel: what was set before another boot is gone.
fn boot_id() -> Result<String> {
    read_text("/proc/sys/kernel/random/boot_id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("ramfold-bench-{}-{name}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }

    #[test]
    fn finished_undertakings_leave_nothing() {
        let root = folder("finished");
        let journal = Journal::open(&root).unwrap();
        let inner = root.join("inner");
        let undertaking = journal.undertake(Setting::Folder { path: inner.clone() }).unwrap();
        fs::create_dir(&inner).unwrap();
        assert!(root.join("journal.json").exists());
        undertaking.finish().unwrap();
        assert!(!inner.exists());
        assert!(!root.join("journal.json").exists());

        let dropped = journal.undertake(Setting::Folder { path: inner.clone() }).unwrap();
        fs::create_dir(&inner).unwrap();
        drop(dropped);
        assert!(!inner.exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn leftovers_of_a_killed_process_are_undone() {
        let root = folder("leftovers");
        let left = root.join("left");
        fs::create_dir(&left).unwrap();
        let path = root.join("journal.json");
        let pages = Pages {
            boot_id: "another boot".to_owned(),
            pid: 1,
            settings: vec![
                (0, Setting::Folder { path: left.clone() }),
                // Of another boot: ignored, because another device may have the number now.
                (1, Setting::Zram { number: 0, hot_added: false, uuid: 5 }),
            ],
        };
        write_pages(&path, &pages).unwrap();
        drop(Journal::open(&root).unwrap());
        assert!(!left.exists());
        assert!(!path.exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_damaged_journal_is_an_error() {
        let root = folder("damaged");
        fs::write(root.join("journal.json"), "{").unwrap();
        assert!(Journal::open(&root).is_err());
        fs::remove_dir_all(&root).unwrap();
    }
}
