//! What agents see of watched pages, handed on while the program runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ramfold_codec::{PAGE_SIZE, Page};
use ramfold_session::{OfferedPages, PageEvent, Session};
use ramfold_sys::other_process::{OtherProcess, read_memory};
use ramfold_sys::{Errno, proc, time};

/// The ring in the session has room for seconds.
const INTERVAL: Duration = Duration::from_millis(10);
/// An agent writes what it has drawn a place for within microseconds, unless it was killed.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was seen of the program's pages. Times are in microseconds since the start.
#[derive(Debug)]
pub enum SeenPages {
    /// Something happened to a watched page.
    Event(PageEvent),
    /// What some of them held: a sample, to see how small they become.
    Content(PageContent),
}

/// Content of pages of one block.
#[derive(Debug)]
pub struct PageContent {
    /// The process, as in [`PageEvent::process`].
    pub process: u32,
    /// The first page of the block: address by 4,096.
    pub first_page: u64,
    /// When.
    pub time_us: u64,
    /// Those that were read, in their order.
    pub pages: Vec<Page>,
}

/// How complete what was seen is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOutcome {
    /// One block in this many was watched, at the end. What was seen of others before is to be left
    /// out.
    pub one_in: u32,
    /// Events that were lost.
    pub lost: u64,
    /// Whether the content of a process's pages could not be read.
    pub lacks_content: bool,
}

/// Takes what was seen, on a thread of the run's.
pub(crate) type OnPages = dyn Fn(SeenPages) + Send + Sync;

/// Hands on what agents see until `ended`. The thread that runs this is to be unparked then.
pub(crate) fn keep(session: &Session, ended: &AtomicBool, on_pages: &OnPages) -> WatchOutcome {
    let area = &session.watch;
    let begun_us = time::monotonic_ns() / 1000;
    let mut waits_since: Option<Instant> = None;
    let mut lacks_content = false;
    loop {
        // Looked at first: what was seen before the end is taken.
        let last = ended.load(Ordering::Acquire);
        while let Some(event) = area.take() {
            let time_us = event.time_us.saturating_sub(begun_us);
            on_pages(SeenPages::Event(PageEvent { time_us, ..event }));
            waits_since = None;
        }
        area.take_offers(|offered| match read(&offered) {
            Ok(mut content) if !content.pages.is_empty() => {
                content.time_us = content.time_us.saturating_sub(begun_us);
                on_pages(SeenPages::Content(content));
            }
            // It has just ended, or what it had there is gone.
            Ok(_) => {}
            Err(errno) => lacks_content |= matches!(errno, Errno::ACCESS | Errno::PERM),
        });
        if area.waits() && waits_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            area.pass_over();
            continue;
        }
        if last {
            let one_in = 1 << area.level();
            return WatchOutcome { one_in, lost: area.lost(), lacks_content };
        }
        thread::park_timeout(INTERVAL);
    }
}

/// Reads what a process offers. It goes on meanwhile, so a page may be another by now.
fn read(offered: &OfferedPages) -> Result<PageContent, Errno> {
    let &OfferedPages { pid, process, first_page, time_us, .. } = offered;
    let mut content = PageContent { process, first_page, time_us, pages: Vec::new() };
    // By its number it would be another process.
    if offered.pid_namespace != proc::pid_namespace() {
        return Err(Errno::PERM);
    }
    let memory = OtherProcess::open(pid)?.memory()?;
    for &address in offered.addresses.iter().filter(|&&address| address > 0) {
        let mut page = [0; PAGE_SIZE];
        if read_memory(&memory, address as usize, &mut page) == Ok(PAGE_SIZE) {
            content.pages.push(page);
        }
    }
    Ok(content)
}
