//! ptrace(2): a parent looks into its child, a child into the thread that forked it.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::check;
use crate::child::{self, Way};
use crate::content::{Content, PageBytes};
use crate::errno::Errno;
use crate::failure::EXIT_SKIP;
use crate::memory::{Mapping, PAGE};
use crate::rng::Rng;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation(
        "ptrace-child",
        2,
        "reads and writes the memory of a stopped child; EIO is noted",
        childs,
    ),
    operation(
        "ptrace-parent",
        2,
        "a child stops the thread that forked it and reads; EIO is noted",
        parents,
    ),
];

fn ptrace(request: u32, tid: i32, address: usize, data: usize) -> Result<(), Errno> {
    // SAFETY: the callers pass what the request wants; addresses are the traced thread's, which
    // the kernel checks, or point to a word of this process that outlives the call.
    match unsafe { libc::syscall(libc::SYS_ptrace, request as usize, tid as usize, address, data) }
    {
        -1 => Err(Errno::last()),
        _ => Ok(()),
    }
}

/// Reads a page of a stopped thread, a word at a time. Returns nothing when the kernel refuses.
fn peek(tid: i32, address: usize) -> Result<PageBytes, Errno> {
    let mut found = PageBytes::zeroed();
    for (at, bytes) in found.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let mut word = 0_u64;
        let pointer = (&raw mut word).expose_provenance();
        ptrace(libc::PTRACE_PEEKDATA, tid, address + at * 8, pointer)?;
        *bytes = word.to_ne_bytes();
    }
    current::beat();
    Ok(found)
}

/// Writes a page of a stopped thread, a word at a time. The error says whether a part was written.
fn poke(tid: i32, address: usize, bytes: &PageBytes) -> Result<(), (Errno, bool)> {
    for (at, word) in bytes.0.as_chunks::<8>().0.iter().enumerate() {
        let word = u64::from_ne_bytes(*word) as usize;
        ptrace(libc::PTRACE_POKEDATA, tid, address + at * 8, word)
            .map_err(|errno| (errno, at > 0))?;
    }
    current::beat();
    Ok(())
}

/// What the parent has done to the stopped child's page.
const UNTOUCHED: u32 = 0;
const WRITTEN: u32 = 1;
const UNKNOWN: u32 = 2;

fn childs(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let world = turn.world;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 8);
    let index = region.index();
    let target = turn.rng.between(first, first + pages - 1);
    let mut poked = PageBytes::zeroed();
    Content::full(index, target, seed).fill(world.recipe, &mut poked);
    let shared = Mapping::shared(PAGE).map_err(|errno| Skip::errno("mmap", errno))?;
    let word = shared.span().part(0, 4).pointer().cast::<u32>();
    // SAFETY: the page is used as this one word only, and stays mapped beyond the child's end.
    let state = unsafe { AtomicU32::from_ptr(word) };
    let child = child::fork(Way::Libc, world, |inherited| {
        if ptrace(libc::PTRACE_TRACEME, 0, 0, 0).is_err() {
            return EXIT_SKIP;
        }
        // SAFETY: a plain system call: stops until the parent lets go.
        unsafe { libc::syscall(libc::SYS_kill, current::pid(), libc::SIGSTOP) };
        match state.load(SeqCst) {
            UNTOUCHED => inherited.check(index, target),
            WRITTEN => {
                let mut found = PageBytes::zeroed();
                inherited.span(index, target).load(&mut found.0);
                if let Some(at) = (0..PAGE).find(|&at| found.0[at] != poked.0[at]) {
                    fail!(
                        "byte {at} of page {target} of region {index} is {:#04x} in a child, but \
                         {:#04x} was written by ptrace",
                        found.0[at],
                        poked.0[at]
                    );
                }
            }
            _ => {}
        }
        inherited.forget(index, target);
        for page in first..first + pages {
            inherited.check(index, page);
        }
        inherited.check_sample(&mut Rng::new(seed), 100);
        0
    })?;
    let status = child::wait(child.pid);
    if !libc::WIFSTOPPED(status) {
        return child.waited(status);
    }
    let mut note = None;
    let address = |page| check::address(world.table.records, index, page);
    for page in first..first + pages {
        match peek(child.pid, address(page)) {
            Ok(found) => region.compare(page, &found.0, "of a stopped child by ptrace"),
            Err(errno @ Errno(libc::EIO)) => note = Some(errno),
            Err(errno) => fail!("PTRACE_PEEKDATA gave {errno}"),
        }
    }
    match poke(child.pid, address(target), &poked) {
        Ok(()) => state.store(WRITTEN, SeqCst),
        Err((errno @ Errno(libc::EIO), partly)) => {
            note = Some(errno);
            state.store(if partly { UNKNOWN } else { UNTOUCHED }, SeqCst);
        }
        Err((errno, _)) => fail!("PTRACE_POKEDATA gave {errno}"),
    }
    if let Err(errno) = ptrace(libc::PTRACE_DETACH, child.pid, 0, 0) {
        fail!("PTRACE_DETACH gave {errno}");
    }
    child.wait()?;
    region.check(first, pages);
    note.map_or(Ok(()), |errno| Err(Skip::errno("PTRACE_PEEKDATA or PTRACE_POKEDATA", errno)))
}

fn parents(turn: &mut Turn<'_>) -> Outcome {
    let world = turn.world;
    let region = turn.region();
    let (first, pages) = turn.range(&region, 8);
    let index = region.index();
    let tid = current::tid();
    child::fork(Way::Libc, world, |inherited| {
        if ptrace(libc::PTRACE_SEIZE, tid, 0, 0).is_err()
            || ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).is_err()
        {
            return EXIT_SKIP;
        }
        let status = child::wait(tid);
        if !libc::WIFSTOPPED(status) {
            fail!("a thread that was to be stopped has wait status {status:#x}");
        }
        let mut exit = 0;
        for page in first..first + pages {
            match peek(tid, inherited.address(index, page)) {
                Ok(found) => {
                    let route = "of its parent by a child with ptrace";
                    check::copied(world, inherited.records, index, page, &found.0, route);
                }
                Err(Errno(libc::EIO)) => exit = EXIT_SKIP,
                Err(errno) => fail!("PTRACE_PEEKDATA gave {errno}"),
            }
        }
        // A signal that was about to be delivered is passed on.
        let event = status >> 16;
        let signal = if event == 0 { libc::WSTOPSIG(status) as usize } else { 0 };
        if let Err(errno) = ptrace(libc::PTRACE_DETACH, tid, 0, signal) {
            fail!("PTRACE_DETACH gave {errno}");
        }
        exit
    })?
    .wait()
}
