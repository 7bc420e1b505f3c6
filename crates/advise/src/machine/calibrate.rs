//! Runs a small workload under the agent, to see what its faults cost here.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use ramfold_launch::{Launch, Message, Run, Size, StartError, WaitError};

use super::workload::Kind;
use super::{PageCost, Spread};
use crate::lock;
use crate::progress::Progress;

/// Memory of the workload.
const BYTES: usize = 32 << 20;
/// The cap that it runs in, with about half of its pages out.
const CAP_BYTES: u64 = 24 << 20;
/// The same for what grows from [`BYTES`] to twice that.
const GROWTH_CAP_BYTES: u64 = 36 << 20;
/// No cap for this workload.
const NO_CAP_BYTES: u64 = 1 << 40;
/// Fewer pages than this say nothing.
const PAGES_MIN: f64 = 500.0;
/// On a busy machine a workload can be over before its agent has seen it grow: it is run again, so
/// many times at most.
const TRIES: usize = 4;

/// Why the machine could not be calibrated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The workload was not started.
    #[error("cannot start the calibration's workload")]
    Start(#[from] StartError),
    /// It ran without an agent.
    #[error("{0}")]
    Without(String),
    /// It did not say what it should.
    #[error("the calibration's workload ended early")]
    Ended,
    /// Its pipe.
    #[error("cannot talk to the calibration's workload")]
    Pipe(#[from] io::Error),
    /// Its end.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// Nothing was compressed.
    #[error(
        "the calibration's workload of {kind} had only {pages} pages compressed or brought back{said}"
    )]
    Few {
        /// Which workload.
        kind: &'static str,
        /// What its agent said.
        said: String,
        /// So many.
        pages: u64,
    },
}

/// What starts the workload: a program, and arguments before the kind and the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Starter<'a> {
    /// The program.
    pub program: &'a Path,
    /// Its first arguments.
    pub arguments: &'a [&'a str],
}

/// What happened in the part that was timed.
#[derive(Debug)]
struct Phase {
    wall_s: f64,
    /// Of program and agent.
    processor_s: f64,
    pages: f64,
    /// Messages of the agent, each after a colon.
    said: String,
}

/// Measures a kind, without and with a cap in turns.
pub(super) fn measure(
    starter: Starter<'_>,
    kind: Kind,
    turns: usize,
    progress: &Progress,
) -> Result<PageCost, Error> {
    let cap = if kind == Kind::Growth { GROWTH_CAP_BYTES } else { CAP_BYTES };
    let (mut walls, mut processors) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let free = run(starter, kind, NO_CAP_BYTES)?;
        progress.add(1);
        let mut capped = run(starter, kind, cap)?;
        for _ in 1..TRIES {
            if capped.pages >= PAGES_MIN {
                break;
            }
            capped = run(starter, kind, cap)?;
        }
        progress.add(1);
        if capped.pages < PAGES_MIN {
            let (kind, pages) = (kind.name(), capped.pages as u64);
            return Err(Error::Few { kind, pages, said: capped.said });
        }
        // A page cannot cost less than nothing, however noisy the machine is.
        let cost = |capped_s: f64, free_s: f64| ((capped_s - free_s) / capped.pages).max(1e-9);
        walls.push(cost(capped.wall_s, free.wall_s));
        processors.push(cost(capped.processor_s, free.processor_s));
    }
    Ok(PageCost { wall_s: Spread::of(walls), processor_s: Spread::of(processors) })
}

fn run(starter: Starter<'_>, kind: Kind, cap: u64) -> Result<Phase, Error> {
    let heard = Arc::new(Mutex::new(Heard::default()));
    let run = Launch::new(starter.program)
        .args(starter.arguments)
        .args([kind.name(), &BYTES.to_string()])
        .memory(Size::Bytes(cap))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .on_message({
            let heard = Arc::clone(&heard);
            move |message| lock(&heard).note(&message)
        })
        .start()?;
    if let Some(text) = lock(&heard).without.take() {
        return Err(Error::Without(text));
    }
    let (Some(mut stdin), Some(stdout)) = (run.take_stdin(), run.take_stdout()) else {
        return Err(Error::Ended);
    };
    let mut lines = BufReader::new(stdout).lines();
    let mut next = || lines.next().ok_or(Error::Ended)?.map_err(Error::from);
    if next()? != "ready" {
        return Err(Error::Ended);
    }
    let (pages, processor_s) = (pages(&run, kind), processor_seconds(&run));
    stdin.write_all(b"\n")?;
    let took_ns: u64 = next()?.parse().map_err(|_| Error::Ended)?;
    let mut phase = Phase {
        wall_s: took_ns as f64 / 1e9,
        processor_s: processor_seconds(&run) - processor_s,
        pages: self::pages(&run, kind) - pages,
        said: String::new(),
    };
    stdin.write_all(b"\n")?;
    drop(stdin);
    run.wait()?;
    phase.said = std::mem::take(&mut lock(&heard).said);
    Ok(phase)
}

/// What the user of a run would be told.
#[derive(Default)]
struct Heard {
    /// Why there is no agent.
    without: Option<String>,
    said: String,
}

impl Heard {
    fn note(&mut self, message: &Message) {
        match message {
            Message::RunsWithout(reason) => self.without = Some(reason.to_string()),
            message => self.said += &format!(": {message}"),
        }
    }
}

/// The pages that a kind's cost is by.
fn pages(run: &Run, kind: Kind) -> f64 {
    let statistics = run.statistics();
    let number = |name| statistics.number(name).unwrap_or_default() as f64;
    match kind {
        Kind::Faults => number("faults") - number("faults_zero_filled"),
        Kind::Stream => number("pages_swapped_in") + number("pages_second_chance"),
        Kind::Growth => number("pages_swapped_out"),
    }
}

/// Of the program and its agent, as far as the kernel says.
fn processor_seconds(run: &Run) -> f64 {
    std::iter::once(run.id()).chain(run.agent()).map(processor_seconds_of).sum()
}

fn processor_seconds_of(process: u32) -> f64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { return 0.0 };
    let of_thread = |folder: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(folder.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    threads.flatten().filter_map(of_thread).sum::<u64>() as f64 / 1e9
}
