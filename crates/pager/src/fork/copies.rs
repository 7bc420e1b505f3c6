//! Growth by copies: what a fork has made shared costs one page for all, until somebody writes to
//! it.
//!
//! The kernel copies such a page without a word, at gigabytes a second. So where there is no room
//! for copies of all that is shared, it is write-protected: the first write to a page is a fault,
//! is counted, and waits for room as any other.
//!
//! Nothing that is shared can be taken out. What was copied can, on both sides.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ramfold_sys::{Errno, PAGE_SIZE};

use crate::agent::{Active, Agent, Context};
use crate::cost;
use crate::handler::zero_page;
use crate::kernel::{Kernel, time};
use crate::page;
use crate::session::Process;

/// | word | written by | read by | orders |
/// |---|---|---|---|
/// | `saved_bytes`, `copied_bytes`, `owed_bytes`, `owed_lately_bytes` | the monitor, as measured; forking threads, and who notices copies, add to them | the monitor, who measures room | nothing: estimates until the next measurement |
/// | `owed_ns` | the monitor | the monitor | nothing |
/// | `forked_bytes`, `working_bytes` | the forking thread, before the clone | the same, and in the child its copy | by the clone |
/// | `is_guarded` | who guards memory or leaves it, with the agent's lock; the forking thread, after the clone | the monitor | nothing: memory is guarded twice, or the next look guards it |
/// | `open` | the forking thread, before it brings the pages in | who guards memory, after it has protected them | in an order that all see: it is let through there, or the pages come in after |
///
/// All zero: nothing is shared.
#[repr(C)]
pub(crate) struct Copies {
    /// What this process's part of what it shares makes less than all of that.
    saved_bytes: AtomicU64,
    /// What was copied since that was measured.
    copied_bytes: AtomicU64,
    /// What relatives pay more because this process has copied pages: counted here until they have
    /// measured it. What they have yet to do so for since [`Copies::owed_ns`], and what has come
    /// since.
    owed_bytes: AtomicU64,
    owed_lately_bytes: AtomicU64,
    owed_ns: AtomicU64,
    /// What the process cost when it forked last, and how much of that was what the agent works
    /// with.
    forked_bytes: AtomicU64,
    working_bytes: AtomicU64,
    /// Shared memory is protected.
    is_guarded: AtomicBool,
    /// Where the kernel may write while the latest fork is made.
    open: [AtomicUsize; WRITTEN_IN_FORK],
}

/// Addresses that the kernel may write to while a fork is made.
pub(crate) const WRITTEN_IN_FORK: usize = 6;

impl Copies {
    pub(crate) fn saved_bytes(&self) -> u64 {
        self.saved_bytes.load(Ordering::Relaxed)
    }

    /// As measured. A copy was counted in full here, but a part of that the relatives pay, for what
    /// is left to them.
    pub(crate) fn set_saved_bytes(&self, bytes: u64) {
        let before = self.saved_bytes.swap(bytes, Ordering::Relaxed);
        let copied = self.copied_bytes.swap(0, Ordering::Relaxed);
        let owed = bytes.saturating_sub(before).min(copied);
        self.owed_lately_bytes.fetch_add(owed, Ordering::Relaxed);
    }

    pub(crate) fn owed_bytes(&self) -> u64 {
        let lately = self.owed_lately_bytes.load(Ordering::Relaxed);
        self.owed_bytes.load(Ordering::Relaxed) + lately
    }

    /// For the monitor: what these have measured is owed no more.
    pub(crate) fn settle(&self, mut relatives: impl Iterator<Item = &'static Process>) {
        if self.owed_bytes() == 0 {
            return;
        }
        let since_ns = self.owed_ns.load(Ordering::Relaxed);
        // Where that is zero it shares nothing.
        let measured_ns = |process: &Process| process.measured_ns.load(Ordering::Relaxed);
        if !relatives.any(|process| (1..since_ns).contains(&measured_ns(process))) {
            let lately = self.owed_lately_bytes.swap(0, Ordering::Relaxed);
            self.owed_bytes.store(lately, Ordering::Relaxed);
            self.owed_ns.store(time::monotonic_ns(), Ordering::Relaxed);
        }
    }

    /// What may be copied unasked.
    pub(crate) fn unasked_bytes(&self) -> u64 {
        if self.is_guarded() { 0 } else { self.saved_bytes() }
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.is_guarded.load(Ordering::Relaxed)
    }

    /// In a forked child, before anything is registered.
    pub(crate) fn begin_child(&self) {
        self.saved_bytes.store(0, Ordering::Relaxed);
        self.copied_bytes.store(0, Ordering::Relaxed);
        self.owed_bytes.store(0, Ordering::Relaxed);
        self.owed_lately_bytes.store(0, Ordering::Relaxed);
        self.is_guarded.store(false, Ordering::Relaxed);
    }

    /// Before a fork, and before these are brought in: what the kernel may write to meanwhile is
    /// not protected any more. Who forks would wait for the handler, and that for the end of the
    /// fork.
    pub(crate) fn keep_open(&self, addresses: &[usize; WRITTEN_IN_FORK]) {
        for (place, &address) in self.open.iter().zip(addresses) {
            place.store(address, Ordering::SeqCst);
        }
    }

    /// Before a fork: what there is to share. Both agents write at once to what they work with.
    pub(crate) fn begin_fork(&self, process: &Process) {
        let working = process.metadata_bytes.load(Ordering::Relaxed)
            + process.staging_bytes.load(Ordering::Relaxed);
        self.forked_bytes.store(process.cost_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.working_bytes.store(working, Ordering::Relaxed);
    }

    /// What each side of the last fork saves by it, until that is measured.
    fn half_bytes(&self) -> u64 {
        let working = self.working_bytes.load(Ordering::Relaxed);
        self.forked_bytes.load(Ordering::Relaxed).saturating_sub(working) / 2
    }

    /// What the child of a fork costs, until that is measured.
    pub(crate) fn child_bytes(&self) -> u64 {
        self.half_bytes() + self.working_bytes.load(Ordering::Relaxed)
    }

    /// After a fork, in the parent: all is shared anew. Returns how much less it costs.
    pub(crate) fn begin_sharing(&self) -> u64 {
        self.is_guarded.store(false, Ordering::Relaxed);
        let half = self.half_bytes();
        self.saved_bytes.fetch_add(half, Ordering::Relaxed);
        half
    }

    /// So many bytes are copied, and no longer shared.
    fn note_copied(&self, bytes: u64) {
        let less = |saved: u64| Some(saved.saturating_sub(bytes));
        let before = self.saved_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        let own = before.unwrap_or(0).min(bytes);
        self.copied_bytes.fetch_add(own, Ordering::Relaxed);
        self.owed_lately_bytes.fetch_add(bytes - own, Ordering::Relaxed);
    }
}

/// Could the session pass its cap if this process copied what it shares, `shared_bytes` of the
/// `anonymous_bytes` that it has? What a relative pays of these may not be known yet.
pub(crate) fn must_be_guarded(agent: &Agent, anonymous_bytes: u64, shared_bytes: u64) -> bool {
    let session = agent.session();
    let known = cost::others_claim(agent) + agent.cost();
    let total = known.max(anonymous_bytes) + session.unused_pool_bytes();
    total + shared_bytes > cost::watermarks(session).high
}

/// Protects all memory that is registered, what is the process's own as well: nobody says which
/// pages are shared. Not now where an event waits to be read.
pub(crate) fn guard(context: &mut Context<'_>) {
    let Context { agent, active, .. } = *context;
    context.core.sweep.look_at_protected();
    let copies = &agent.copies;
    let ranges = || context.core.regions.as_slice().iter().map(|region| region.start..region.end);
    let changes =
        ranges().any(|range| active.kernel.write_protect(range, true) == Err(Errno::AGAIN));
    // The kernel writes there when a thread ends, and waits for nobody then.
    let ends = core::iter::once(agent.watched_page()).chain(agent.ends.iter());
    let open = copies.open.iter().map(|address| page::number_of(address.load(Ordering::SeqCst)));
    for page in ends.chain(open.filter(|&page| page != 0)) {
        let start = page::address_of(page);
        // Others may be none of the program's.
        let _ = active.kernel.write_protect(start..start + PAGE_SIZE, false);
    }
    copies.is_guarded.store(!changes, Ordering::Relaxed);
}

/// Nothing is shared any more.
pub(crate) fn leave_unguarded(context: &Context<'_>) {
    let Context { agent, active, .. } = *context;
    for region in context.core.regions.as_slice() {
        // What stays protected is asked for, and is a fault too many.
        let _ = active.kernel.write_protect(region.start..region.end, false);
        zero_page::protect(active, region.start..region.end);
    }
    agent.copies.is_guarded.store(false, Ordering::Relaxed);
}

/// Lets so many pages be written to, and counts what that makes of pages that were shared, or
/// zeros.
///
/// # Errors
/// `EAGAIN` while an event waits to be read; `ENOENT` where the memory is gone.
pub(crate) fn let_write(
    agent: &Agent,
    active: &Active,
    address: usize,
    pages: usize,
) -> Result<(), Errno> {
    let range = address..address + pages * PAGE_SIZE;
    let zeros = zero_page::count(active, range.clone());
    active.kernel.write_protect(range, false)?;
    agent.add_cost((zeros * PAGE_SIZE) as u64);
    if agent.sharing.is_shared() {
        let copied = (pages - zeros) as u64;
        agent.process().counters.pages_written_shared.fetch_add(copied, Ordering::Relaxed);
        count(agent, copied * PAGE_SIZE as u64);
    }
    Ok(())
}

/// Counts what was copied of the pool, which the agent writes to itself.
pub(crate) fn count_copied(agent: &Agent, active: &Active) {
    let bytes = active.store.take_copied_bytes() as u64;
    // Who shares nothing any more makes no copies.
    if bytes > 0 && agent.sharing.is_shared() {
        count(agent, bytes);
    }
}

fn count(agent: &Agent, copied_bytes: u64) {
    let pages = copied_bytes / PAGE_SIZE as u64;
    agent.session().parted_pages.fetch_add(pages, Ordering::Relaxed);
    agent.copies.note_copied(copied_bytes);
    agent.add_cost(copied_bytes);
}
