//! process_vm_readv and process_vm_writev, on this process and from a child on its parent.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::check;
use crate::child::{self, Child, Way};
use crate::content::PageBytes;
use crate::errno::Errno;
use crate::failure::EXIT_SKIP;
use crate::memory::{PAGE, Span};
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("process-vm-self", 4, "process_vm_readv and _writev on the process itself", own),
    operation("process-vm-child", 3, "a child reads and writes its parent's memory", childs),
];

/// Errors by which a kernel or its security rules refuse the calls altogether.
fn is_refusal(errno: Errno) -> bool {
    matches!(errno.0, libc::EPERM | libc::ENOSYS | libc::EACCES)
}

/// One process_vm call: `local` memory of this process, `remote` memory of process `pid`.
fn transfer(
    pid: i32,
    local: (*mut libc::c_void, usize),
    remote: (usize, usize),
    write: bool,
) -> Result<usize, Errno> {
    let here = libc::iovec { iov_base: local.0, iov_len: local.1 };
    let there = libc::iovec {
        iov_base: std::ptr::with_exposed_provenance_mut(remote.0),
        iov_len: remote.1,
    };
    // SAFETY: both callers name memory they hold; the remote side is checked by the kernel.
    let result = unsafe {
        if write {
            libc::process_vm_writev(pid, &here, 1, &there, 1, 0)
        } else {
            libc::process_vm_readv(pid, &here, 1, &there, 1, 0)
        }
    };
    current::beat();
    if result < 0 { Err(Errno::last()) } else { Ok(result as usize) }
}

/// Moves all bytes between `bytes` and the span's place in process `pid`, a part at a time.
fn transfer_all(pid: i32, bytes: *mut u8, span: Span<'_>, write: bool) -> Outcome {
    let name = if write { "process_vm_writev" } else { "process_vm_readv" };
    let mut done = 0;
    while done < span.bytes() {
        let rest = span.bytes() - done;
        let local = (bytes.wrapping_add(done).cast(), rest);
        match transfer(pid, local, (span.address() + done, rest), write) {
            Ok(0) => fail!("{name} stopped after {done} bytes"),
            Ok(more) => done += more,
            Err(Errno(libc::EINTR)) => {}
            Err(errno) if is_refusal(errno) => return Err(Skip::errno(name, errno)),
            Err(errno) => fail!("{name} gave {errno} after {done} of {} bytes", span.bytes()),
        }
    }
    Ok(())
}

fn own(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    let pid = current::pid();
    region.rewrite_by(first, pages, |span, bytes| {
        transfer_all(pid, bytes.as_ptr().cast_mut(), span, true)
    })?;
    region.export_by(first, pages, "by process_vm_readv", |span, bytes| {
        transfer_all(pid, bytes.as_mut_ptr(), span, false)
    })
}

fn childs(turn: &mut Turn<'_>) -> Outcome {
    let world = turn.world;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    let index = region.index();
    let parent = current::pid();
    let address = region.span(first, pages).address();
    // The child compares what its parent has, which waits and keeps the region locked.
    let reading = child::fork(Way::Libc, world, |inherited| {
        for page in first..first + pages {
            let mut found = PageBytes::zeroed();
            // SAFETY: the kernel checks the parent's addresses; here nothing is touched.
            let place = unsafe { Span::new(address + (page - first) * PAGE, PAGE) };
            if transfer_all(parent, found.0.as_mut_ptr(), place, false).is_err() {
                return EXIT_SKIP;
            }
            let route = "by process_vm_readv in a child";
            check::copied(world, inherited.records, index, page, &found.0, route);
        }
        0
    })
    .and_then(Child::wait);
    reading?;
    region.rewrite_by(first, pages, |span, bytes| {
        child::fork(Way::Libc, world, |_| {
            match transfer_all(parent, bytes.as_ptr().cast_mut(), span, true) {
                Ok(()) => 0,
                Err(_) => EXIT_SKIP,
            }
        })
        .and_then(Child::wait)
    })
}
