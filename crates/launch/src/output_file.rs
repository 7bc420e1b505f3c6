//! Files that are written while a program runs or when it has ended. What would fail then is better
//! said before the program runs.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Could the file be written?
///
/// # Errors
/// When it could not. Nothing is made or changed.
pub fn check(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(metadata) if metadata.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => Ok(()),
        _ => tempfile::tempfile_in(folder_of(file)).map(drop),
    }
}

/// Writes it: something like /dev/stdout or a pipe is written to, a file is replaced at once.
///
/// # Errors
/// When it cannot be written; a file is then as it was.
pub fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if is_special(file) {
        return fs::write(file, bytes);
    }
    let mut new = tempfile::NamedTempFile::new_in(folder_of(file))?;
    new.write_all(bytes)?;
    new.persist(file)?;
    Ok(())
}

/// The same for what is written bit by bit: the new file is there, and empty.
///
/// # Errors
/// When it cannot be made.
pub fn begin(file: &Path) -> io::Result<File> {
    check(file)?;
    if is_special(file) {
        return File::options().write(true).open(file);
    }
    Ok(tempfile::NamedTempFile::new_in(folder_of(file))?.persist(file)?)
}

fn is_special(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| !metadata.is_file())
}

/// The folder that a file is in.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
