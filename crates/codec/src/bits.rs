//! Packing codes of two and four bits into words, and finding the words that are not zero.

use crate::{PAGE_WORDS, Page};

/// One code a byte, before packing and after unpacking.
pub(crate) type CodeTape = [u8; PAGE_WORDS];

/// Places of words in the page, as little-endian numbers.
pub(crate) type PlaceTape = [[u8; 2]; PAGE_WORDS];

/// Lists the words of `page` that are not zero in `places`, in order, and returns their number.
///
/// Zero words are 9 to 45 % of the heap pages of four programs, and fall among the others without a
/// pattern that a branch predictor could learn. With a list they cost a few instructions each, and
/// the loops of the word codecs see none of them.
#[inline]
pub(crate) fn list_nonzero_words(page: &Page, places: &mut PlaceTape) -> usize {
    list(page.as_chunks::<4>().0.iter().map(|word| *word != [0; 4]), places)
}

/// Lists the codes of `codes` that are not zero, as [`list_nonzero_words`] does.
#[inline]
pub(crate) fn list_nonzero_codes(codes: &CodeTape, places: &mut PlaceTape) -> usize {
    list(codes.iter().map(|&code| code != 0), places)
}

#[inline]
fn list(wanted: impl Iterator<Item = bool>, places: &mut PlaceTape) -> usize {
    let mut count = 0;
    for (place, wanted) in (0u16..).zip(wanted) {
        // Stored always, kept by counting it. The remainder tells the compiler what the number of
        // items says.
        places[count % PAGE_WORDS] = place.to_le_bytes();
        count += usize::from(wanted);
    }
    count
}

/// Runs of `run` numbers from 0 on, each shuffled, up to 256 entries: the rule behind the tables of
/// the word codecs, which stand in the source as numbers because they are part of the formats.
///
/// Shuffled after Fisher and Yates from the last entry down, entry `i` with entry `x % (i + 1)`,
/// where `x` is the next number of Marsaglia's 32-bit xorshift (13, 17, 5), which starts from 1.
#[cfg(test)]
pub(crate) fn shuffled_runs(run: u8) -> [u8; 256] {
    let mut table = [0; 256];
    let mut x = 1u32;
    for run in table.chunks_mut(usize::from(run)) {
        for (number, entry) in (0..).zip(run.iter_mut()) {
            *entry = number;
        }
        for i in (1..run.len()).rev() {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            run.swap(i, x as usize % (i + 1));
        }
    }
    table
}

/// Occurrences of each two-bit code in `packed`, whatever the order of codes within a word.
#[inline]
pub(crate) fn count_two_bit_codes(packed: &[u8]) -> [usize; 4] {
    const LOW: u64 = 0x5555_5555_5555_5555;
    let mut counts = [0usize; 4];
    let (words, rest) = packed.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    for bytes in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(*bytes);
        let low = word & LOW;
        let high = (word >> 1) & LOW;
        counts[1] += (low & !high).count_ones() as usize;
        counts[2] += (high & !low).count_ones() as usize;
        counts[3] += (high & low).count_ones() as usize;
    }
    counts[0] = packed.len() * 4 - counts[1] - counts[2] - counts[3];
    counts
}

/// Sixteen two-bit codes in one word as figure 3 of the PBPM paper packs them: four words of one
/// code a byte, the second shifted by two bits, the third by four, the fourth by six, and joined.
#[inline]
pub(crate) fn interleave_two_bit(codes: [u8; 16]) -> u32 {
    let x = u128::from_le_bytes(codes);
    let word = |nth: u32| (x >> (32 * nth)) as u32;
    word(0) | (word(1) << 2) | (word(2) << 4) | (word(3) << 6)
}

/// The inverse of [`interleave_two_bit`].
#[inline]
pub(crate) fn deinterleave_two_bit(word: u32) -> [u8; 16] {
    let word_of = |nth: u32| u128::from((word >> (2 * nth)) & 0x0303_0303) << (32 * nth);
    (word_of(0) | word_of(1) | word_of(2) | word_of(3)).to_le_bytes()
}

/// Eight four-bit codes in one word, packed as [`interleave_two_bit`] does: two words of one code a
/// byte, the second shifted by four bits.
#[inline]
pub(crate) fn interleave_four_bit(codes: [u8; 8]) -> u32 {
    let x = u64::from_le_bytes(codes);
    x as u32 | ((x >> 32) as u32) << 4
}

/// The inverse of [`interleave_four_bit`].
#[inline]
pub(crate) fn deinterleave_four_bit(word: u32) -> [u8; 8] {
    let low = u64::from(word & 0x0f0f_0f0f);
    let high = u64::from((word >> 4) & 0x0f0f_0f0f);
    (low | high << 32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonzero_words_are_listed() {
        let mut page = [0; crate::PAGE_SIZE];
        let mut places = [[0xee; 2]; PAGE_WORDS];
        assert_eq!(list_nonzero_words(&page, &mut places), 0);
        page[3] = 1;
        page[8] = 1;
        page[4095] = 0x80;
        assert_eq!(list_nonzero_words(&page, &mut places), 3);
        assert_eq!(places[..3], [[0, 0], [2, 0], [0xff, 3]]);
        assert_eq!(list_nonzero_words(&[1; crate::PAGE_SIZE], &mut places), PAGE_WORDS);
        assert!((0..).zip(places).all(|(nth, place)| u16::from_le_bytes(place) == nth));
        let mut codes = [0; PAGE_WORDS];
        codes[700] = 3;
        assert_eq!(list_nonzero_codes(&codes, &mut places), 1);
        assert_eq!(u16::from_le_bytes(places[0]), 700);
    }

    #[test]
    fn figure_3_order() {
        // Codes 0, 4, 8 and 12 share the first byte.
        let mut codes = [0; 16];
        (codes[0], codes[4], codes[8], codes[12]) = (1, 2, 3, 1);
        assert_eq!(interleave_two_bit(codes), 0b01_11_10_01);
        codes[3] = 2;
        assert_eq!(interleave_two_bit(codes), 0b01_11_10_01 | 2 << 24);
        assert_eq!(interleave_four_bit([1, 2, 3, 4, 5, 6, 7, 8]), 0x84_73_62_51);
        for word in [0, 1, 0x1b2c_3d4e, 0xffff_ffff, 0x8000_0001] {
            assert_eq!(interleave_two_bit(deinterleave_two_bit(word)), word);
            assert_eq!(interleave_four_bit(deinterleave_four_bit(word)), word);
        }
    }

    #[test]
    fn codes_are_counted() {
        let mut packed = [0; 256];
        packed[0] = 0b11_10_01_00;
        packed[255] = 0b11_11_10_01;
        assert_eq!(count_two_bit_codes(&packed), [1024 - 7, 2, 2, 3]);
        assert_eq!(count_two_bit_codes(&[0xff; 256]), [0, 0, 0, 1024]);
    }
}
