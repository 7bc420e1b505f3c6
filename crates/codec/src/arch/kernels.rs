//! What stands alike for all sets of instructions.
//!
//! The kernels themselves stand once for each set, and once without vectors beside their codec.
//! Their arguments are the same, and where only registers differ so are some of their lines. That
//! is deliberate: a function is compiled for a set of instructions only where it says so itself,
//! with all it calls, and each copy is read beside the instructions that it is about.

/// The table of WKv's kernels that are in scope. Only to be had with proof that the processor has
/// the instructions they are compiled for.
macro_rules! wkv_kernels {
    () => {
        $crate::wkv::Kernels {
            // SAFETY: of this and the following: the processor has the instructions.
            strides: |page, signatures| unsafe { strides(page, signatures) },
            // SAFETY: as above.
            gather: |page, distances, masks, literals| unsafe {
                gather(page, distances, masks, literals)
            },
            // SAFETY: as above.
            classify: |literals, count, keys, streams| unsafe {
                classify(literals, count, keys, streams)
            },
            // SAFETY: as above.
            highest: |counts, sampled| unsafe { highest(counts, sampled) },
            // SAFETY: as above.
            pack: |bytes, count, table, codes, escapes| unsafe {
                pack(bytes, count, table, codes, escapes)
            },
            // SAFETY: as above.
            unpack: |codes, escapes, count, byte_of, bytes| unsafe {
                unpack(codes, escapes, count, byte_of, bytes)
            },
            // SAFETY: as above.
            resolve: |sections, count, keys, literals, halves| unsafe {
                resolve(sections, count, keys, literals, halves)
            },
            // SAFETY: as above.
            scatter: |sections, distances, literals, halves, page| unsafe {
                scatter(sections, distances, literals, halves, page)
            },
        }
    };
}

pub(super) use wkv_kernels;
