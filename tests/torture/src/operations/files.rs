//! read(2), write(2) and their relatives, to and from tortured memory.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::handlers::Quiet;
use crate::memory::{PAGE, Span};
use crate::rng::Rng;
use crate::{current, fail, files, worker};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("file-read", 5, "pread into pages", read),
    operation("file-write", 5, "pwrite from pages", write),
    operation("file-readv", 4, "preadv into pieces of pages", readv),
    operation("file-writev", 4, "pwritev from pieces of pages", writev),
];

fn open(turn: &Turn<'_>) -> Result<File, Skip> {
    files::temporary(&turn.world.options.directory, 0)
        .map_err(|error| Skip::errno("making a file", error.into()))
}

/// Repeats `call`, which is told how many bytes are done and returns how many it did, until all
/// `bytes` are done. A system call that cannot reach the memory is wrong.
pub(super) fn repeat(name: &str, bytes: usize, mut call: impl FnMut(usize) -> isize) {
    let mut done = 0;
    while done < bytes {
        let result = call(done);
        current::beat();
        match result {
            0 => fail!("{name} stopped after {done} of {bytes} bytes"),
            1.. => done += result as usize,
            _ => match Errno::last() {
                Errno(libc::EINTR) => {}
                errno => fail!("{name} gave {errno} after {done} of {bytes} bytes"),
            },
        }
    }
    if done > bytes {
        fail!("{name} did {done} bytes, {bytes} were asked for");
    }
}

pub(super) fn fill_file(file: &File, bytes: &[u8]) -> Outcome {
    file.write_all_at(bytes, 0).map_err(|error| Skip::errno("writing a file", error.into()))
}

/// The start of a file, as it is without tortured memory.
pub(super) fn read_back(file: &File, bytes: &mut [u8]) -> Outcome {
    file.read_exact_at(bytes, 0).map_err(|error| Skip::errno("reading a file", error.into()))
}

/// Reads from the start of a file into a span that is held and writable.
pub(super) fn read_to(span: Span<'_>, file: &File, name: &str) {
    repeat(name, span.bytes(), |done| {
        let rest = span.part(done, span.bytes() - done);
        // SAFETY: the span is held and writable.
        unsafe { libc::pread(file.as_raw_fd(), rest.void(), rest.bytes(), done as i64) }
    });
}

/// Writes a span that is held and readable to the start of a file.
pub(super) fn write_from(span: Span<'_>, file: &File, name: &str) {
    repeat(name, span.bytes(), |done| {
        let rest = span.part(done, span.bytes() - done);
        // SAFETY: the span is held and readable.
        unsafe { libc::pwrite(file.as_raw_fd(), rest.void(), rest.bytes(), done as i64) }
    });
}

fn read(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    region.rewrite_by(first, pages, |span, bytes| {
        fill_file(&file, bytes)?;
        read_to(span, &file, "pread");
        Ok(())
    })
}

fn write(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    region.export_by(first, pages, "by pwrite", |span, bytes| {
        write_from(span, &file, "pwrite");
        read_back(&file, bytes)
    })
}

/// Has another thread, which acts for `thread`, send while this one receives.
pub(super) fn send_while(thread: usize, send: impl FnOnce() + Send, receive: impl FnOnce()) {
    let _quiet = Quiet::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _stack = worker::join_in(thread);
            send();
        });
        receive();
    });
}

/// Cuts a span into pieces of odd lengths.
pub(super) fn pieces(span: Span<'_>, rng: &mut Rng) -> Vec<libc::iovec> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < span.bytes() && pieces.len() < 512 {
        let bytes = rng.between(1, 3 * PAGE).min(span.bytes() - at);
        pieces.push(span.part(at, bytes).iovec());
        at += bytes;
    }
    if at < span.bytes() {
        pieces.push(span.part(at, span.bytes() - at).iovec());
    }
    pieces
}

fn readv(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let rng = &mut turn.rng;
    region.rewrite_by(first, pages, |span, bytes| {
        fill_file(&file, bytes)?;
        repeat("preadv", bytes.len(), |done| {
            let pieces = pieces(span.part(done, bytes.len() - done), rng);
            let count = pieces.len() as i32;
            // SAFETY: the pieces are parts of a span that is held and writable.
            unsafe { libc::preadv(file.as_raw_fd(), pieces.as_ptr(), count, done as i64) }
        });
        Ok(())
    })
}

fn writev(turn: &mut Turn<'_>) -> Outcome {
    let file = open(turn)?;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let rng = &mut turn.rng;
    region.export_by(first, pages, "by pwritev", |span, bytes| {
        repeat("pwritev", bytes.len(), |done| {
            let pieces = pieces(span.part(done, bytes.len() - done), rng);
            let count = pieces.len() as i32;
            // SAFETY: the pieces are parts of a span that is held and readable.
            unsafe { libc::pwritev(file.as_raw_fd(), pieces.as_ptr(), count, done as i64) }
        });
        read_back(&file, bytes)
    })
}
