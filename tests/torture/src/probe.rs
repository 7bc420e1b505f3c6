//! A small program with a known answer: what the tortured one starts by exec.

use std::io::Write;
use std::process::ExitCode;

use crate::content::{Content, PageBytes, Recipe};
use crate::fail;
use crate::failure::{EXIT_USAGE, EXIT_WRONG};
use crate::memory::{Mapping, PAGE};
use crate::rng::mix;

/// Pages of memory the program uses: 1 MiB.
const PAGES: usize = 256;
/// Region number of its contents; no region has it.
const REGION: usize = 3900;

/// The ways to end that a program has, and the wait status each leads to.
pub(crate) const ENDINGS: [(&str, Ending); 4] = [
    ("exit", Ending::Exit),
    ("quick", Ending::Quick),
    ("abort", Ending::Abort),
    ("last-thread", Ending::LastThread),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// exit(3), while a thread is still busy.
    Exit,
    /// _exit(2), while a thread is still busy.
    Quick,
    Abort,
    /// The main thread ends itself; the process ends with its last thread.
    LastThread,
}

impl Ending {
    /// Whether wait(2) reports what this ending leads to.
    pub(crate) fn fits(self, status: i32) -> bool {
        match self {
            Self::Abort => libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT,
            _ => libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        }
    }
}

fn recipe(seed: u64) -> Recipe {
    Recipe { seed, incompressible_percent: 10 }
}

fn absorb(state: u64, page: &PageBytes) -> u64 {
    page.0.as_chunks::<8>().0.iter().fold(state, |state, word| {
        (state.rotate_left(5) ^ u64::from_ne_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

/// What the program prints.
pub(crate) fn answer(seed: u64) -> String {
    let mut page = PageBytes::zeroed();
    let hash = (0..PAGES).fold(0, |state, index| {
        Content::full(REGION, index, 1).fill(recipe(seed), &mut page);
        absorb(state, &page)
    });
    format!("probe {seed} {hash:016x}\n")
}

/// The program's main.
pub(crate) fn run(kind: &str, seed: u64) -> ExitCode {
    let Some(&(_, ending)) = ENDINGS.iter().find(|(name, _)| *name == kind) else {
        eprintln!("ramfold-torture: --probe {kind}: no such ending");
        return ExitCode::from(EXIT_USAGE as u8);
    };
    // Whatever becomes of this program's end, it must not outlive the thread that started it.
    // SAFETY: a plain system call.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let memory = match Mapping::anonymous(PAGES * PAGE) {
        Ok(memory) => memory,
        Err(errno) => fail!("cannot map {PAGES} pages: {errno}"),
    };
    let mut page = PageBytes::zeroed();
    for index in 0..PAGES {
        Content::full(REGION, index, 1).fill(recipe(seed), &mut page);
        memory.span().page(index).store(&page.0);
    }
    let hash = (0..PAGES).fold(0, |state, index| {
        memory.span().page(index).load(&mut page.0);
        absorb(state, &page)
    });
    let mut out = std::io::stdout();
    if out.write_all(format!("probe {seed} {hash:016x}\n").as_bytes()).is_err()
        || out.flush().is_err()
    {
        return ExitCode::from(EXIT_WRONG as u8);
    }
    match ending {
        Ending::Exit => {
            stay_busy(seed, None);
            ExitCode::SUCCESS
        }
        Ending::Quick => {
            stay_busy(seed, None);
            crate::failure::end(0)
        }
        Ending::Abort => std::process::abort(),
        Ending::LastThread => {
            stay_busy(seed, Some(2000));
            // pthread_exit would unwind through the language's own frames, which it forbids.
            // SAFETY: nothing on this thread's stack is used by the other one, and no destructor
            // runs.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            ExitCode::from(EXIT_WRONG as u8)
        }
    }
}

/// Starts a thread that goes on writing memory, for a number of pages or for good.
fn stay_busy(seed: u64, pages: Option<u64>) {
    std::thread::spawn(move || {
        let mut memory = vec![PageBytes::zeroed(); PAGES];
        for count in 0_u64.. {
            if pages.is_some_and(|pages| count == pages) {
                return;
            }
            let index = mix(&[seed, count]) as usize % PAGES;
            Content::full(REGION, index, count).fill(recipe(seed), &mut memory[index]);
        }
    });
}
