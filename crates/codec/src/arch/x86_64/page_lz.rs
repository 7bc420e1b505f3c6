//! The page LZ's decoder: compiled for BMI2, which shifts without going through a register of its
//! own, and with copies of 16 bytes whatever the distance.

use core::arch::x86_64::*;

use super::{Avx2, Avx512};
use crate::error::DecodeError;
use crate::page_lz::{
    DECOMPRESS_SCRATCH_BYTES, Decoder, PIECE, Plan, Progress, Sequence, decompress_with, follow,
};
use crate::{PAGE_SIZE, Page};

static DECODER: Decoder = |object, scratch, page| {
    // SAFETY: only to be had with proof that the instructions are there.
    unsafe { decompress(object, scratch, page) }
};

impl Avx2 {
    pub(crate) fn page_lz(self) -> Decoder {
        DECODER
    }
}

impl Avx512 {
    pub(crate) fn page_lz(self) -> Decoder {
        DECODER
    }
}

// Not AVX2: the compiler would make vectors of the streams' registers, which only cost time.
#[target_feature(enable = "ssse3,bmi1,bmi2,lzcnt,popcnt")]
fn decompress(
    object: &[u8],
    scratch: &mut [u8; DECOMPRESS_SCRATCH_BYTES],
    page: &mut Page,
) -> Result<(), DecodeError> {
    decompress_with(object, scratch, page, |plan, page| follow_wide(plan, page))
}

/// A piece is a register.
const _: () = assert!(PIECE == size_of::<__m128i>());

/// By distance: how the bytes so far back follow one another without end.
static PERIODS: [[u8; PIECE]; PIECE + 1] = {
    let mut periods = [[0; PIECE]; PIECE + 1];
    let mut distance = 1;
    while distance <= PIECE {
        let mut at = 0;
        while at < PIECE {
            periods[distance][at] = (at % distance) as u8;
            at += 1;
        }
        distance += 1;
    }
    periods
};

/// By distance, the largest multiple of it up to 16.
static STEPS: [u8; PIECE + 1] = {
    let mut steps = [0; PIECE + 1];
    let mut distance = 1;
    while distance <= PIECE {
        steps[distance] = (PIECE / distance * distance) as u8;
        distance += 1;
    }
    steps
};

#[target_feature(enable = "ssse3,bmi1,bmi2,lzcnt,popcnt")]
fn follow_wide(plan: &Plan<'_>, page: &mut Page) -> Result<(), DecodeError> {
    let mut progress = Progress::default();
    let to = page.as_mut_ptr();
    for Sequence { run, length, distance } in plan.sequences(0) {
        let Progress { taken, made, .. } = progress;
        if made + run + length + 2 * PIECE > PAGE_SIZE || distance.wrapping_sub(1) >= made + run {
            // Near the end there is no room in the page for what is written too much here.
            break;
        }
        // SAFETY: no more was taken than made, and literals have room for a page and a piece;
        // the copy reaches back at most to the page's beginning; the page has room for two pieces
        // behind this sequence, and every piece begins within it.
        unsafe {
            let mut at = 0;
            loop {
                let piece = _mm_loadu_si128(plan.literals.as_ptr().add(taken + at).cast());
                _mm_storeu_si128(to.add(made + at).cast(), piece);
                at += PIECE;
                if at >= run {
                    break;
                }
            }
            let to = to.add(made + run);
            let from = to.sub(distance);
            let period = distance.min(PIECE);
            let shuffle = _mm_loadu_si128(PERIODS[period].as_ptr().cast());
            let step = usize::from(STEPS[period]);
            let mut at = 0;
            loop {
                // A step is a whole number of periods: bytes go on the same way behind it.
                let piece = _mm_shuffle_epi8(_mm_loadu_si128(from.add(at).cast()), shuffle);
                _mm_storeu_si128(to.add(at).cast(), piece);
                at += step;
                if at >= length {
                    break;
                }
            }
        }
        progress.done += 1;
        progress.taken += run;
        progress.made += run + length;
    }
    follow(plan, progress, page)
}
