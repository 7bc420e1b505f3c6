//! Pages that a client will read soon come into the cache.

use std::time::Duration;

use super::{PAGE, Shared};
use crate::DeviceError;

/// A request brings no more pages than fill this part of the memory for objects, uncompressed: a
/// half may be dirty, and what leaves for them is clean.
const POOL_PART: usize = 4;
/// Pages for which the cache is not ready are tried so often.
const TRIES_MAX: u32 = 4;
/// A request brings no more bytes.
const BYTES_MAX: usize = 16 << 20;
/// So long it waits for room. It is only advice, and the backing may stall.
const PATIENCE: Duration = Duration::from_secs(1);

impl Shared {
    /// Brings pages of a range into the cache: those that are there already stay, and holes of the
    /// backing are left out. Ends as soon as `goes_on` says no.
    pub(super) fn prefetch(
        &self,
        offset: u64,
        bytes: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        let end = (offset + bytes).div_ceil(PAGE as u64);
        let pool_bytes = self.inner.room.pool_bytes(&self.inner.store);
        let mut left = ((pool_bytes / POOL_PART).min(BYTES_MAX) / PAGE) as u64;
        let mut block = offset / PAGE as u64;
        // Of the backing, as far as it is known to be data.
        let mut data_end = block;
        let mut tries = 0;
        let mut failures = 0;
        while block < end && left > 0 && goes_on() {
            let begun = self.begin_reading();
            if self.inner.store.contains(block) {
                block += 1;
                continue;
            }
            if block >= data_end {
                let Some(data) = self.place.next_data(block * PAGE as u64) else { break };
                data_end = data.end.div_ceil(PAGE as u64).max(block + 1);
                let start = data.start / PAGE as u64;
                if start > block {
                    block = start;
                    continue;
                }
            }
            let blocks = self.missing_from(block, end.min(data_end).min(block + left));
            let evicted = self.counters.evicted.get();
            let brought = {
                let mut workspace = self.inner.workspaces.take();
                self.read_missing(&mut workspace, blocks.clone(), begun, true, |_, _| {})?
            };
            self.counters.prefetched.add(brought.pages);
            tries += 1;
            // What makes room may be pages that this has just brought.
            failures = if brought.has_room { 0 } else { failures + 1 };
            if !brought.has_room && (failures >= TRIES_MAX || !self.has_made_room(evicted)) {
                // It would not have room for the rest either.
                break;
            }
            // What has left the cache meanwhile keeps pages out that were read before.
            let missing = blocks.clone().find(|&block| !self.inner.store.contains(block));
            let next = missing.filter(|_| tries < TRIES_MAX).unwrap_or(blocks.end);
            left -= next - block;
            block = next;
            if next == blocks.end {
                tries = 0;
            }
        }
        Ok(())
    }

    /// Waits for room, for `PATIENCE` at most. `evicted`: the count of evicted pages when there was
    /// no room.
    fn has_made_room(&self, evicted: u64) -> bool {
        self.counters.waits.add(1);
        self.inner.keeping.wait_for_room(PATIENCE) == Some(true)
            || self.counters.evicted.get() != evicted
    }
}
