//! Temporary files that nobody else sees.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::current;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Makes a file without a name in `directory`, with extra open(2) `flags`.
pub(crate) fn temporary(directory: &Path, flags: i32) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true);
    match how.clone().custom_flags(flags | libc::O_TMPFILE).mode(0o600).open(directory) {
        Ok(file) => Ok(file),
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)
            ) =>
        {
            named(directory, flags)
        }
        Err(error) => Err(error),
    }
}

/// For file systems that know no files without a name: makes one and removes the name.
fn named(directory: &Path, flags: i32) -> io::Result<File> {
    let number = NEXT.fetch_add(1, Relaxed);
    let path = directory.join(format!("ramfold-torture-{}-{number}", current::pid()));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .custom_flags(flags)
        .mode(0o600)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
