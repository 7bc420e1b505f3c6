//! Observes a program from its start on: the agent is in its processes, and watches a sample of
//! their pages ([`ramfold_launch::Launch::watch_pages`]).

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ramfold_launch::{
    Ended, Launch, Message, PageContent, PageEvent, Run, SeenPages, StartError, WaitError,
    WatchOutcome, Watched,
};
use ramfold_model::page_of_process;
use ramfold_trace::PAGE_SIZE;
use ramfold_trace::recorded::{Event, What};

use crate::lock;
use crate::measure::random::Random;
use crate::measure::touches::Touches;
use crate::measure::{self, Raw};
use crate::meter::{Meter, others_took};
use crate::observation::{BLOCK_PAGES, Observation, Size, Subject, WholeRun};

/// Between two looks at how much memory the program has.
const LOOK: Duration = Duration::from_millis(20);
/// Processor time of the looks at all pages, which another processor gives: a multiple of what
/// observation may take of the program's time.
const BESIDE: f64 = 10.0;
/// Sizes that are kept: where there are more, each second one is dropped.
const SIZES_MAX: usize = 2000;
/// Blocks whose content is kept until the program has ended: 16 MiB. Then it takes none of the
/// program's time to see how small they become.
const BLOCKS_MAX: usize = 512;

/// Why a program was not observed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It is not known how it ended.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// It is not known what the machine has.
    #[error(transparent)]
    Machine(#[from] measure::Error),
    /// It ran without the agent.
    #[error("the program ran without ramfold, so nothing was seen of its memory: {0}")]
    Without(String),
}

/// As traces have it.
pub fn trace_event(seen: PageEvent) -> Event {
    let PageEvent { process, page, time_us, watched_us, what } = seen;
    let what = match what {
        Watched::Touched => What::Touched { watched_us },
        Watched::Appeared => What::Appeared,
        Watched::Gone => What::Gone,
        Watched::Untouched => What::Untouched { watched_us },
        Watched::Ended => What::Ended,
    };
    Event { time_us, page: page_of_process(process.into(), page), what }
}

/// What was seen so far.
struct Seen {
    events: Vec<Event>,
    blocks: Vec<Raw>,
    /// Blocks that were offered, kept or not.
    offered: u64,
    random: Random,
    outcome: Option<WatchOutcome>,
    /// Why there is no agent.
    without: Option<String>,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            events: Vec::new(),
            blocks: Vec::new(),
            offered: 0,
            random: Random::new(),
            outcome: None,
            without: None,
        }
    }

    fn note(&mut self, seen: SeenPages) {
        match seen {
            SeenPages::Event(event) => self.events.push(trace_event(event)),
            SeenPages::Content(content) => self.keep(content),
        }
    }

    /// Each block that is offered is kept with the same chance.
    fn keep(&mut self, content: PageContent) {
        let PageContent { process, first_page, time_us, pages } = content;
        let first_page = page_of_process(process.into(), first_page);
        let raw = Raw { first_page, at_s: time_us as f64 / 1e6, pages };
        self.offered += 1;
        if self.blocks.len() < BLOCKS_MAX {
            return self.blocks.push(raw);
        }
        let place = self.random.below(self.offered);
        if let Some(kept) = self.blocks.get_mut(place as usize) {
            *kept = raw;
        }
    }
}

/// Runs a program and observes it until it ends. `launch` has all about it but the watching and
/// who takes messages: `on_message` does. `started` is called when it runs. Observation takes so
/// much of its time, in millionths.
///
/// # Errors
/// When it did not start, or nothing can be seen of it.
pub fn observe(
    launch: &mut Launch,
    command: Vec<String>,
    slowdown_ppm: u64,
    on_message: impl Fn(Message) + Send + Sync + 'static,
    started: impl FnOnce(&Arc<Run>),
) -> Result<(Observation, Ended), Error> {
    let seen = Arc::new(Mutex::new(Seen::new()));
    launch.watch_pages(slowdown_ppm, {
        let seen = Arc::clone(&seen);
        move |pages| lock(&seen).note(pages)
    });
    launch.on_message({
        let seen = Arc::clone(&seen);
        move |message| match message {
            Message::PageWatch(outcome) => lock(&seen).outcome = Some(outcome),
            message => {
                if let Message::RunsWithout(reason) = &message {
                    lock(&seen).without = Some(reason.to_string());
                }
                on_message(message);
            }
        }
    });
    let empty = measure::empty(Subject::Program(command), measure::own_machine()?);
    let meter = Meter::start();
    let run = Arc::new(launch.start()?);
    started(&run);
    // Beside the program, which takes its time only where there is no other processor.
    let slowdown = slowdown_ppm as f64 / 1e6;
    let share = if empty.machine.processors > 1 { BESIDE * slowdown } else { slowdown };
    let touches = Touches::begin(run.id(), meter.began, share);
    let waited = wait(&run, meter.began);
    let rounds = touches.map(Touches::end).unwrap_or_default();
    let (ended, sizes) = waited?;
    let (wall_s, processor_s, taken) = (meter.wall_s(), meter.children_s(), meter.others());
    let statistics = run.statistics();
    let observation_s = statistics.number("fault_ns_total").unwrap_or(0) as f64 / 1e9;
    let mut seen = std::mem::replace(&mut *lock(&seen), Seen::new());
    if let Some(reason) = seen.without {
        return Err(Error::Without(reason));
    }
    let outcome = seen.outcome.unwrap_or(WatchOutcome { one_in: 1, lost: 0, lacks_content: false });
    seen.events.retain(|event| is_in_sample(event, outcome.one_in));
    // Agents write at the same time.
    seen.events.sort_by_key(|event| event.time_us);
    let need_bytes = sizes.iter().map(|size| size.bytes).max().unwrap_or(0).max(1);
    let observation = Observation {
        seconds: wall_s,
        run: Some(WholeRun { wall_s, processor_s, observation_s }),
        need_bytes,
        sizes,
        contents: measure::compressed(&seen.blocks, || true),
        one_in: outcome.one_in,
        not_seen: not_seen(outcome, taken, rounds.is_empty()),
        rounds,
        events: seen.events,
        ..empty
    };
    Ok((observation, ended))
}

fn is_in_sample(event: &Event, one_in: u32) -> bool {
    event.what == What::Ended || ramfold_model::is_block_sampled(event.page / BLOCK_PAGES, one_in)
}

/// Waits for the program's end, and looks how much memory it has meanwhile.
fn wait(run: &Run, began: Instant) -> Result<(Ended, Vec<Size>), WaitError> {
    let mut sizes = Vec::new();
    let (mut every, mut looks) = (1, 0);
    loop {
        let ended = run.wait_timeout(LOOK);
        if looks % every == 0 {
            sizes.push(Size { at_s: began.elapsed().as_secs_f64(), bytes: program_bytes(run) });
        }
        looks += 1;
        if sizes.len() > SIZES_MAX {
            every *= 2;
            let mut nth = 0;
            sizes.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
        }
        if let Some(ended) = ended {
            return Ok((ended?, sizes));
        }
    }
}

/// What is the program's own of what it costs.
fn program_bytes(run: &Run) -> u64 {
    let statistics = run.statistics();
    let number = |name| statistics.number(name).unwrap_or(0);
    number("resident_bytes") + number("pages_staging") * PAGE_SIZE
}

/// `taken`: processors that others took, where none was left. `lacks_rounds`: no look at all pages
/// counts.
fn not_seen(outcome: WatchOutcome, taken: Option<f64>, lacks_rounds: bool) -> Vec<String> {
    let mut not_seen = Vec::new();
    if outcome.lost > 0 {
        not_seen.push(format!(
            "{} events were lost: they came faster than they could be taken",
            outcome.lost
        ));
    }
    if let Some(taken) = taken {
        let others = others_took(taken, "meanwhile");
        not_seen.push(format!("how long it takes on an idle machine: {others}"));
    }
    if lacks_rounds {
        not_seen.push(
            "bursts of accesses: no look at all pages counts (less than 4 MiB, huge pages, another \
             user's processes, or a kernel without clear_refs)"
                .to_owned(),
        );
    }
    if outcome.lacks_content {
        not_seen.push(
            "the content of some processes could not be read (another user's, or another \
             namespace): how small it becomes is taken from the others"
                .to_owned(),
        );
    }
    not_seen
}
