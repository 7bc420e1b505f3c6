//! The limits of a store.

use super::METADATA_BYTES_MIN;
use crate::StoreError;
use crate::pool::{POOL_BYTES_LIMIT, SPAN_BYTES};
use crate::spill::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Space};

/// Limits of a store. Address space is reserved for all of it at once, memory is taken as needed.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Most memory for objects, in bytes: 64 KiB to 512 GiB, rounded down to spans of 64 KiB.
    pub pool_bytes_max: usize,
    /// Memory that [`Store::refill_reserve`](crate::Store::refill_reserve) keeps ready for objects,
    /// in bytes, rounded up to spans; and 1/32 of it, but at least a span, for the index. With 0 a
    /// span gets its memory from the system page by page, and loses it as soon as it is empty.
    pub reserve_bytes: usize,
    /// Most memory for the index, in bytes, at least 1 MiB. A page costs 8 to 10 bytes if its
    /// neighbours are stored too, up to 630 if it is alone. The pool's own tables (20 bytes, of raw
    /// pages 84, for each span of 64 KiB) come on top.
    pub metadata_bytes_max: usize,
    /// A file for what the pool has no room for; see [`Spill`](crate::Spill).
    pub spill: Option<SpillShape>,
}

/// How a spill file is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillShape {
    /// Bytes that are written at once. Their room is used again when all that was in it has been
    /// freed. A power of two, 64 KiB to 4 MiB.
    pub segment_bytes: usize,
    /// Most segments of the file, at most as many as make 256 GiB. Each takes 16 bytes of memory
    /// once it is used.
    pub segment_count_max: usize,
}

impl Config {
    /// Refuses limits out of range.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let Config { pool_bytes_max, reserve_bytes, metadata_bytes_max, spill } = *self;
        in_range("pool_bytes_max", pool_bytes_max, SPAN_BYTES, POOL_BYTES_LIMIT)?;
        in_range("reserve_bytes", reserve_bytes, 0, pool_bytes_max)?;
        in_range("metadata_bytes_max", metadata_bytes_max, METADATA_BYTES_MIN, POOL_BYTES_LIMIT)?;
        spill.map_or(Ok(()), |shape| shape.check())
    }
}

impl SpillShape {
    fn check(&self) -> Result<(), StoreError> {
        let SpillShape { segment_bytes, segment_count_max } = *self;
        let (min, max) = (SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        in_range("segment_bytes", segment_bytes, min, max)?;
        if !segment_bytes.is_power_of_two() {
            let value = segment_bytes;
            return Err(StoreError::Config { field: "segment_bytes", value, min, max });
        }
        let most = Space::bytes_limit() / segment_bytes;
        in_range("segment_count_max", segment_count_max, 1, most)
    }
}

fn in_range(field: &'static str, value: usize, min: usize, max: usize) -> Result<(), StoreError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(StoreError::Config { field, value, min, max })
    }
}
