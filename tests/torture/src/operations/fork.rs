//! Children with a copy of the memory, made by every way there is.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::child::{self, Child, Tie, Way};
use crate::errno::Errno;
use crate::failure::EXIT_SKIP;
use crate::memory::{Mapping, PAGE, Span};
use crate::rng::Rng;
use crate::snapshot::Inherited;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("fork-verify", 3, "a child compares all memory and writes some", verify),
    operation("fork-sample", 6, "a child compares and writes pages here and there", sample),
    operation("fork-parallel", 3, "parent and child write while the child compares", parallel),
    operation("fork-held", 3, "forks with a region locked, which the child compares", held),
    operation("fork-chain", 2, "children of children of children", chain),
    operation("fork-loop", 1, "60 children, one after the other", repeated),
    operation("fork-daemon", 2, "a grandchild whose parent has gone compares all memory", daemon),
    operation(
        "raw-clone",
        3,
        "as fork-sample by the clone system call, behind libc's back",
        raw_clone,
    ),
    operation("raw-clone3", 2, "as fork-sample by the clone3 system call", raw_clone3),
    operation("raw-fork", 2, "as fork-sample by the fork system call", raw_fork),
];

fn all(inherited: &Inherited<'_>, seed: u64) -> i32 {
    let mut rng = Rng::new(seed);
    inherited.check_all();
    inherited.write_sample(&mut rng, 200);
    inherited.count_sample(&mut rng, 100);
    inherited.check_sample(&mut rng, 2000);
    0
}

fn some(inherited: &Inherited<'_>, seed: u64) -> i32 {
    let mut rng = Rng::new(seed);
    inherited.check_sample(&mut rng, 100);
    inherited.write_sample(&mut rng, 50);
    inherited.count_sample(&mut rng, 50);
    inherited.check_sample(&mut rng, 200);
    0
}

fn verify(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    child::fork(Way::Libc, turn.world, |inherited| all(inherited, seed))?.wait()
}

fn sample(turn: &mut Turn<'_>) -> Outcome {
    by(turn, Way::Libc)
}

fn raw_clone(turn: &mut Turn<'_>) -> Outcome {
    by(turn, Way::RawClone)
}

fn raw_clone3(turn: &mut Turn<'_>) -> Outcome {
    by(turn, Way::RawClone3)
}

fn raw_fork(turn: &mut Turn<'_>) -> Outcome {
    by(turn, Way::RawFork)
}

fn by(turn: &mut Turn<'_>, way: Way) -> Outcome {
    let seed = turn.rng.word();
    child::fork(way, turn.world, |inherited| some(inherited, seed))?.wait()
}

fn parallel(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 256);
    let index = region.index();
    let child = child::fork(Way::Libc, turn.world, |inherited| {
        let mut rng = Rng::new(seed);
        for _ in 0..pages {
            let page = first + rng.below(pages);
            inherited.check(index, page);
            inherited.write(index, page);
        }
        inherited.check_all();
        0
    });
    for page in first..first + pages {
        region.write_full(page);
    }
    region.check(first, pages);
    drop(region);
    child?.wait()
}

fn held(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    for page in first..first + pages {
        region.write_partial(page);
    }
    let index = region.index();
    let outcome = child::fork(Way::Libc, turn.world, |inherited| {
        let mut rng = Rng::new(seed);
        for page in 0..inherited.pages(index) {
            // The forking thread holds the lock, so nothing of the region was in motion.
            if !inherited.known(index, page) {
                fail!("page {page} of region {index} changed during a fork, lock or no lock");
            }
        }
        inherited.check_region(index);
        for page in first..first + pages {
            if rng.percent(50) {
                inherited.write(index, page);
            }
        }
        inherited.check_region(index);
        0
    })
    .and_then(Child::wait);
    region.check_all();
    outcome
}

fn chain(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let depth = turn.rng.between(2, 5);
    child::fork(Way::Libc, turn.world, |inherited| link(inherited, seed, depth))?.wait()
}

/// One child of a chain: forks the next, which must see what this one has written.
fn link(inherited: &Inherited<'_>, seed: u64, depth: usize) -> i32 {
    let mut rng = Rng::new(seed ^ depth as u64);
    inherited.write_sample(&mut rng, 50);
    inherited.check_sample(&mut rng, 100);
    if depth == 0 {
        inherited.check_all();
        return 0;
    }
    let way = *rng.pick(&[Way::Libc, Way::RawClone]);
    let next = child::fork_again(way, inherited, Tie::Parent, |next| link(next, seed, depth - 1));
    inherited.write_sample(&mut rng, 50);
    let status = match next {
        Ok(next) => next.wait_in_child(),
        Err(_) => EXIT_SKIP,
    };
    inherited.check_sample(&mut rng, 200);
    status
}

fn repeated(turn: &mut Turn<'_>) -> Outcome {
    for _ in 0..60 {
        let seed = turn.rng.word();
        let mut region = turn.region();
        let (first, pages) = turn.range(&region, 16);
        for page in first..first + pages {
            region.write_full(page);
        }
        let index = region.index();
        drop(region);
        let child = child::fork(Way::Libc, turn.world, |inherited| {
            let mut rng = Rng::new(seed);
            for page in first..first + pages {
                inherited.check(index, page);
            }
            inherited.write_sample(&mut rng, 10);
            inherited.check_sample(&mut rng, 40);
            0
        })?;
        child.wait()?;
    }
    Ok(())
}

/// What the grandchild of `daemon` has to say.
const SILENT: u32 = 0;
const RIGHT: u32 = 1;
const SKIPPED: u32 = 2;

fn daemon(turn: &mut Turn<'_>) -> Outcome {
    let seed = turn.rng.word();
    let shared = Mapping::shared(PAGE).map_err(|errno| Skip::errno("mmap", errno))?;
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Skip::errno("pipe2", Errno::last()));
    }
    let child = child::fork(Way::Libc, turn.world, |inherited| {
        // SAFETY: plain system calls.
        unsafe {
            libc::setsid();
            libc::close(ends[0]);
        }
        let grandchild = child::fork_again(Way::Libc, inherited, Tie::None, |inherited| {
            let status = all(inherited, seed);
            word(shared.span()).store(RIGHT, SeqCst);
            // The pipe's other end closes with the process.
            status
        });
        match grandchild {
            Ok(_) => 0,
            Err(_) => {
                word(shared.span()).store(SKIPPED, SeqCst);
                0
            }
        }
    });
    // SAFETY: the descriptor was made above; the children have copies of it.
    unsafe { libc::close(ends[1]) };
    let outcome = child.and_then(Child::wait);
    // Ends when the grandchild, which alone still has the other end, has ended.
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte is writable.
        let got = unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
        current::beat();
        if got == 0 {
            break;
        }
        if got < 0 && Errno::last().0 != libc::EINTR {
            fail!("read of a pipe gave {}", Errno::last());
        }
    }
    // SAFETY: the descriptor was made above.
    unsafe { libc::close(ends[0]) };
    outcome?;
    match word(shared.span()).load(SeqCst) {
        RIGHT => Ok(()),
        SKIPPED => Err(Skip::note("a child could not fork")),
        SILENT => fail!("a grandchild ended without a word"),
        other => fail!("a grandchild said {other}"),
    }
}

fn word(span: Span<'_>) -> &AtomicU32 {
    // SAFETY: the span is a page of shared memory that is used as this one word only.
    unsafe { AtomicU32::from_ptr(span.pointer().cast()) }
}
