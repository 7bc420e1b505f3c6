//! Brings in pages from the spill file: a read begins, other faults go on, and the page is filled
//! when it has come.

use core::sync::atomic::Ordering;

use ramfold_policy::memory::stream::{WINDOW_FIRST, Window};
use ramfold_store::Spilled;
use ramfold_sys::uffd::Partial;
use ramfold_sys::{Errno, PAGE_SIZE};

use super::content;
use super::page_in::{note_returned, room_ahead, settle};
use super::{Handler, KERNEL_NS, made, wake};
use crate::agent::{Agent, Context};
use crate::kernel::{Kernel, time};
use crate::page::{self, PageNumber};
use crate::spill::{self};

impl Handler {
    /// Begins to read a page from the spill file, with those ahead of it in its stream.
    pub(super) fn read_spilled(
        &mut self,
        context: &mut Context<'_>,
        page: PageNumber,
        spilled: Spilled,
        started_ns: u64,
    ) {
        let Context { agent, active, .. } = *context;
        let Some(access) = &active.spill else {
            content::fail(agent, page, &spill::ReadError::NotOpen);
        };
        if self.reads.has(page) {
            return;
        }
        let Some(read) = self.reads.begin((page, spilled), started_ns) else {
            if !self.reads.wait(page::address_of(page)) {
                wake(&active.kernel, page::address_of(page));
            }
            return;
        };
        let Window { stride, pages, wasted } = self.streams.window_at(page);
        let counters = &agent.process().counters;
        counters.pages_prefetch_wasted.fetch_add(wasted.into(), Ordering::Relaxed);
        let most = pages.min(1 + room_ahead(agent));
        let (mut brought, mut steps, mut reads, mut last) = (1, 0, 1, read);
        for step in 1..most {
            let next = page.wrapping_add_signed(stride * step as i64);
            // What is in memory is passed by.
            if context.core.staging.find(next).is_some() || self.reads.has(next) {
                continue;
            }
            let Some(spilled) = active.store.spilled(next) else { continue };
            if !self.reads.add(last, (next, spilled)) {
                // It lies elsewhere in the file. For a stream that has gone on both are read at
                // once.
                if pages <= WINDOW_FIRST {
                    break;
                }
                let Some(read) = self.reads.begin_ahead((next, spilled)) else { break };
                self.reads.submit(access, last);
                (last, reads) = (read, reads + 1);
            }
            (brought, steps) = (brought + 1, step);
        }
        self.streams.note_brought(brought, steps);
        counters.pages_prefetched.fetch_add(brought as u64 - 1, Ordering::Relaxed);
        counters.spill_reads.fetch_add(reads, Ordering::Relaxed);
        self.reads.submit(access, last);
        self.publish_reads(agent);
    }

    fn publish_reads(&self, agent: &Agent) {
        let under_way = &agent.process().spill_reads_under_way;
        under_way.store(self.reads.under_way() as u64, Ordering::Relaxed);
    }

    /// Brings in what was read from the spill file, where the store still says that it is there.
    pub(super) fn finish_reads(&mut self, context: &mut Context<'_>) {
        let Context { agent, active, .. } = *context;
        let Some(access) = active.spill.as_ref().filter(|_| self.reads.under_way() > 0) else {
            return;
        };
        loop {
            let finished = match self.reads.finish(access) {
                Ok(Some(finished)) => finished,
                Ok(None) => return,
                Err((page, error)) => content::fail(agent, page, &error),
            };
            let counters = &agent.process().counters;
            let mut is_streamed = finished.started_ns.is_none();
            for (page, spilled) in finished.pages.into_iter().flatten() {
                // A page ahead may have been in memory with its object kept, and been changed and
                // taken out since.
                let is_newest = context.core.staging.find(page).is_none();
                if is_newest && active.store.spilled(page) == Some(spilled) {
                    let object = match finished.open(access, spilled) {
                        Ok(object) => object,
                        Err(error) => content::fail(agent, page, &error),
                    };
                    self.bring_object(context, page, spilled.encoding(), object, is_streamed);
                }
                // Where nothing was brought in, whoever waits finds out by trying again.
                wake(&active.kernel, page::address_of(page));
                is_streamed = true;
            }
            if let Some(started_ns) = finished.started_ns {
                let took = time::monotonic_ns() - started_ns;
                counters.spill_read_ns_total.fetch_add(took, Ordering::Relaxed);
                counters.fault_ns_total.fetch_add(took + KERNEL_NS, Ordering::Relaxed);
                agent.process().fault_ns.record(took);
            }
            for address in self.reads.take_waiting() {
                wake(&active.kernel, address);
            }
            self.publish_reads(agent);
        }
    }

    /// Brings in a page whose object was read.
    fn bring_object(
        &mut self,
        context: &mut Context<'_>,
        page: PageNumber,
        encoding: u8,
        object: &[u8],
        is_streamed: bool,
    ) {
        let Context { agent, active, .. } = *context;
        let Handler { buffers, decompressor, .. } = self;
        let decompressor = made(decompressor, agent);
        if let Err(error) = content::expand(encoding, object, decompressor, &mut buffers.pages[0]) {
            content::fail(agent, page, &error);
        }
        let (address, source) = (page::address_of(page), buffers.pages[0].as_ptr());
        // SAFETY: the buffer was filled with the content of the page.
        match unsafe { active.kernel.copy_without_wake(address, source, PAGE_SIZE) } {
            Ok(()) => {
                let counters = &agent.process().counters;
                counters.spill_hits.fetch_add(1, Ordering::Relaxed);
                note_returned(context, page, is_streamed);
            }
            // An event waits to be read, or the page came by another way: it is tried again if
            // somebody wants it.
            Err(Partial { errno: Errno::AGAIN | Errno::EXIST | Errno::NOENT, .. }) => {}
            // As for any other fault.
            Err(partial) => {
                settle(agent, active, address, Err(partial));
            }
        }
    }
}
