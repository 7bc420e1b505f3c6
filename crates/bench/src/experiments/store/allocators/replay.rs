//! Allocators of objects on the same traces: what they cost in memory and in time.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ramfold_codec::PAGE_SIZE;
use ramfold_store::{Allocator, Footprint, Pool};
use serde::Serialize;

use super::block_lists::BlockLists;
use super::resource_map::ResourceMap;
use super::trace::{Step, Trace};
use super::zsmalloc::Zsmalloc;
use crate::content::random::Random;

/// Noise that objects are made of.
const NOISE_BYTES: usize = 1 << 16;

/// How often objects are moved at most in one compaction, as
/// [`ramfold_store::Store::compact`] does it.
const COMPACTION_PASSES: usize = 3;

/// Memory and times of an allocator at one point of a trace.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) trace: String,
    pub(super) allocator: &'static str,
    /// The point.
    pub(super) after: &'static str,
    pub(super) objects: u64,
    /// Bytes of the objects that are there.
    pub(super) compressed_bytes: u64,
    /// Memory that holds them.
    pub(super) allocated_bytes: u64,
    /// Memory of its tables.
    pub(super) metadata_bytes: u64,
    pub(super) allocated_per_compressed: f64,
    pub(super) metadata_bytes_per_page: f64,
    /// Mean times since the point before, the copying of the object included.
    pub(super) put_ns: Option<f64>,
    pub(super) free_ns: Option<f64>,
    pub(super) compact_ms: Option<f64>,
}

/// Every allocator over every trace.
pub(super) fn measure(traces: &[Trace], mut tell: impl FnMut(&str)) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for trace in traces {
        let mut run = |name: &str, result: Result<Vec<Row>>| -> Result<()> {
            tell(&format!("{}: {name}", trace.name));
            rows.extend(result.with_context(|| format!("{name} on the trace {}", trace.name))?);
            Ok(())
        };
        let pool = Pool::new(trace.pool_bytes_max(), 0).context("no address space for the pool")?;
        run("size-classes", replay(trace, pool))?;
        run("block-lists", replay(trace, BlockLists::default()))?;
        run("resource-map", replay(trace, ResourceMap::default()))?;
        run("zsmalloc", replay(trace, Zsmalloc::default()))?;
    }
    Ok(rows)
}

/// Time spent on one kind of operation.
#[derive(Default)]
struct Clock {
    ns: u64,
    count: u64,
}

impl Clock {
    /// The mean since the last call.
    fn mean_ns(&mut self) -> Option<f64> {
        let Clock { ns, count } = std::mem::take(self);
        (count > 0).then(|| ns as f64 / count as f64)
    }
}

/// Goes through a trace with an allocator. Every object is compared at each point.
fn replay<A: Allocator>(trace: &Trace, allocator: A) -> Result<Vec<Row>> {
    let mut random = Random::new(7);
    let noise = (0..NOISE_BYTES / 8).flat_map(|_| random.word().to_le_bytes()).collect();
    let mut live = Vec::new();
    live.resize_with(trace.objects as usize, || None);
    let clocks = [const { Clock { ns: 0, count: 0 } }; 3];
    let mut replay = Replay { trace, allocator, noise, live, clocks, rows: Vec::new() };
    // Runs of one kind are timed together: reading the clock takes as long as some of them.
    let kind = std::mem::discriminant::<Step>;
    for steps in trace.steps.chunk_by(|one, next| kind(one) == kind(next)) {
        replay.steps(steps)?;
    }
    let Replay { mut allocator, live, rows, .. } = replay;
    live.into_iter().flatten().for_each(|(handle, _)| allocator.free(handle));
    Ok(rows)
}

/// An allocator on its way through a trace.
struct Replay<'a, A: Allocator> {
    trace: &'a Trace,
    allocator: A,
    noise: Vec<u8>,
    /// The objects that are there, by their numbers.
    live: Vec<Option<(A::Handle, u16)>>,
    /// Of put, free and compact.
    clocks: [Clock; 3],
    rows: Vec<Row>,
}

impl<A: Allocator> Replay<'_, A> {
    /// Steps of one kind.
    fn steps(&mut self, steps: &[Step]) -> Result<()> {
        let [put, free, compact] = &mut self.clocks;
        let started = Instant::now();
        let (clock, count) = match steps[0] {
            Step::Put { .. } => {
                for step in steps {
                    let Step::Put { id, len } = *step else { continue };
                    let object = content(&self.noise, id, len);
                    let handle = self.allocator.put(object).context("no memory for an object")?;
                    let place = &mut self.live[id as usize];
                    ensure!(place.is_none(), "the trace stores {id} twice");
                    *place = Some((handle, len));
                }
                (put, steps.len())
            }
            Step::Free { .. } => {
                for step in steps {
                    let Step::Free { id } = *step else { continue };
                    let live = self.live[id as usize].take();
                    let (handle, _) = live.context("the trace frees twice")?;
                    self.allocator.free(handle);
                }
                (free, steps.len())
            }
            Step::Compact => {
                for _ in 0..COMPACTION_PASSES {
                    let handles = self.live.iter_mut().flatten().map(|(handle, _)| handle);
                    if self.allocator.compact(handles) == 0 {
                        break;
                    }
                }
                (compact, 1)
            }
            Step::Point(_) => return self.points(steps),
        };
        clock.ns += started.elapsed().as_nanos() as u64;
        clock.count += count as u64;
        Ok(())
    }

    fn points(&mut self, steps: &[Step]) -> Result<()> {
        for step in steps {
            let Step::Point(point) = step else { continue };
            let row = self.row(point.name())?;
            let [put, free, compact] = &mut self.clocks;
            self.rows.push(Row {
                put_ns: put.mean_ns(),
                free_ns: free.mean_ns(),
                compact_ms: compact.mean_ns().map(|ns| ns / 1e6),
                ..row
            });
        }
        Ok(())
    }

    /// Compares all objects, and sums up what they cost.
    fn row(&self, after: &'static str) -> Result<Row> {
        let mut page = [0; PAGE_SIZE];
        let (mut objects, mut compressed_bytes) = (0, 0);
        for (id, place) in (0..).zip(&self.live) {
            let Some((handle, len)) = place else { continue };
            let read = self.allocator.copy_out(handle, &mut page);
            let expected = content(&self.noise, id, *len);
            ensure!(page[..read] == *expected, "object {id} is not what was stored");
            objects += 1;
            compressed_bytes += u64::from(*len);
        }
        let Footprint { allocated_bytes, metadata_bytes } = self.allocator.footprint();
        Ok(Row {
            trace: self.trace.name.clone(),
            allocator: self.allocator.name(),
            after,
            objects,
            compressed_bytes,
            allocated_bytes,
            metadata_bytes,
            allocated_per_compressed: allocated_bytes as f64 / compressed_bytes.max(1) as f64,
            metadata_bytes_per_page: metadata_bytes as f64 / objects.max(1) as f64,
            put_ns: None,
            free_ns: None,
            compact_ms: None,
        })
    }
}

/// The bytes of an object.
fn content(noise: &[u8], id: u32, len: u16) -> &[u8] {
    let start = id as usize * 61 % (NOISE_BYTES - PAGE_SIZE);
    &noise[start..start + usize::from(len)]
}

#[cfg(test)]
mod tests {
    use ramfold_codec::Page;

    use super::super::trace::Lengths;
    use super::*;

    #[test]
    fn all_allocators_keep_what_they_are_given() {
        let trace = Trace::synthetic("small", 3_000, &Lengths::heap(), 5);
        let rows = measure(std::slice::from_ref(&trace), |_| {}).unwrap();
        assert_eq!(rows.len(), 4 * 5);
        for row in &rows {
            assert!(row.allocated_bytes >= row.compressed_bytes, "{row:?}");
            assert!(row.allocated_per_compressed < 8.0, "{row:?}");
        }
        // The same objects for all.
        for point in rows[..5].iter() {
            let alike = rows.iter().filter(|row| row.after == point.after);
            assert!(alike.clone().all(|row| row.compressed_bytes == point.compressed_bytes));
            assert_eq!(alike.count(), 4);
        }
    }

    #[test]
    fn an_allocator_that_loses_an_object_is_caught() {
        struct Forgetful(Vec<Vec<u8>>);
        impl Allocator for Forgetful {
            type Handle = usize;
            fn name(&self) -> &'static str {
                "forgetful"
            }
            fn put(&mut self, object: &[u8]) -> Option<usize> {
                self.0.push(object.to_vec());
                Some(self.0.len().saturating_sub(2))
            }
            fn copy_out(&self, handle: &usize, object: &mut Page) -> usize {
                object[..self.0[*handle].len()].copy_from_slice(&self.0[*handle]);
                self.0[*handle].len()
            }
            fn free(&mut self, _handle: usize) {}
            fn footprint(&self) -> ramfold_store::Footprint {
                Default::default()
            }
        }
        let trace = Trace::synthetic("small", 100, &Lengths::heap(), 5);
        let error = replay(&trace, Forgetful(Vec::new())).unwrap_err();
        assert!(error.to_string().contains("is not what was stored"), "{error}");
    }
}
