//! The agent's library: embedded in this program, laid where a loader can find it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::sys::memfd::{MFdFlags, memfd_create};

static LIBRARY: &[u8] = include_bytes!(env!("RAMFOLD_AGENT"));

/// The library in a place the loader can open, for as long as this lives.
pub struct Placed {
    path: PathBuf,
    /// Keeps the memory behind `path` where that is in `/proc`.
    _memory: Option<File>,
}

impl Placed {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Puts the library into the cache folder, under a name made of its content, or, where that
/// cannot be used, into memory. The cache outlives this process, and so do programs that go on
/// starting others (daemons).
///
/// # Errors
/// When neither is possible.
pub fn place() -> anyhow::Result<Placed> {
    match cache_folder().map(|folder| place_in(&folder)) {
        Some(Ok(path)) => Ok(Placed { path, _memory: None }),
        Some(Err(_)) | None => place_in_memory(),
    }
}

/// Everybody who runs programs of root's must be able to read root's copy.
fn cache_folder() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/var/cache/ramfold"));
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("ramfold"))
}

fn place_in(folder: &Path) -> anyhow::Result<PathBuf> {
    let hash = xxhash_rust::xxh3::xxh3_128(LIBRARY);
    let path = folder.join(format!("agent-{hash:032x}.so"));
    // LD_PRELOAD ends a name at these, whatever quotes it.
    let splits = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    anyhow::ensure!(!path.as_os_str().as_encoded_bytes().iter().any(splits), "a name that splits");
    let root = nix::unistd::geteuid().is_root();
    fs::DirBuilder::new().recursive(true).mode(if root { 0o755 } else { 0o700 }).create(folder)?;
    let metadata = fs::symlink_metadata(folder)?;
    anyhow::ensure!(
        metadata.is_dir()
            && metadata.uid() == nix::unistd::geteuid().as_raw()
            && metadata.mode() & 0o022 == 0,
        "{} is not this user's alone",
        folder.display()
    );
    if !holds_library(&path) {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(LIBRARY)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
    }
    // A file system mounted noexec would make the loader refuse it.
    let flags = nix::sys::statvfs::statvfs(folder)?.flags();
    anyhow::ensure!(!flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC), "mounted noexec");
    Ok(path)
}

fn holds_library(path: &Path) -> bool {
    let mut content = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut content)).is_ok()
        && content == LIBRARY
}

fn place_in_memory() -> anyhow::Result<Placed> {
    let fd = memfd_create(c"ramfold-agent", MFdFlags::MFD_CLOEXEC)
        .context("no place for the agent's library: no cache folder, and memfd_create failed")?;
    let mut memory = File::from(fd);
    memory.write_all(LIBRARY).context("writing the agent's library to memory")?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
    Ok(Placed { path, _memory: Some(memory) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_made_and_a_damaged_copy_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("a/b");
        let path = place_in(&cache).unwrap();
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        fs::write(&path, b"damaged").unwrap();
        assert_eq!(place_in(&cache).unwrap(), path);
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        fs::create_dir(&cache).unwrap();
        fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place_in(&cache).is_err());
        assert!(place_in(&folder.path().join("with space")).is_err());
    }

    #[test]
    fn memory_is_a_place_too() {
        let placed = place_in_memory().unwrap();
        assert_eq!(fs::read(placed.path()).unwrap(), LIBRARY);
    }
}
