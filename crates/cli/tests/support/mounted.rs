//! A real mount, served by a process of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::RAMFOLD;

/// What is done behind a mount is seen within a second or so; the machine may be busy with more.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a Python program with these arguments, which must succeed.
#[track_caller]
pub(crate) fn python<const N: usize>(program: &str, arguments: [PathBuf; N]) {
    let status = Command::new("python3").args(["-c", program]).args(&arguments).status().unwrap();
    assert!(status.success(), "{arguments:?}");
}

/// A mount over a new directory, served by a process of its own, until it is dropped.
pub(crate) struct Mounted {
    pub folder: tempfile::TempDir,
    pub server: Child,
}

impl Mounted {
    /// `None`, and a line that says so, where nobody can mount.
    pub(crate) fn new() -> Option<Mounted> {
        can_mount().then(|| Mounted::new_in("/var/tmp"))
    }

    pub(crate) fn new_in(place: &str) -> Mounted {
        let folder = tempfile::tempdir_in(place).unwrap();
        fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir(folder.path().join("source")).unwrap();
        fs::create_dir(folder.path().join("mount")).unwrap();
        let server = serve(&folder.path().join("source"), &folder.path().join("mount"));
        Mounted { folder, server }
    }

    pub(crate) fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    pub(crate) fn mount(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The test may have ended it.
        let _ = umount(&["--lazy"], &self.mount(""));
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

pub(crate) fn can_mount() -> bool {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: mounting without fusermount3 needs root");
        return false;
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        eprintln!("SKIPPED: /dev/fuse: {error}");
        return false;
    }
    true
}

pub(crate) fn serve(source: &Path, mountpoint: &Path) -> Child {
    serve_with(&[], source, mountpoint)
}

pub(crate) fn serve_with(options: &[&str], source: &Path, mountpoint: &Path) -> Child {
    let memory = match options.contains(&"--memory") {
        true => [].as_slice(),
        false => &["--memory", "64M"],
    };
    let mut server = Command::new(RAMFOLD)
        .arg("mount")
        .args(memory)
        .args(options)
        .args([source, mountpoint])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("is mounted on"), "{said}");
    server
}

pub(crate) fn ended_well(server: &mut Child) {
    let status = server.wait().unwrap();
    let mut said = String::new();
    server.stderr.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.success(), "{status}: {said}");
}

pub(crate) fn umount(options: &[&str], mountpoint: &Path) -> Result<(), String> {
    let output =
        Command::new(RAMFOLD).arg("umount").args(options).arg(mountpoint).output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Waits until it is so.
pub(crate) fn is_seen(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what} is not seen");
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("{what}: seen after {:?}", begin.elapsed());
}
