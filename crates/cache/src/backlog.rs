//! Clusters that wait to be compressed.
//!
//! Readers leave them here. The backlog may take what the cache has not filled yet: a disk can give
//! its first hundred megabytes at once. When that is full, what is read from a backing that is
//! faster than the codec is not kept. Readers of a slower one wait, having answered: on the whole
//! there is time to compress what it gives.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ramfold_sys::mem::Pages;

use crate::{Version, locked};

/// How long the thread waits for more before it sleeps: being woken costs as much as compressing a
/// page.
const LINGER: Duration = Duration::from_millis(5);
/// How long a reader waits at most for room in the backlog.
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that are worth waking the thread for meanwhile.
const BATCH_BYTES: usize = 64 << 10;
/// Bytes that go into one batch at most.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Clusters on their way into the store.
pub(crate) struct Backlog<O> {
    queue: Mutex<Queue<O>>,
    arrived: Condvar,
    stored: Condvar,
    /// Most memory for the backlog where the cache has none to spare.
    bytes_max: usize,
}

struct Queue<O> {
    waiting: VecDeque<Batch<O>>,
    waiting_bytes: usize,
    /// Memory of all batches, those under way too, and what is kept for others as long as there is
    /// work.
    bytes: usize,
    free: Vec<Pages>,
    /// Clusters from here until they are stored.
    clusters: usize,
    is_idle: bool,
    is_stopping: bool,
    /// Nanoseconds that a byte takes to be compressed, of late, with all threads at work; 0: not
    /// known.
    ns_per_byte: f64,
}

/// Where clusters were read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Origin {
    /// In a backing, which of late has taken so long for a byte.
    Backing { ns_per_byte: f64 },
    /// In the store, as part of a larger one: what comes from a backing goes first.
    Store,
}

/// Clusters of an owner that were read at once.
pub(crate) struct Batch<O> {
    pub(crate) owner: Arc<O>,
    pub(crate) version: Version,
    pub(crate) origin: Origin,
    /// The first page of each, and where it lies in the memory.
    pub(crate) clusters: VecDeque<(u64, Range<usize>)>,
    pub(crate) memory: Pages,
}

impl<O> Default for Queue<O> {
    fn default() -> Queue<O> {
        Queue {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            bytes: 0,
            free: Vec::new(),
            clusters: 0,
            is_idle: false,
            is_stopping: false,
            ns_per_byte: 0.0,
        }
    }
}

impl<O> Queue<O> {
    /// Counts so much memory, where it is within the limit: memory that is free, or `None` for new
    /// memory.
    fn reserve(&mut self, bytes: usize, bytes_max: usize) -> Option<Option<Pages>> {
        if self.is_stopping {
            return None;
        }
        if let Some(place) = self.free.iter().rposition(|memory| memory.len() == bytes) {
            return Some(Some(self.free.swap_remove(place)));
        }
        self.drop_free((self.bytes + bytes).saturating_sub(bytes_max));
        if self.bytes + bytes > bytes_max {
            return None;
        }
        self.bytes += bytes;
        Some(None)
    }

    /// Gives back at least so much memory, or all that is free.
    fn drop_free(&mut self, bytes: usize) {
        let target = self.bytes.saturating_sub(bytes);
        while self.bytes > target
            && let Some(memory) = self.free.pop()
        {
            self.bytes -= memory.len();
        }
    }
}

impl<O> Backlog<O> {
    pub(crate) fn new(bytes_max: usize) -> Backlog<O> {
        Backlog {
            queue: Mutex::default(),
            arrived: Condvar::new(),
            stored: Condvar::new(),
            bytes_max,
        }
    }

    /// Memory for clusters that wait or are being compressed, and for more.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Most memory where the cache has none to spare.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether clusters wait or are being compressed.
    pub(crate) fn is_at_work(&self) -> bool {
        self.lock().clusters > 0
    }

    #[cfg(test)]
    pub(crate) fn ns_per_byte(&self) -> f64 {
        self.lock().ns_per_byte
    }

    /// Takes clusters of an owner, each with its first page, and returns how many: less than all
    /// when there is too much to do already. `spare_bytes`: memory that the cache has not filled.
    pub(crate) fn offer(
        &self,
        owner: &Arc<O>,
        version: Version,
        origin: Origin,
        clusters: &[(u64, &[u8])],
        spare_bytes: usize,
    ) -> usize {
        let bytes_max = match origin {
            Origin::Backing { .. } => self.bytes_max.max(spare_bytes),
            Origin::Store => self.bytes_max / 2,
        };
        let mut taken = 0;
        while let Some((_, first)) = clusters.get(taken) {
            let count = (BATCH_BYTES_MAX / first.len().max(1)).max(1);
            let part = &clusters[taken..][..count.min(clusters.len() - taken)];
            let bytes = part.iter().map(|(_, cluster)| cluster.len()).sum();
            let Some(mut memory) = self.memory(origin, bytes, bytes_max) else { break };
            let mut places = VecDeque::with_capacity(part.len());
            let mut end = 0;
            for (page, cluster) in part {
                let place = end..end + cluster.len();
                end = place.end;
                memory[place.clone()].copy_from_slice(cluster);
                places.push_back((*page, place));
            }
            let owner = Arc::clone(owner);
            self.push(Batch { owner, version, origin, clusters: places, memory });
            taken += part.len();
        }
        taken
    }

    fn push(&self, batch: Batch<O>) {
        let mut queue = self.lock();
        queue.clusters += batch.clusters.len();
        queue.waiting_bytes += batch.memory.len();
        queue.waiting.push_back(batch);
        let wake = queue.is_idle || queue.waiting_bytes >= BATCH_BYTES;
        queue.is_idle = false;
        drop(queue);
        if wake {
            self.arrived.notify_one();
        }
    }

    /// Memory for so many bytes of the backlog, as soon as there is any within the limit.
    fn memory(&self, origin: Origin, bytes: usize, bytes_max: usize) -> Option<Pages> {
        let mut queue = self.lock();
        let mut reserved = queue.reserve(bytes, bytes_max);
        let is_slower =
            matches!(origin, Origin::Backing { ns_per_byte } if ns_per_byte > queue.ns_per_byte);
        if reserved.is_none() && is_slower {
            let started = Instant::now();
            while reserved.is_none() && !queue.is_stopping && started.elapsed() < PATIENCE {
                let waited = self.stored.wait_timeout(queue, PATIENCE);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                reserved = queue.reserve(bytes, bytes_max);
            }
        }
        drop(queue);
        let memory = reserved?.or_else(|| Pages::new(bytes).ok());
        if memory.is_none() {
            self.lock().bytes -= bytes;
        }
        memory
    }

    /// Nothing is kept any more, and [`Self::wait`] returns.
    pub(crate) fn stop(&self) {
        self.lock().is_stopping = true;
        self.arrived.notify_all();
        self.stored.notify_all();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Waits until something is in the backlog; `false` at the end.
    pub(crate) fn wait(&self) -> bool {
        let mut queue = self.lock();
        while queue.waiting.is_empty() && !queue.is_stopping {
            let (woken, waited) =
                self.arrived.wait_timeout(queue, LINGER).unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            if waited.timed_out() && queue.waiting.is_empty() && !queue.is_stopping {
                queue.is_idle = true;
                queue.drop_free(usize::MAX);
                queue = self
                    .arrived
                    .wait_while(queue, |queue| queue.is_idle && !queue.is_stopping)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        !queue.is_stopping
    }

    /// The batch that has waited longest. Its memory is to be given back.
    pub(crate) fn take(&self) -> Option<Batch<O>> {
        let mut queue = self.lock();
        let batch = queue.waiting.pop_front();
        queue.waiting_bytes -= batch.as_ref().map_or(0, |batch| batch.memory.len());
        batch
    }

    /// Takes a batch's memory back.
    pub(crate) fn give_back(&self, memory: Pages) {
        let mut queue = self.lock();
        if queue.bytes <= self.bytes_max {
            queue.free.push(memory);
        } else {
            queue.bytes -= memory.len();
        }
        drop(queue);
        self.stored.notify_all();
    }

    /// So many clusters of those that were taken are stored, or will not be.
    pub(crate) fn note_done(&self, clusters: usize) {
        self.lock().clusters -= clusters;
    }

    /// So many bytes were compressed in this time.
    pub(crate) fn note_speed(&self, took: Duration, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let ns_per_byte = took.as_nanos() as f64 / bytes as f64;
        let mut queue = self.lock();
        queue.ns_per_byte = match queue.ns_per_byte {
            0.0 => ns_per_byte,
            before => before + (ns_per_byte - before) / 16.0,
        };
    }

    fn lock(&self) -> MutexGuard<'_, Queue<O>> {
        locked(&self.queue)
    }
}

#[cfg(test)]
mod tests {
    use ramfold_codec::PAGE_SIZE;
    use ramfold_codec::cluster::ClusterSize;

    use super::*;

    const MIB: usize = 1 << 20;
    const CLUSTER: usize = ClusterSize::Four.bytes();

    /// Offers clusters as read from a backing that is faster than any codec, without anybody who
    /// compresses them; how many are taken.
    fn offer(backlog: &Backlog<()>, bytes: usize, spare: usize) -> usize {
        let cluster = vec![7; CLUSTER];
        let clusters: Vec<_> =
            (0..bytes / CLUSTER).map(|nth| (4 * nth as u64, &cluster[..])).collect();
        let origin = Origin::Backing { ns_per_byte: 0.0 };
        backlog.offer(&Arc::new(()), Version(0), origin, &clusters, spare)
    }

    #[test]
    fn the_backlog_has_what_the_cache_has_not_filled() {
        let backlog = Backlog::new(MIB);
        assert_eq!(offer(&backlog, 3 * MIB, 0), MIB / CLUSTER);
        assert_eq!(offer(&backlog, MIB, 0), 0);
        assert_eq!(offer(&backlog, 3 * MIB, 2 * MIB), MIB / CLUSTER);
        assert_eq!(backlog.bytes(), 2 * MIB);
        assert_eq!(offer(&backlog, MIB, 0), 0);
        // What has been gone through is given back, down to what it has in any case.
        let mut clusters = 0;
        while let Some(batch) = backlog.take() {
            clusters += batch.clusters.len();
            backlog.give_back(batch.memory);
        }
        assert_eq!(clusters, 2 * MIB / CLUSTER);
        assert_eq!(backlog.bytes(), MIB);
        assert!(backlog.is_at_work());
        backlog.note_done(clusters);
        assert!(!backlog.is_at_work());
        let (origin, page) = (Origin::Backing { ns_per_byte: 0.0 }, [0; PAGE_SIZE]);
        assert_eq!(backlog.offer(&Arc::new(()), Version(0), origin, &[(0, &page)], 0), 1);
        assert_eq!(backlog.bytes(), MIB - BATCH_BYTES_MAX + PAGE_SIZE);
    }
}
