//! Pipes, by copying and by lending pages.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::files::{pieces, repeat, send_while};
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::{PAGE, Span};
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("pipe", 5, "pages through a pipe into other pages, by read and write", pipe),
    operation("vmsplice", 4, "lends pages to a pipe and reads them from it later", vmsplice),
];

/// A pipe: where to read, where to write.
fn make() -> Result<(OwnedFd, OwnedFd), Skip> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Skip::errno("pipe2", Errno::last()));
    }
    // SAFETY: both were made just now and belong to nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn pipe(turn: &mut Turn<'_>) -> Outcome {
    let (reader, writer) = make()?;
    let thread = turn.thread;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let mut rng = turn.rng.clone();
    region.rewrite_by(first, pages, |span, bytes| {
        let send = || {
            // From another mapping to the pipe in odd pieces.
            repeat("write to a pipe", bytes.len(), |done| {
                let rest = &bytes[done..];
                // SAFETY: the slice is readable.
                unsafe { libc::write(writer.as_raw_fd(), rest.as_ptr().cast(), rest.len()) }
            });
        };
        send_while(thread, send, || {
            repeat("readv from a pipe", bytes.len(), |done| {
                let pieces = pieces(span.part(done, bytes.len() - done), &mut rng);
                let count = pieces.len() as i32;
                // SAFETY: the pieces are parts of a span that is held and writable.
                unsafe { libc::readv(reader.as_raw_fd(), pieces.as_ptr(), count) }
            });
        });
        Ok(())
    })?;
    region.export_by(first, pages, "by write to a pipe", |span, bytes| {
        let (length, address) = (bytes.len(), span.address());
        let send = || {
            // SAFETY: the thread ends before the span does, and only reads it.
            let span = unsafe { Span::new(address, length) };
            repeat("write to a pipe", length, |done| {
                let rest = span.part(done, length - done);
                // SAFETY: the span is held and readable.
                unsafe { libc::write(writer.as_raw_fd(), rest.void(), rest.bytes()) }
            });
        };
        send_while(thread, send, || {
            repeat("read from a pipe", length, |done| {
                let rest = &mut bytes[done..];
                // SAFETY: the slice is writable.
                unsafe { libc::read(reader.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len()) }
            });
        });
        Ok(())
    })
}

fn vmsplice(turn: &mut Turn<'_>) -> Outcome {
    let (reader, writer) = make()?;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 16);
    let span = region.span(first, pages);
    let vector = span.iovec();
    // SAFETY: the span is held; nobody writes it until the pipe has been read.
    let lent = unsafe { libc::vmsplice(writer.as_raw_fd(), &vector, 1, libc::SPLICE_F_NONBLOCK) };
    let lent = match lent {
        0.. => lent as usize,
        _ => match Errno::last() {
            errno @ Errno(libc::EAGAIN | libc::ENOSYS | libc::EPERM | libc::EINVAL) => {
                return Err(Skip::errno("vmsplice", errno));
            }
            errno => fail!("vmsplice of {pages} pages gave {errno}"),
        },
    };
    // The pipe holds the pages, not their bytes. Other memory is used meanwhile, so that a pager
    // has both the time and a reason to take these pages.
    for _ in 0..turn.rng.between(1, 400) {
        let world = turn.world;
        world.check_lockless(world.fixed_region, turn.rng.below(world.pages(world.fixed_region)));
    }
    if turn.rng.percent(30) {
        std::thread::sleep(std::time::Duration::from_millis(turn.rng.between(1, 40) as u64));
    }
    if turn.rng.percent(30) {
        region.check(first, pages);
    }
    current::beat();
    let whole = lent - lent % PAGE;
    let mut bytes = vec![0; whole];
    repeat("read from a pipe", whole, |done| {
        let rest = &mut bytes[done..];
        // SAFETY: the slice is writable.
        unsafe { libc::read(reader.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len()) }
    });
    region.compare(first, &bytes, "by vmsplice");
    region.check(first, pages);
    Ok(())
}
