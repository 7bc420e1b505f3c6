//! The agent's library: embedded in this program, laid where a loader can find it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    MemfdFlags, SealFlags, StatVfsMountFlags, fcntl_add_seals, memfd_create, statvfs,
};
use rustix::process::geteuid;

static LIBRARY: &[u8] = include_bytes!(env!("RAMFOLD_AGENT"));

/// The library in a place the loader can open, for as long as this lives.
pub(crate) struct Placed {
    path: PathBuf,
    /// Keeps the memory behind `path` where that is in `/proc`.
    _memory: Option<File>,
}

/// The agent's library cannot be put where the program's loader finds it.
#[derive(Debug, thiserror::Error)]
#[error(
    "no place for the agent's library: {cache}; {}in memory",
    if matches!(cache, CacheProblem::NoFolder) { "" } else { "and " }
)]
pub struct LibraryError {
    /// Why not in the user's cache folder.
    pub cache: CacheProblem,
    /// Why not in memory.
    #[source]
    pub memory: MemoryError,
}

/// Why the agent's library cannot be in the user's cache folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheProblem {
    /// There is no such folder.
    #[error("neither HOME nor XDG_CACHE_HOME")]
    NoFolder,
    /// The name cannot be in `LD_PRELOAD`, which ends names at spaces and colons.
    #[error("a name that splits")]
    Splits,
    /// Others can write to it.
    #[error("{} is not this user's alone", folder.display())]
    NotPrivate {
        /// The folder.
        folder: PathBuf,
    },
    /// The loader refuses what is on this file system.
    #[error("mounted noexec")]
    NoExec,
    /// It cannot be made, read or written.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// Why the agent's library cannot be in memory.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct MemoryError {
    what: &'static str,
    source: io::Error,
}

impl Placed {
    /// Puts the library into the cache folder, under a name made of its content, or, where that
    /// cannot be used, into memory. The cache outlives this process, and so do programs that go on
    /// starting others (daemons).
    ///
    /// # Errors
    /// When neither is possible.
    pub(crate) fn place() -> Result<Placed, LibraryError> {
        let cached = cache_folder().ok_or(CacheProblem::NoFolder);
        match cached.and_then(|folder| place_in(&folder)) {
            Ok(path) => Ok(Placed { path, _memory: None }),
            Err(cache) => place_in_memory().map_err(|memory| LibraryError { cache, memory }),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Everybody who runs programs of root's must be able to read root's copy.
fn cache_folder() -> Option<PathBuf> {
    if geteuid().is_root() {
        return Some(PathBuf::from("/var/cache/ramfold"));
    }
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|cache| cache.join("ramfold"))
}

fn place_in(folder: &Path) -> Result<PathBuf, CacheProblem> {
    let hash = xxhash_rust::xxh3::xxh3_128(LIBRARY);
    let path = folder.join(format!("agent-{hash:032x}.so"));
    // LD_PRELOAD ends a name at these, whatever quotes it.
    let splits = |byte: &u8| matches!(byte, b' ' | b':' | b'\t' | b'\n');
    if path.as_os_str().as_encoded_bytes().iter().any(splits) {
        return Err(CacheProblem::Splits);
    }
    if fs::symlink_metadata(folder).is_err() {
        let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
        fs::DirBuilder::new().recursive(true).mode(mode).create(folder)?;
        // Whatever the umask is.
        fs::set_permissions(folder, fs::Permissions::from_mode(mode))?;
    }
    let metadata = fs::symlink_metadata(folder)?;
    let is_private =
        metadata.is_dir() && metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !is_private {
        return Err(CacheProblem::NotPrivate { folder: folder.to_owned() });
    }
    if !holds_library(&path) {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(LIBRARY)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)?;
        remove_old(folder, &path);
    }
    // A file system mounted noexec would make the loader refuse it.
    let flags = statvfs(folder).map_err(io::Error::from)?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(CacheProblem::NoExec);
    }
    Ok(path)
}

/// Removes what earlier versions left. A program that was started long ago may still hand theirs on
/// to what it starts; so they stay for a while.
fn remove_old(folder: &Path, but_for: &Path) {
    const AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let is_agent = name.as_encoded_bytes().starts_with(b"agent-")
            && name.as_encoded_bytes().ends_with(b".so");
        let old = entry.metadata().and_then(|metadata| metadata.modified()).is_ok_and(|modified| {
            SystemTime::now().duration_since(modified).is_ok_and(|age| age > AGE)
        });
        if is_agent && old && path != but_for {
            // Another ramfold may have been quicker.
            let _ = fs::remove_file(path);
        }
    }
}

fn holds_library(path: &Path) -> bool {
    let mut content = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut content)).is_ok()
        && content == LIBRARY
}

fn place_in_memory() -> Result<Placed, MemoryError> {
    let failed = |what| move |source| MemoryError { what, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create(c"ramfold-agent", flags)
        .map_err(|errno| failed("memfd_create")(errno.into()))?;
    let mut memory = File::from(fd);
    memory.write_all(LIBRARY).map_err(failed("writing the agent's library to memory"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals)
        .map_err(|errno| failed("sealing the agent's library")(errno.into()))?;
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
    fn only_old_agents_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, days: u64| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 86_400)).unwrap();
        };
        make("agent-1.so", 40);
        make("agent-2.so", 3);
        make("notes", 40);
        place_in(folder.path()).unwrap();
        let exists = |name: &str| folder.path().join(name).exists();
        assert_eq!(
            [exists("agent-1.so"), exists("agent-2.so"), exists("notes")],
            [false, true, true]
        );
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

    /// What it took from a program would be called in the middle of a fault; what it offered, a
    /// program would find.
    #[test]
    fn the_library_imports_and_exports_nothing() {
        use object::read::elf::{Dyn, ElfFile64};
        use object::{Object, ObjectSymbol};
        // Aligned, as the parser needs it.
        let bytes = LIBRARY.to_vec();
        let library = ElfFile64::<object::Endianness>::parse(&bytes[..]).unwrap();
        let symbols: Vec<_> =
            library.dynamic_symbols().map(|symbol| symbol.name().unwrap().to_owned()).collect();
        assert_eq!(symbols, Vec::<String>::new());
        let (sections, endian) = (library.elf_section_table(), library.endian());
        let (entries, _) = sections.dynamic(endian, &bytes[..]).unwrap().unwrap();
        let needs = |entry: &_| Dyn::tag32(entry, endian) == Some(object::elf::DT_NEEDED);
        assert!(!entries.iter().any(needs));
    }

    #[test]
    fn memory_is_a_place_too() {
        let placed = place_in_memory().unwrap();
        assert_eq!(fs::read(placed.path()).unwrap(), LIBRARY);
    }
}
