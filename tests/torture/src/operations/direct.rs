//! Direct I/O: the device reads and writes tortured memory itself.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::files::{fill_file, read_back, read_to, write_from};
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::files;

pub(super) const OPERATIONS: &[Operation] = &[
    operation("direct-read", 4, "O_DIRECT read into pages", read),
    operation("direct-write", 4, "O_DIRECT write from pages", write),
];

fn open(turn: &Turn<'_>) -> Result<File, Skip> {
    files::temporary(&turn.world.options.directory, libc::O_DIRECT)
        .map_err(|error| Skip::errno("making a file with O_DIRECT", error.into()))
}

/// Turns direct I/O on or off for a file.
pub(super) fn set_direct(file: &File, direct: bool) -> Outcome {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
        0 => Ok(()),
        _ => Err(Skip::errno("fcntl of O_DIRECT", Errno::last())),
    }
}

fn read(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let world = turn.world;
    region.rewrite_by(first, pages, |span, bytes| {
        // The file is filled through the page cache, from memory of any alignment.
        set_direct(&file, false)?;
        fill_file(&file, bytes)?;
        file.sync_data().map_err(|error| Skip::errno("fdatasync", error.into()))?;
        set_direct(&file, true)?;
        let _pinning = world.pins.pinning();
        read_to(span, &file, "direct pread");
        Ok(())
    })
}

fn write(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let world = turn.world;
    region.export_by(first, pages, "by direct pwrite", |span, bytes| {
        {
            let _pinning = world.pins.pinning();
            write_from(span, &file, "direct pwrite");
        }
        set_direct(&file, false)?;
        read_back(&file, bytes)
    })
}
