//! LZ4, raw block format (<https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>): the whole
//! page, or [cluster](crate::cluster), is one independent block, whose decoded length is known.

mod decode;
mod encode;

pub(crate) use decode::decompress;
pub(crate) use encode::{SCRATCH_BYTES, compress};
pub(crate) use encode::{compress_block, scratch_bytes, table_entries};

/// Shortest copy.
const MATCH_MIN: usize = 4;
/// The last five bytes of a block are literals.
const LAST_LITERALS: usize = 5;
/// The last copy of a block starts at least twelve bytes before its end.
const LAST_MATCH_DISTANCE: usize = 12;
/// A length field of four bits with this value goes on in the bytes that follow.
const LENGTH_CONTINUES: usize = 15;
