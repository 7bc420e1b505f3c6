//! Allocators of objects on the same traces: what they cost in memory and in time.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ramfold_store::{Allocator, Pool};
use serde::Serialize;

use super::block_lists::BlockLists;
use super::resource_map::ResourceMap;
use super::trace::{Step, Trace};
use super::zsmalloc::Zsmalloc;

use crate::content::random::Random;

/// Noise that objects are made of.
const NOISE_BYTES: usize = 1 << 16;

/// How often objects are moved at most before the result is looked at, as
/// [`ramfold_store::Store::compact`] does it.
const COMPACTION_PASSES: usize = 3;

/// What an allocator had come to at one point of a trace.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) trace: String,
    pub(crate) allocator: &'static str,
    /// The point.
    pub(crate) after: &'static str,
    pub(crate) objects: u64,
    /// Bytes of the objects that are there.
    pub(crate) compressed_bytes: u64,
    /// Memory for them.
    pub(crate) allocated_bytes: u64,
    /// Tables beside them.
    pub(crate) metadata_bytes: u64,
    pub(crate) allocated_per_compressed: f64,
    pub(crate) metadata_bytes_per_page: f64,
    /// Mean times since the point before, the copying of the object included.
    pub(crate) put_ns: Option<f64>,
    pub(crate) free_ns: Option<f64>,
    pub(crate) compact_ms: Option<f64>,
}

/// Every allocator over every trace.
pub(crate) fn measure(traces: &[Trace], mut tell: impl FnMut(&str)) -> Result<Vec<Row>> {
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

/// Goes through a trace with an allocator. Every object is looked at at each point.
fn replay<A: Allocator>(trace: &Trace, mut allocator: A) -> Result<Vec<Row>> {
    let mut random = Random::new(7);
    let noise: Vec<u8> = (0..NOISE_BYTES / 8).flat_map(|_| random.word().to_le_bytes()).collect();
    let content = |id: u32, len: u16| {
        let start = id as usize * 61 % (NOISE_BYTES - 4096);
        &noise[start..start + usize::from(len)]
    };
    let mut live: Vec<Option<(A::Handle, u16)>> = Vec::new();
    live.resize_with(trace.objects as usize, || None);
    let [mut put, mut free, mut compact] = [const { Clock { ns: 0, count: 0 } }; 3];
    let mut rows = Vec::new();
    let mut at = 0;
    while at < trace.steps.len() {
        // Runs of one kind are timed together: a look at the clock takes as long as some of them.
        let kind = std::mem::discriminant(&trace.steps[at]);
        let run = trace.steps[at..]
            .iter()
            .take_while(|step| std::mem::discriminant(*step) == kind)
            .count();
        let steps = &trace.steps[at..at + run];
        at += run;
        let started = Instant::now();
        match &steps[0] {
            Step::Put { .. } => {
                for step in steps {
                    let Step::Put { id, len } = *step else { continue };
                    let handle =
                        allocator.put(content(id, len)).context("no memory for an object")?;
                    ensure!(live[id as usize].is_none(), "the trace stores {id} twice");
                    live[id as usize] = Some((handle, len));
                }
                put.ns += started.elapsed().as_nanos() as u64;
                put.count += run as u64;
            }
            Step::Free { .. } => {
                for step in steps {
                    let Step::Free { id } = *step else { continue };
                    let (handle, _) = live[id as usize].take().context("the trace frees twice")?;
                    allocator.free(handle);
                }
                free.ns += started.elapsed().as_nanos() as u64;
                free.count += run as u64;
            }
            Step::Compact => {
                for _ in 0..COMPACTION_PASSES {
                    let handles = live.iter_mut().flatten().map(|(handle, _)| handle);
                    if allocator.compact(handles) == 0 {
                        break;
                    }
                }
                compact.ns += started.elapsed().as_nanos() as u64;
                compact.count += 1;
            }
            Step::Point(_) => {
                for step in steps {
                    let Step::Point(point) = step else { continue };
                    let row = row(trace, &allocator, &live, point.name(), content)?;
                    rows.push(Row {
                        put_ns: put.mean_ns(),
                        free_ns: free.mean_ns(),
                        compact_ms: compact.mean_ns().map(|ns| ns / 1e6),
                        ..row
                    });
                }
            }
        }
    }
    live.into_iter().flatten().for_each(|(handle, _)| allocator.free(handle));
    Ok(rows)
}

/// Checks all objects, and adds up what they cost.
fn row<'n, A: Allocator>(
    trace: &Trace,
    allocator: &A,
    live: &[Option<(A::Handle, u16)>],
    after: &'static str,
    content: impl Fn(u32, u16) -> &'n [u8],
) -> Result<Row> {
    let mut page = [0; 4096];
    let (mut objects, mut compressed_bytes) = (0, 0);
    for (id, place) in (0..).zip(live) {
        let Some((handle, len)) = place else { continue };
        let read = allocator.copy_out(handle, &mut page);
        ensure!(page[..read] == *content(id, *len), "object {id} is not what was stored");
        objects += 1;
        compressed_bytes += u64::from(*len);
    }
    let footprint = allocator.footprint();
    Ok(Row {
        trace: trace.name.clone(),
        allocator: allocator.name(),
        after,
        objects,
        compressed_bytes,
        allocated_bytes: footprint.allocated_bytes,
        metadata_bytes: footprint.metadata_bytes,
        allocated_per_compressed: footprint.allocated_bytes as f64 / compressed_bytes.max(1) as f64,
        metadata_bytes_per_page: footprint.metadata_bytes as f64 / objects.max(1) as f64,
        put_ns: None,
        free_ns: None,
        compact_ms: None,
    })
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
