//! WKv's kernels with NEON: a vector of the page is four registers, and shuffles by tables close gaps
//! and open them: sixteen masks of four words, 256 of eight narrower elements.

use core::arch::aarch64::*;
use core::array::from_fn;

use crate::Page;
use crate::arch::lanes::{NONE, SHUFFLES, first_lanes, u16_at, u32_at};
use crate::wkv::{
    ByteOf, ByteSet, Bytes, CANDIDATES, Candidates, Classified, Codes, Counts, Cover,
    DISTANCE_COUNT, DistanceCounts, Distances, ESCAPE, Gathered, HISTORY, Halves, Kernels, Keys,
    LANES, Literals, MULTIPLIER, Masks, PARTIAL_BITS, Resolved, SAMPLED, Sections, Signatures,
    Streams, Strides, VECTORS, distance_of, search_highest,
};

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

/// Bytes of a register.
const BYTES: usize = 16;
/// Words of a register.
const QUARTER: usize = 4;

/// Sixteen words.
type Vector = [uint32x4_t; LANES / QUARTER];

/// By a mask of four: where each byte comes from when words are moved.
type WordShuffles = [[u8; BYTES]; 1 << QUARTER];

/// The words whose bit is set, side by side.
static CLOSE: WordShuffles = of_words(&SHUFFLES.close);
/// Words that lie side by side, each to a bit that is set, and zeros between them.
static OPEN: WordShuffles = of_words(&SHUFFLES.open);

const fn of_words(of_elements: &[[u8; 8]; 256]) -> WordShuffles {
    let mut table = [[NONE; BYTES]; 1 << QUARTER];
    let mut mask = 0;
    while mask < table.len() {
        let mut byte = 0;
        while byte < BYTES {
            let element = of_elements[mask][byte / 4];
            if element != NONE {
                table[mask][byte] = 4 * element + byte as u8 % 4;
            }
            byte += 1;
        }
        mask += 1;
    }
    table
}

/// Sixteen bytes at `at`.
///
/// # Panics
/// When they are not within `bytes`.
#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8], at: usize) -> uint8x16_t {
    let from = &bytes[at..at + BYTES];
    // SAFETY: sixteen bytes are there.
    unsafe { vld1q_u8(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_half(bytes: &[u8], at: usize) -> uint8x8_t {
    let from = &bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { vld1_u8(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_vector(bytes: &[u8], at: usize) -> Vector {
    let from = &bytes[at..at + 4 * LANES];
    from_fn(|quarter| vreinterpretq_u32_u8(load(from, BYTES * quarter)))
}

#[inline]
#[target_feature(enable = "neon")]
fn store(bytes: &mut [u8], at: usize, vector: uint8x16_t) {
    let to = &mut bytes[at..at + BYTES];
    // SAFETY: sixteen bytes are there.
    unsafe { vst1q_u8(to.as_mut_ptr(), vector) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store_half(bytes: &mut [u8], at: usize, half: uint8x8_t) {
    let to = &mut bytes[at..at + 8];
    // SAFETY: eight bytes are there.
    unsafe { vst1_u8(to.as_mut_ptr(), half) }
}

#[inline]
#[target_feature(enable = "neon")]
fn store_vector(bytes: &mut [u8], at: usize, words: Vector) {
    let to = &mut bytes[at..at + 4 * LANES];
    for (quarter, words) in words.into_iter().enumerate() {
        store(to, BYTES * quarter, vreinterpretq_u8_u32(words));
    }
}

/// The numbers from 0 on.
#[inline]
#[target_feature(enable = "neon")]
fn numbers() -> uint8x16_t {
    load(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], 0)
}

/// The lowest byte of each word.
#[inline]
#[target_feature(enable = "neon")]
fn low_bytes([a, b, c, d]: Vector) -> uint8x16_t {
    let low = vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    let high = vuzp1q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
    vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// The highest byte of each word.
#[inline]
#[target_feature(enable = "neon")]
fn high_bytes([a, b, c, d]: Vector) -> uint8x16_t {
    let low = vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b));
    let high = vuzp2q_u16(vreinterpretq_u16_u32(c), vreinterpretq_u16_u32(d));
    vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// Of bytes that are all ones or zero, in each eight the bit of its place.
#[inline]
#[target_feature(enable = "neon")]
fn bits(bytes: uint8x16_t) -> uint8x16_t {
    vandq_u8(bytes, vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201)))
}

/// A bit for each byte that is all ones.
#[inline]
#[target_feature(enable = "neon")]
fn mask_of_bytes(bytes: uint8x16_t) -> u16 {
    let bits = bits(bytes);
    let bits = vpaddq_u8(bits, bits);
    let bits = vpaddq_u8(bits, bits);
    vgetq_lane_u16::<0>(vreinterpretq_u16_u8(vpaddq_u8(bits, bits)))
}

/// The same of 64 bytes.
#[inline]
#[target_feature(enable = "neon")]
fn mask_of_registers(bytes: [uint8x16_t; 4]) -> u64 {
    let [a, b, c, d] = bytes.map(|bytes| bits(bytes));
    let bits = vpaddq_u8(vpaddq_u8(a, b), vpaddq_u8(c, d));
    vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(bits, bits)))
}

/// A bit for each word that is all ones.
#[inline]
#[target_feature(enable = "neon")]
fn mask_of(words: Vector) -> u16 {
    mask_of_bytes(low_bytes(words))
}

/// All ones in the words whose bits are set.
#[inline]
#[target_feature(enable = "neon")]
fn lanes_of(mask: u16) -> Vector {
    from_fn(|quarter| lanes_of_quarter(mask >> (QUARTER * quarter)))
}

/// All ones in the four words whose bits are set.
#[inline]
#[target_feature(enable = "neon")]
fn lanes_of_quarter(mask: u16) -> uint32x4_t {
    const BITS: [u32; QUARTER] = [1, 2, 4, 8];
    // SAFETY: four words are there.
    let bits = unsafe { vld1q_u32(BITS.as_ptr()) };
    vtstq_u32(vdupq_n_u32(u32::from(mask)), bits)
}

/// How many bits are set in each four. In plain registers: there is an instruction only for vectors,
/// and going there and back would take longer.
#[inline]
fn counts_of_quarters(mask: u16) -> [usize; 4] {
    let twos = mask - (mask >> 1 & 0x5555);
    let fours = (twos & 0x3333) + (twos >> 2 & 0x3333);
    from_fn(|quarter| usize::from(fours >> (QUARTER * quarter) & 15))
}

/// Four words moved by the shuffle for the lowest four bits of `mask`.
#[inline]
#[target_feature(enable = "neon")]
fn shuffled(words: uint8x16_t, table: &WordShuffles, mask: u16) -> uint8x16_t {
    vqtbl1q_u8(words, load(&table[usize::from(mask) % table.len()], 0))
}

/// Stores the words whose bits are set side by side, the first as the word number `count`. Returns the
/// number of the next.
#[inline]
#[target_feature(enable = "neon")]
fn close(words: Vector, mask: u16, to: &mut [u8], mut count: usize) -> usize {
    let counts = counts_of_quarters(mask);
    for (quarter, words) in words.into_iter().enumerate() {
        let words = vreinterpretq_u8_u32(words);
        store(to, 4 * count, shuffled(words, &CLOSE, mask >> (QUARTER * quarter)));
        count += counts[quarter];
    }
    count
}

/// Words that lie side by side, the first of them number `count`, to where bits are set; zeros between
/// them. Counts them.
#[inline]
#[target_feature(enable = "neon")]
fn open(from: &[u8], count: &mut usize, mask: u16) -> Vector {
    let counts = counts_of_quarters(mask);
    from_fn(|quarter| {
        let words = shuffled(load(from, 4 * *count), &OPEN, mask >> (QUARTER * quarter));
        *count += counts[quarter];
        vreinterpretq_u32_u8(words)
    })
}

/// A shuffle for eight bytes.
#[inline]
#[target_feature(enable = "neon")]
fn shuffle(table: &[[u8; 8]; 256], mask: u8) -> uint8x8_t {
    load_half(&table[usize::from(mask)], 0)
}

/// A shuffle for pairs of bytes from one for bytes.
#[inline]
#[target_feature(enable = "neon")]
fn pairwise(shuffle: uint8x8_t) -> uint8x16_t {
    // 2n in the lower byte and 2n + 1 in the upper one; of `NONE` both are beyond all bytes.
    let doubled = vqadd_u8(shuffle, shuffle);
    let twice = vcombine_u8(vzip1_u8(doubled, doubled), vzip2_u8(doubled, doubled));
    vorrq_u8(twice, vreinterpretq_u8_u16(vdupq_n_u16(0x0100)))
}

type Table = uint8x16x4_t;

/// 64 bytes at `at`.
///
/// # Panics
/// When they are not within `bytes`.
#[inline]
#[target_feature(enable = "neon")]
fn load_table(bytes: &[u8], at: usize) -> Table {
    let from = &bytes[at..at + 4 * BYTES];
    // SAFETY: 64 bytes are there.
    unsafe { vld1q_u8_x4(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_keys(keys: &Keys) -> Table {
    // SAFETY: sixteen words are there.
    unsafe { vld1q_u8_x4(keys.as_ptr().cast()) }
}

/// Of sixteen words those with these numbers.
#[inline]
#[target_feature(enable = "neon")]
fn look_up(words: Table, numbers: uint32x4_t) -> uint32x4_t {
    let first_bytes = vmulq_u32(numbers, vdupq_n_u32(0x0404_0404));
    let bytes = vaddq_u32(first_bytes, vdupq_n_u32(0x0302_0100));
    vreinterpretq_u32_u8(vqtbl4q_u8(words, vreinterpretq_u8_u32(bytes)))
}

#[target_feature(enable = "neon")]
fn strides(page: &Page, signatures: &mut Signatures) -> Strides {
    sign(page, signatures);
    let candidates = best(&correlate(signatures));
    let mut covers = [[0; VECTORS]; CANDIDATES];
    for (cover, &number) in covers.iter_mut().zip(candidates.numbers()) {
        *cover = coverage(signatures, distance_of(number));
    }
    Strides::of(&candidates, &covers, |cover, covered| {
        // A gain is sixteen at most.
        let gains = (0..VECTORS).step_by(BYTES).fold(vdupq_n_u8(0), |gains, at| {
            vaddq_u8(gains, vqsubq_u8(load(cover, at), load(covered, at)))
        });
        u32::from(vaddlvq_u8(gains))
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn sign(page: &Page, signatures: &mut Signatures) {
    let multiplier = vdupq_n_u32(MULTIPLIER);
    let (history, signatures) = signatures.split_at_mut(HISTORY);
    history.fill(0);
    for vector in 0..VECTORS {
        let words = load_vector(page, 4 * LANES * vector);
        let hashes = high_bytes(words.map(|words| vmulq_u32(words, multiplier)));
        let zeros = low_bytes(words.map(|words| vceqzq_u32(words)));
        let odd = vorrq_u8(hashes, vdupq_n_u8(1));
        store(signatures, LANES * vector, vbicq_u8(odd, zeros));
    }
}

/// Signatures at `at`, with zeros made into what no signature is.
#[inline]
#[target_feature(enable = "neon")]
fn wanted(signatures: &Signatures, at: usize) -> uint8x16_t {
    let now = load(signatures, at);
    vorrq_u8(now, vandq_u8(vceqzq_u8(now), vdupq_n_u8(2)))
}

#[inline]
#[target_feature(enable = "neon")]
fn correlate(signatures: &Signatures) -> DistanceCounts {
    let starts = SAMPLED.map(|block| HISTORY + block);
    let now = starts.map(|start| from_fn::<_, 4, _>(|nth| wanted(signatures, start + BYTES * nth)));
    from_fn(|number| {
        let distance = usize::from(distance_of(number as u8));
        let mut agreeing = vdupq_n_u8(0);
        for (block, start) in now.iter().zip(starts) {
            for (nth, now) in block.iter().enumerate() {
                let back = load(signatures, start + BYTES * nth - distance);
                // All ones is one less than nothing.
                agreeing = vsubq_u8(agreeing, vceqq_u8(*now, back));
            }
        }
        vaddlvq_u8(agreeing)
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn best(counts: &DistanceCounts) -> Candidates {
    let ranks = Candidates::ranks(counts);
    let (eights, _) = ranks.as_chunks::<8>();
    // SAFETY: eight numbers of sixteen bits are there.
    let mut ranks: [_; DISTANCE_COUNT / 8] =
        from_fn(|nth| unsafe { vld1q_u16(eights[nth].as_ptr()) });
    Candidates::highest(|| {
        let most = ranks.into_iter().fold(vdupq_n_u16(0), |most, ranks| vmaxq_u16(most, ranks));
        let most = vmaxvq_u16(most);
        ranks = ranks.map(|ranks| vbicq_u16(ranks, vceqq_u16(ranks, vdupq_n_u16(most))));
        most
    })
}

#[inline]
#[target_feature(enable = "neon")]
fn coverage(signatures: &Signatures, distance: u8) -> Cover {
    let distance = usize::from(distance);
    let mut cover = from_fn(|vector| {
        let at = HISTORY + LANES * vector;
        let same = vceqq_u8(wanted(signatures, at), load(signatures, at - distance));
        vaddvq_u8(vandq_u8(same, vdupq_n_u8(1)))
    });
    cover[..distance.div_ceil(LANES)].fill(0);
    cover
}

#[target_feature(enable = "neon")]
fn gather(
    page: &Page,
    distances: &Distances,
    masks: &mut Masks,
    literals: &mut Literals<'_>,
) -> Gathered {
    let mut gathered = Gathered::default();
    let mut vectors = 0;
    let all_words = literals.words.as_flattened_mut();
    let all_predicted = literals.predicted.as_flattened_mut();
    for (vector, &distance) in distances.iter().enumerate() {
        let words = load_vector(page, 4 * LANES * vector);
        let predicted = predicted(page, vector, distance);
        let mask = !mask_of(from_fn(|quarter| vceqq_u32(words[quarter], predicted[quarter])));
        close(predicted, mask, all_predicted, gathered.literals);
        gathered.literals = close(words, mask, all_words, gathered.literals);
        masks[vectors] = mask.to_le_bytes();
        vectors += usize::from(mask != 0);
        gathered.vectors |= u64::from(mask != 0) << vector;
    }
    gathered
}

/// What a vector of the page is predicted to be.
#[inline]
#[target_feature(enable = "neon")]
fn predicted(page: &Page, vector: usize, distance: u8) -> Vector {
    let none = vdupq_n_u32(if distance == 0 { u32::MAX } else { 0 });
    let back = load_vector(page, 4 * (LANES * vector - usize::from(distance)));
    back.map(|words| vbicq_u32(words, none))
}

/// The same where the page has just been stored, register by register. A load that takes from two
/// stores would wait until both are in the cache: so registers are loaded as they were stored, and
/// words taken from two of them. Of the fifth, which may not be stored yet, none is when they begin
/// with a register.
#[inline]
#[target_feature(enable = "neon")]
fn predicted_from_stored(page: &Page, vector: usize, distance: u8) -> Vector {
    let (start, none) = match distance {
        0 => (0, NONE),
        _ => (LANES * vector - usize::from(distance), 0),
    };
    let order = vaddq_u8(numbers(), vdupq_n_u8((4 * (start % QUARTER)) as u8));
    let order = vorrq_u8(order, vdupq_n_u8(none));
    let stored = &page[BYTES * (start / QUARTER)..][..5 * BYTES];
    let stored: [_; 5] = from_fn(|nth| load(stored, BYTES * nth));
    from_fn(|quarter| {
        let two = uint8x16x2_t(stored[quarter], stored[quarter + 1]);
        vreinterpretq_u32_u8(vqtbl2q_u8(two, order))
    })
}

#[target_feature(enable = "neon")]
fn classify(
    literals: &Literals<'_>,
    count: usize,
    keys: &Keys,
    streams: &mut Streams<'_>,
) -> Classified {
    let keys = load_keys(keys);
    let multiplier = vdupq_n_u32(MULTIPLIER);
    let low = vdupq_n_u32((1 << PARTIAL_BITS) - 1);
    let mut used = [vdupq_n_u32(0); 4];
    let mut found = Classified::default();
    let (words, predicted) = (literals.words.as_flattened(), literals.predicted.as_flattened());
    let (values, misses) = (streams.values.as_flattened_mut(), streams.misses.as_flattened_mut());
    let planes = streams.value_plane.iter_mut().zip(streams.other_plane.iter_mut());
    for (group, (value_plane, other_plane)) in planes.enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let words = load_vector(words, 4 * LANES * group);
        let predicted = load_vector(predicted, 4 * LANES * group);
        let zeros = mask_of(words.map(|words| vceqzq_u32(words)));
        let half_lanes = from_fn(|quarter| {
            vcltq_u32(veorq_u32(words[quarter], predicted[quarter]), vdupq_n_u32(1 << 16))
        });
        let halves = mask_of(half_lanes) & !zeros & there;
        let slots = words.map(|words| {
            let keys = vshrq_n_u32::<{ PARTIAL_BITS as i32 }>(words);
            vshrq_n_u32::<28>(vmulq_u32(keys, multiplier))
        });
        let known = mask_of(from_fn(|quarter| {
            vceqq_u32(look_up(keys, slots[quarter]), vbicq_u32(words[quarter], low))
        }));
        let partials = known & !halves & !zeros & there;
        let missed = there & !(zeros | halves | partials);
        *value_plane = (halves | partials).to_le_bytes();
        *other_plane = (halves | missed).to_le_bytes();

        // The slot above the low bits, or the lower half as it is.
        let stored = from_fn(|quarter| {
            let partial = vsliq_n_u32::<{ PARTIAL_BITS as i32 }>(words[quarter], slots[quarter]);
            vbslq_u32(half_lanes[quarter], words[quarter], partial)
        });
        let valued = (halves | partials).to_le_bytes();
        for (stored, valued) in low_halves(stored).into_iter().zip(valued) {
            let order = pairwise(shuffle(&SHUFFLES.close, valued));
            store(values, 2 * found.values, vqtbl1q_u8(stored, order));
            found.values += valued.count_ones() as usize;
        }
        found.misses = close(words, missed, misses, found.misses);
        let partial_lanes = lanes_of(partials);
        used = from_fn(|quarter| {
            let bits = vshlq_u32(vdupq_n_u32(1), vreinterpretq_s32_u32(slots[quarter]));
            vorrq_u32(used[quarter], vandq_u32(bits, partial_lanes[quarter]))
        });
    }
    found.slots = any_of(used) as u16;
    found
}

/// The lower halves of sixteen words, eight to a register.
#[inline]
#[target_feature(enable = "neon")]
fn low_halves([a, b, c, d]: Vector) -> [uint8x16_t; 2] {
    [(a, b), (c, d)].map(|(a, b)| {
        vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)))
    })
}

/// The bits that any of the words has.
#[inline]
#[target_feature(enable = "neon")]
fn any_of([a, b, c, d]: Vector) -> u32 {
    let words = vorrq_u32(vorrq_u32(a, b), vorrq_u32(c, d));
    let two = vreinterpretq_u64_u32(words);
    let two = vgetq_lane_u64::<0>(two) | vgetq_lane_u64::<1>(two);
    two as u32 | (two >> 32) as u32
}

#[target_feature(enable = "neon")]
fn highest(counts: &Counts, sampled: u16) -> (ByteSet, ByteSet) {
    // No count is compared with what is not far below 255: a sample has some 500 bytes at most, and a
    // sixteenth of them is the most that is looked for. So larger counts may all be 255.
    debug_assert!(sampled < 16 * 255);
    let (sixteens, _) = counts.as_chunks::<16>();
    let counts: [[_; 4]; 4] = from_fn(|quarter| {
        from_fn(|nth| {
            let from = sixteens[4 * quarter + nth].as_ptr();
            // SAFETY: sixteen numbers of sixteen bits are there.
            let (low, high) = unsafe { (vld1q_u16(from), vld1q_u16(from.add(8))) };
            vqmovn_high_u16(vqmovn_u16(low), high)
        })
    });
    search_highest(
        sampled,
        |least| {
            let least = vdupq_n_u8(least as u8);
            counts.map(|quarter| mask_of_registers(quarter.map(|counts| vcgtq_u8(counts, least))))
        },
        |least| {
            let least = vdupq_n_u8(least as u8);
            counts.map(|quarter| mask_of_registers(quarter.map(|counts| vceqq_u8(counts, least))))
        },
    )
}

/// All ones in the first `count` bytes.
#[inline]
#[target_feature(enable = "neon")]
fn first_bytes(count: usize) -> uint8x16_t {
    vcltq_u8(numbers(), vdupq_n_u8(count.min(BYTES) as u8))
}

#[target_feature(enable = "neon")]
fn pack(
    bytes: &[u8],
    count: usize,
    table: &Codes,
    codes: &mut Bytes,
    escapes: &mut Bytes,
) -> usize {
    let [first, second, third, fourth] = from_fn(|quarter| load_table(&table.of, 64 * quarter));
    let escape = vdupq_n_u8(ESCAPE);
    let mut escaped = 0;
    for at in (0..count).step_by(BYTES) {
        let here = load(bytes, at);
        // A look-up leaves what is beyond its 64 bytes as it was.
        let below = |number| vsubq_u8(here, vdupq_n_u8(number));
        let codes_here = vqtbl4q_u8(first, here);
        let codes_here = vqtbx4q_u8(codes_here, second, below(64));
        let codes_here = vqtbx4q_u8(codes_here, third, below(128));
        let codes_here = vqtbx4q_u8(codes_here, fourth, below(192));
        let codes_here = vandq_u8(codes_here, first_bytes(count - at));
        let escaping = mask_of_bytes(vceqq_u8(codes_here, escape)).to_le_bytes();
        for (here, escaping) in [vget_low_u8(here), vget_high_u8(here)].into_iter().zip(escaping) {
            store_half(escapes, escaped, vtbl1_u8(here, shuffle(&SHUFFLES.close, escaping)));
            escaped += escaping.count_ones() as usize;
        }
        // The second code of each two above the first.
        let pairs = vreinterpretq_u16_u8(codes_here);
        store_half(codes, at / 2, vmovn_u16(vsraq_n_u16::<4>(pairs, pairs)));
    }
    escaped
}

#[target_feature(enable = "neon")]
fn unpack(
    codes: &Bytes,
    escapes: &Bytes,
    count: usize,
    byte_of: &ByteOf,
    bytes: &mut Bytes,
) -> usize {
    let byte_of = load(byte_of, 0);
    let escape = vdupq_n_u8(ESCAPE);
    let mut escaped = 0;
    for at in (0..count).step_by(BYTES) {
        let pairs = vmovl_u8(load_half(codes, at / 2));
        let pairs = vorrq_u16(pairs, vshlq_n_u16::<4>(pairs));
        let codes_here = vandq_u8(vreinterpretq_u8_u16(pairs), escape);
        let is_escape = vandq_u8(vceqq_u8(codes_here, escape), first_bytes(count - at));
        let [low, high] = mask_of_bytes(is_escape).to_le_bytes().map(|escaping| {
            let order = shuffle(&SHUFFLES.open, escaping);
            let these = vtbl1_u8(load_half(escapes, escaped), order);
            escaped += escaping.count_ones() as usize;
            these
        });
        let known = vqtbl1q_u8(byte_of, codes_here);
        store(bytes, at, vbslq_u8(is_escape, vcombine_u8(low, high), known));
    }
    escaped
}

#[target_feature(enable = "neon")]
fn resolve(
    sections: &Sections<'_>,
    count: usize,
    keys: &Keys,
    literals: &mut Bytes,
    halves: &mut Halves,
) -> Resolved {
    let keys = load_keys(keys);
    let low = vdupq_n_u32((1 << PARTIAL_BITS) - 1);
    let mut used = Resolved::default();
    let (halves, _) = halves.as_chunks_mut::<2>();
    for (group, halves) in halves.iter_mut().enumerate().take(count.div_ceil(LANES)) {
        let there = first_lanes(count - LANES * group) as u16;
        let valued = u16_at(sections.value_plane, 2 * group) & there;
        let other = u16_at(sections.other_plane, 2 * group) & there;
        *halves = (valued & other).to_le_bytes();
        let [first, second] = valued.to_le_bytes().map(|valued| {
            let order = pairwise(shuffle(&SHUFFLES.open, valued));
            let stored = vqtbl1q_u8(load(sections.values, 2 * used.values), order);
            used.values += valued.count_ones() as usize;
            vreinterpretq_u16_u8(stored)
        });
        let stored = [
            vmovl_u16(vget_low_u16(first)),
            vmovl_high_u16(first),
            vmovl_u16(vget_low_u16(second)),
            vmovl_high_u16(second),
        ];
        let misses = open(sections.misses, &mut used.misses, other & !valued);
        let partial_lanes = lanes_of(valued & !other);
        let words = from_fn(|quarter| {
            let stored = stored[quarter];
            let in_slots = look_up(keys, vshrq_n_u32::<{ PARTIAL_BITS as i32 }>(stored));
            let partials = vbslq_u32(low, stored, in_slots);
            vbslq_u32(partial_lanes[quarter], partials, vorrq_u32(stored, misses[quarter]))
        });
        store_vector(literals, 4 * LANES * group, words);
    }
    used
}

#[target_feature(enable = "neon")]
fn scatter(
    sections: &Sections<'_>,
    distances: &Distances,
    literals: &Bytes,
    halves: &Halves,
    page: &mut Page,
) -> usize {
    let lower_half = vdupq_n_u32(0xffff);
    let mut taken = 0;
    for (vector, (&distance, mask)) in distances.iter().zip(sections.literals()).enumerate() {
        let predicted = predicted_from_stored(page, vector, distance);
        let mut halves = (u32_at(halves, taken / 8) >> (taken % 8)) as u16;
        let counts = counts_of_quarters(mask);
        let words = from_fn(|quarter| {
            let mask = mask >> (QUARTER * quarter);
            let words = shuffled(load(literals, 4 * taken), &OPEN, mask);
            // Of a half the lower half, else the word; nothing where no literal is.
            let whole = vorrq_u32(vmvnq_u32(lanes_of_quarter(halves)), lower_half);
            let from_literals = shuffled(vreinterpretq_u8_u32(whole), &OPEN, mask);
            taken += counts[quarter];
            halves >>= counts[quarter];
            let predicted = vreinterpretq_u8_u32(predicted[quarter]);
            vreinterpretq_u32_u8(vbslq_u8(from_literals, words, predicted))
        });
        store_vector(page, 4 * LANES * vector, words);
    }
    taken
}
