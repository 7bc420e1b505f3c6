//! Files that are written when the program ends: what would fail then is better said before it runs.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// # Errors
/// When the file could not be written. Nothing is made or changed.
pub fn check(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => Ok(()),
        _ => tempfile::tempfile_in(folder_of(file)).map(drop),
    }
}

/// Something like /dev/stdout or a pipe is written to, a file is replaced at once.
///
/// # Errors
/// When it cannot be written; a file is then as it was.
pub fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::metadata(file).is_ok_and(|metadata| !metadata.is_file()) {
        return fs::write(file, bytes);
    }
    let mut new = tempfile::NamedTempFile::new_in(folder_of(file))?;
    new.write_all(bytes)?;
    new.persist(file)?;
    Ok(())
}

pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
