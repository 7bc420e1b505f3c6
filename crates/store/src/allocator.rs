//! The interface of an allocator of objects, by which the pool is compared with others on one
//! trace.

use crate::OBJECT_BYTES_MAX;
use crate::pool::{Object, Pool};

/// Keeps objects of 1 to 4096 bytes.
pub trait Allocator {
    /// The right to an object. One that is dropped, not freed, is memory lost.
    type Handle;

    /// A name for reports.
    fn name(&self) -> &'static str;

    /// Copies an object of 1 to 4096 bytes in; `None` where there is no memory for it.
    fn put(&mut self, object: &[u8]) -> Option<Self::Handle>;

    /// Copies an object out, and returns its length.
    fn copy_out(&self, handle: &Self::Handle, object: &mut [u8; OBJECT_BYTES_MAX]) -> usize;

    /// Frees an object.
    fn free(&mut self, handle: Self::Handle);

    /// Moves objects together, so that memory goes back to the system. `handles` are those of all
    /// objects. Returns how many objects were moved: none if the allocator does not do this.
    fn compact<'h>(&mut self, handles: impl Iterator<Item = &'h mut Self::Handle>) -> u64
    where
        Self::Handle: 'h,
    {
        drop(handles);
        0
    }

    /// What the allocator costs now.
    fn footprint(&self) -> Footprint;
}

/// What an allocator costs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Memory for objects that the allocator has from the system.
    pub allocated_bytes: u64,
    /// Its tables, the handles not included.
    pub metadata_bytes: u64,
}

impl Allocator for Pool {
    type Handle = Object;

    fn name(&self) -> &'static str {
        "size-classes"
    }

    fn put(&mut self, object: &[u8]) -> Option<Object> {
        Pool::put(self, object, 0).ok()
    }

    fn copy_out(&self, handle: &Object, object: &mut [u8; OBJECT_BYTES_MAX]) -> usize {
        let Some((bytes, _)) = self.get(handle.as_ref()) else { return 0 };
        object[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }

    fn free(&mut self, handle: Object) {
        Pool::free(self, handle);
    }

    fn compact<'h>(&mut self, handles: impl Iterator<Item = &'h mut Object>) -> u64 {
        let mut moved = 0;
        for handle in handles {
            if let Some(better) = self.move_to_better(handle.as_ref()) {
                Pool::free(self, core::mem::replace(handle, better));
                moved += 1;
            }
        }
        self.trim();
        moved
    }

    fn footprint(&self) -> Footprint {
        Footprint {
            allocated_bytes: self.spans().resident_bytes() as u64,
            metadata_bytes: self.metadata_bytes() as u64,
        }
    }
}
