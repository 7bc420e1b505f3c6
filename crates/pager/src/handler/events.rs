//! Changes of the address space, as the kernel tells them.
//!
//! Called with `core` held and before the thread that made the change goes on to anything else.
//!
//! The kernel queues an event when the change is done and other threads may already have built on
//! it, so two of them can come in the wrong order. One order matters: what moves to a place must
//! not be acted upon before what vacated that place. See [`is_early`].

use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::agent::{Active, Context, Core};
use crate::kernel::{Event, time};
use crate::page::pages_of;
use crate::take::regions::Regions;

/// Makes staging, store and regions agree with what happened.
pub(crate) fn handle(context: &mut Context<'_>, event: Event) {
    let Context { agent, active, .. } = *context;
    let counters = &agent.process().counters;
    match event {
        Event::Remove(range) => {
            counters.events_remove.fetch_add(1, Ordering::Relaxed);
            drop_content(active, context.core, &range);
            context.core.dropped.note(&range, time::monotonic_ns());
        }
        Event::Unmap(range) => {
            counters.events_unmap.fetch_add(1, Ordering::Relaxed);
            drop_content(active, context.core, &range);
            let registered = context.core.regions.bytes_in(&range) as u64;
            agent.announcements.note_released(registered);
            context.core.regions.remove(&range);
            agent.ends.remove(&range);
            // A mapping that was replaced leaves the total as it was.
            context.core.rescan_wanted = true;
        }
        Event::Remap { from, to, len } => {
            counters.events_remap.fetch_add(1, Ordering::Relaxed);
            let (first, count) = pages_of(&(from..from + len));
            let (target, _) = pages_of(&(to..to + len));
            context.core.staging.renumber(first, target, count);
            if let Err(error) = active.store.rekey_range(first, target, count) {
                agent.fail(format_args!("mremap of {len} bytes from {from:#x}: {error}"));
            }
            // The mapping went along with its registration. Where it was is told as unmapped next,
            // and can count as taken until then, or is still there (MREMAP_DONTUNMAP).
            move_regions(&mut context.core.regions, from, to, len);
            context.core.rescan_wanted = true;
        }
        // The handler's own business: they need its buffers.
        Event::Fork(_) | Event::Pagefault { .. } => {}
    }
}

/// Does this event move memory to where there is some already, as far as is known? Then the event
/// that tells what became of that is still to come, and must be acted upon first.
pub(crate) fn is_early(core: &Core, event: &Event) -> bool {
    match event {
        Event::Remap { to, len, .. } => core.regions.overlaps(&(*to..to + len)),
        _ => false,
    }
}

/// Is this the second event of the same move: its old place is unmapped?
pub(crate) fn follows(event: &Event, of: &Event) -> bool {
    match (event, of) {
        (Event::Unmap(range), Event::Remap { from, len, .. }) => *range == (*from..*from + *len),
        _ => false,
    }
}

/// What was registered at the old place is so at the new one.
fn move_regions(regions: &mut Regions, from: usize, to: usize, len: usize) {
    let mut at = from;
    while let Some(region) = regions.at_or_after(at).filter(|region| region.start < from + len) {
        let (start, end) = (region.start.max(at), region.end.min(from + len));
        // Where there is no room for one more the next look at the mappings finds it.
        regions.insert(start - from + to..end - from + to);
        at = end;
        if at >= from + len {
            break;
        }
    }
}

fn drop_content(active: &Active, core: &mut Core, range: &Range<usize>) {
    let (first, count) = pages_of(range);
    core.staging.invalidate(first, count);
    active.store.invalidate_range(first, count);
}
