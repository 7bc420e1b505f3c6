//! Codes of two and four bits, packed as figure 3 of the paper shows.

use crate::bits::{
    deinterleave_four_bit, deinterleave_two_bit, interleave_four_bit, interleave_two_bit,
};

/// What is packed has whole words of four bytes, and there is a code for all that fits in.
pub(crate) struct Codes {
    pub pack_twos: fn(&[u8], &mut [u8]),
    pub unpack_twos: fn(&[u8], &mut [u8]),
    pub pack_fours: fn(&[u8], &mut [u8]),
    pub unpack_fours: fn(&[u8], &mut [u8]),
}

/// In plain code.
pub(crate) static SCALAR_CODES: Codes = Codes { pack_twos, unpack_twos, pack_fours, unpack_fours };

fn pack_twos(codes: &[u8], packed: &mut [u8]) {
    for (bytes, group) in packed.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0) {
        *bytes = interleave_two_bit(*group).to_le_bytes();
    }
}

fn unpack_twos(packed: &[u8], codes: &mut [u8]) {
    for (bytes, group) in packed.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        *group = deinterleave_two_bit(u32::from_le_bytes(*bytes));
    }
}

fn pack_fours(codes: &[u8], packed: &mut [u8]) {
    for (bytes, group) in packed.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0) {
        *bytes = interleave_four_bit(*group).to_le_bytes();
    }
}

fn unpack_fours(packed: &[u8], codes: &mut [u8]) {
    for (bytes, group) in packed.as_chunks().0.iter().zip(codes.as_chunks_mut().0) {
        *group = deinterleave_four_bit(u32::from_le_bytes(*bytes));
    }
}
