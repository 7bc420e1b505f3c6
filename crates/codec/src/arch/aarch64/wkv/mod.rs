//! WKv's kernels with NEON: a vector of the page is four registers, and shuffles by tables close
//! gaps and open them: sixteen masks of four words, 256 of eight narrower elements.

mod decode;
mod encode;
mod registers;

use decode::{resolve, scatter, unpack};
use encode::{classify, gather, highest, pack, strides};

use crate::wkv::Kernels;

pub(crate) static KERNELS: Kernels = Kernels {
    // SAFETY: of this and the following: the instructions are there.
    strides: |page, signatures| unsafe { strides(page, signatures) },
    // SAFETY: as above.
    gather: |page, distances, masks, literals| unsafe { gather(page, distances, masks, literals) },
    // SAFETY: as above.
    classify: |literals, count, keys, streams| unsafe { classify(literals, count, keys, streams) },
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
};
