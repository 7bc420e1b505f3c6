//! Each way in which an object can be wrong, made by hand, and the error that says so.

mod corpus;

use corpus::{compress, from_words};
use ramfold_codec::page_lz::Effort;
use ramfold_codec::pbpm::Alignment;
use ramfold_codec::wkv::Prediction;
use ramfold_codec::{
    Codec, DecodeError, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES, PAGE_SIZE,
};

fn decode(encoding: Encoding, object: &[u8]) -> Result<(), DecodeError> {
    let mut scratch = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    decompressor.decompress(encoding, object, &mut [0; PAGE_SIZE])
}

#[track_caller]
fn expect(encoding: Encoding, object: &[u8], expected: Result<(), DecodeError>) {
    assert_eq!(decode(encoding, object), expected);
}

/// The header of a page LZ object: set, whether it has a code of its own, sequences, literals, and
/// the bytes of the streams, two by two.
fn page_lz_header(set: u64, own: bool, sequences: u64, literals: u64, pairs: [u64; 3]) -> Vec<u8> {
    let [first, second, third] = pairs;
    let (pairs, len) = if literals < 128 {
        (first | third << 8, 6)
    } else {
        (first | second << 12 | third << 24, 8)
    };
    let bits = set | u64::from(own) << 3 | sequences << 4 | literals << 15 | pairs << 28;
    bits.to_le_bytes()[..len].to_vec()
}

#[test]
fn page_lz() {
    let expect = |object: &[u8], expected| expect(Encoding::PageLz, object, expected);
    let good = compress(
        Codec::PageLz(Effort::Full),
        &from_words(|nth| ((nth as u32 / 7) << 20) | (nth as u32 % 3)),
    );
    expect(&good, Ok(()));
    for length in 0..good.len() {
        assert!(decode(Encoding::PageLz, &good[..length]).is_err(), "{length}");
    }
    expect(&[&good[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
    expect(&[&good[..], &[0; 8000]].concat(), Err(DecodeError::TrailingBytes));

    // No literals and no sequences are no page.
    expect(&page_lz_header(0, false, 0, 0, [0; 3]), Err(DecodeError::Truncated));
    expect(&page_lz_header(0, false, 0, 4097, [0; 3]), Err(DecodeError::TooLong));
    expect(&page_lz_header(0, false, 1366, 0, [0; 3]), Err(DecodeError::TooLong));
    let no_set = DecodeError::Malformed("page LZ set of codes");
    expect(&page_lz_header(7, false, 0, 0, [0; 3]), Err(no_set));
    // Streams that are not there, and streams with more than they need.
    expect(&page_lz_header(0, false, 0, 10, [20, 0, 0]), Err(DecodeError::Truncated));
    let mut object = page_lz_header(0, false, 0, 1, [9, 0, 0]);
    object.extend([0; 9]);
    expect(&object, Err(DecodeError::TrailingBytes));

    // A code of its own: all bytes in eight bits, one after the other.
    let literals: Vec<u8> = (0..4096).map(|nth| (nth % 251) as u8).collect();
    let with = |description: &[u8]| {
        // Four streams: the parts have 1,025 bytes but for the last, the second and fourth run
        // back.
        let mut object = page_lz_header(0, true, 0, 4096, [2050, 2046, 0]);
        object.extend(description);
        for pair in literals.chunks(2050) {
            let (forward, backward) = pair.split_at(1025);
            object.extend(forward.iter().map(|byte| byte.reverse_bits()));
            object.extend(backward.iter().rev().map(|byte| byte.reverse_bits()));
        }
        object
    };
    expect(&with(&[0x88; 128]), Ok(()));
    expect(
        &with(&[&[0x98][..], &[0x88; 127]].concat()),
        Err(DecodeError::Malformed("page LZ code")),
    );
    let no_length = DecodeError::Malformed("page LZ length of a word");
    expect(&with(&[&[0x8f][..], &[0x88; 127]].concat()), Err(no_length));
    expect(&with(&[0x88; 127])[..50], Err(DecodeError::Truncated));
}

#[test]
fn empty_objects() {
    for &encoding in Encoding::ALL {
        expect(encoding, &[], Err(DecodeError::Truncated));
    }
}

/// One literal, a copy of it, `tail` literals.
fn lz4_block(copied: usize, tail: usize) -> Vec<u8> {
    let mut block = vec![0x1f, b'a', 1, 0];
    block.extend(vec![255; (copied - 19) / 255]);
    block.push(((copied - 19) % 255) as u8);
    block.push((tail as u8) << 4);
    block.extend(vec![b'a'; tail]);
    block
}

#[test]
fn lz4() {
    let expect = |object: &[u8], expected| expect(Encoding::Lz4, object, expected);
    expect(&lz4_block(4090, 5), Ok(()));
    // Literals, past the page and up to its end only in part.
    expect(&lz4_block(4090, 6), Err(DecodeError::TooLong));
    expect(&lz4_block(4089, 5), Err(DecodeError::Truncated));
    // The format wants five literals at the end, whether or not the rest adds up to a page.
    let into_last = DecodeError::Malformed("LZ4 copy into the last literals");
    expect(&lz4_block(4091, 4), Err(into_last));
    expect(&lz4_block(4095, 0), Err(into_last));
    expect(&lz4_block(9000, 5), Err(into_last));
    let mut object = lz4_block(4090, 5);
    object.push(0);
    expect(&object, Err(DecodeError::TrailingBytes));
    let mut distance = |low, high, distance| {
        object[2..4].copy_from_slice(&[low, high]);
        expect(&object, Err(DecodeError::BadDistance { distance, decoded_bytes: 1 }));
    };
    distance(0, 0, 0);
    distance(2, 0, 2);
    distance(0xff, 0xff, 0xffff);
    // Lengths that go on past the end.
    expect(&[0xf0], Err(DecodeError::Truncated));
    expect(&[0xf0, 255, 255], Err(DecodeError::Truncated));
    expect(&[0x1f, b'a', 1], Err(DecodeError::Truncated));
    expect(&[0x1f, b'a', 1, 0, 255], Err(DecodeError::Truncated));
    expect(&vec![0xff; 9000], Err(DecodeError::Truncated));
    let mut literals = vec![0xf0; 9000];
    literals[1..40].fill(0xff);
    expect(&literals, Err(DecodeError::Truncated));
    // 15 + 16 * 255 literals, then a distance of zero.
    literals[17..].fill(0);
    let at_zero = DecodeError::BadDistance { distance: 0, decoded_bytes: PAGE_SIZE - 1 };
    expect(&literals, Err(at_zero));
    literals[17] = 2;
    expect(&literals, Err(DecodeError::TooLong));
    literals[17] = 1;
    expect(&literals, Err(DecodeError::TrailingBytes));
    expect(&literals[..18 + PAGE_SIZE], Ok(()));
}

#[test]
fn zstd() {
    let expect = |object: &[u8], expected| expect(Encoding::Zstd, object, expected);
    // Length; a literals section that repeats one byte `size` times; no sequences.
    let block = |size: u32| {
        let [b0, b1, b2, _] = (1 | 3 << 2 | size << 4).to_le_bytes();
        [5, 0, b0, b1, b2, b'a', 0]
    };
    expect(&block(4096), Ok(()));
    expect(&block(4095), Err(DecodeError::Truncated));
    // libzstd's codes: 20 damaged data, 70 no room in the destination, 72 wrong source size.
    expect(&block(4097), Err(DecodeError::Libzstd { code: 70 }));
    expect(&[1, 0, 0xff], Err(DecodeError::Libzstd { code: 20 }));
    expect(&[0, 0], Err(DecodeError::Libzstd { code: 20 }));
    expect(&[5, 0x10, 0, 0, 0, 0, 0], Err(DecodeError::Malformed("zstd block length")));
    expect(&[1], Err(DecodeError::Truncated));
    expect(&block(4096)[..6], Err(DecodeError::Truncated));
    expect(&[&block(4096)[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn wkdm_and_wk4x4() {
    for codec in [Codec::Wkdm, Codec::Wk4x4] {
        wk(codec);
    }
}

fn wk(codec: Codec) {
    let expect = |object: &[u8], expected| expect(codec.encoding(), object, expected);
    expect(&[2, 0], Err(DecodeError::Malformed("WK form")));
    expect(&[0, 1], Err(DecodeError::Malformed("WK form")));
    expect(&[1], Err(DecodeError::Truncated));

    expect(&[1, 1, 0xff, 3, 9, 0, 0, 0], Ok(()));
    expect(&[1, 1, 0x00, 4, 9, 0, 0, 0], Err(DecodeError::TooLong));
    expect(&[1, 1, 5, 0, 0, 0, 0, 0], Err(DecodeError::Malformed("WK sparse pair")));
    expect(&[1, 0, 5, 0, 9, 0, 0, 0], Err(DecodeError::TrailingBytes));
    expect(&[1, 2, 5, 0, 9, 0, 0, 0], Err(DecodeError::Truncated));
    let pair = |place| [place, 0, 9, 0, 0, 0];
    let two = |first, second| [&[1, 2][..], &pair(first), &pair(second)].concat();
    expect(&two(5, 6), Ok(()));
    expect(&two(5, 5), Err(DecodeError::Malformed("WK sparse pair")));
    expect(&two(6, 5), Err(DecodeError::Malformed("WK sparse pair")));
    let many = |count: u8| (0..count).flat_map(pair).collect::<Vec<u8>>();
    expect(&[&[1, 43][..], &many(43)].concat(), Ok(()));
    let too_many = DecodeError::Malformed("WK sparse word count");
    expect(&[&[1, 44][..], &many(44)].concat(), Err(too_many));

    // 50 words: one miss, 24 exact and 25 partial matches. So six words and a bit of slots, eight
    // words and a bit of low parts.
    let page = from_words(|nth| match nth {
        0..25 => 0x1234_5678,
        25..50 => 0x1234_5400 + nth as u32,
        _ => 0,
    });
    let good = compress(codec, &page);
    let (slots_at, lows_at, end) = (268, 268 + 4 * 7, 268 + 4 * 7 + 4 * 9);
    assert_eq!(good.len(), end);
    expect(&good, Ok(()));
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    for field in [2, 3, 4, 5, 6, 7] {
        expect(&with(field, 4), Err(DecodeError::Malformed("WK section offset")));
    }
    // A miss more or less moves the sections.
    expect(&with(8 + 255, 0x80), Err(DecodeError::Malformed("WK section offset")));
    expect(&with(8, 0x02), Err(DecodeError::Malformed("WK section offset")));
    // The 49th slot is the first of its word, whose other seven are padding.
    expect(&with(lows_at - 4, 0x10), Err(DecodeError::Malformed("WK slot padding")));
    expect(&with(lows_at - 1, 0x80), Err(DecodeError::Malformed("WK slot padding")));
    // The 25th low part is the first of its word; the two upper bits of each word are never used.
    expect(&with(end - 3, 0x04), Err(DecodeError::Malformed("WK low-bit padding")));
    expect(&with(end - 1, 0x80), Err(DecodeError::Malformed("WK low-bit padding")));
    expect(&with(lows_at + 3, 0x40), Err(DecodeError::Malformed("WK low-bit padding")));
    // Slots and misses may be anything.
    expect(&with(slots_at, 0x0f), Ok(()));
    expect(&with(264, 0xff), Ok(()));
    expect(&good[..end - 1], Err(DecodeError::Truncated));
    expect(&good[..100], Err(DecodeError::Truncated));
    expect(&[&good[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn pbpm() {
    let expect = |object: &[u8], expected| expect(Encoding::Pbpm, object, expected);
    // A miss, a full match, a partial one and a zxzx: 4 + 1 + 2 bytes of data.
    let page = from_words(|nth| match nth {
        0 | 1 => 0x1234_5678,
        2 => 0x1234_5679,
        3 => 0x0001_0001,
        _ => 0,
    });
    let good = compress(Codec::Pbpm(Alignment::Unaligned), &page);
    let (codes1_at, codes2_at, indices_at) = (2 + 7, 2 + 7 + 256, 2 + 7 + 256 + 4);
    assert_eq!(good.len(), indices_at + 4);
    expect(&good, Ok(()));
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    for bits in [0x60, 0x80] {
        expect(&with(1, bits), Err(DecodeError::Malformed("PBPM alignment")));
    }
    expect(&with(1, 0x1f), Err(DecodeError::Truncated));
    let data_length = DecodeError::Malformed("PBPM data length");
    // The miss made a full match: less data. A long code made another: as much data, or not.
    expect(&with(codes1_at, 0x03), Err(data_length));
    expect(&with(codes2_at, 0x02), Err(DecodeError::Malformed("PBPM index padding")));
    expect(&with(codes2_at, 0x01), Err(data_length));
    expect(&with(codes2_at + 1, 0x03), Err(data_length));
    // Two long codes, two indices.
    expect(&with(codes2_at + 2, 0x01), Err(DecodeError::Malformed("PBPM second-code padding")));
    expect(&with(codes2_at, 0x40), Err(DecodeError::Malformed("PBPM second-code padding")));
    expect(&with(indices_at + 2, 0x01), Err(DecodeError::Malformed("PBPM index padding")));
    expect(&with(indices_at, 0x10), Err(DecodeError::Malformed("PBPM index padding")));
    expect(&with(indices_at, 0x0f), Ok(()));
    // Entries of sets 3 and 5 are zero, but zero is of set 2, and so is the word that is made of
    // it.
    for bits in [0x0c, 0x01] {
        expect(&with(indices_at + 1, bits), Err(DecodeError::Malformed("PBPM index")));
    }
    expect(&with(indices_at + 1, 0x0e), Ok(()));
    expect(&good[..indices_at + 3], Err(DecodeError::Truncated));
    expect(&good[..indices_at - 1], Err(DecodeError::Truncated));
    expect(&good[..codes1_at], Err(DecodeError::Truncated));
    expect(&good[..1], Err(DecodeError::Truncated));
    expect(&[&good[..], &[0; 4]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn pbpm_with_aligned_data() {
    let expect = |object: &[u8], expected| expect(Encoding::Pbpm, object, expected);
    // One byte, a pair and a word of data.
    let page = from_words(|nth| match nth {
        0 => 0x1234_5678,
        1 => 0x0000_0007,
        2 => 0x0001_0001,
        _ => 0,
    });
    let header_padding = DecodeError::Malformed("PBPM header padding");
    let data_padding = DecodeError::Malformed("PBPM data padding");
    let data_length = DecodeError::Malformed("PBPM data length");
    let with = |good: &[u8], at: usize, bits: u8| {
        let mut object = good.to_vec();
        object[at] ^= bits;
        object
    };
    let separate = compress(Codec::Pbpm(Alignment::SeparateTapes), &page);
    assert_eq!(separate[..12], [8, 0x20, 0, 0, 0x78, 0x56, 0x34, 0x12, 1, 1, 7, 0]);
    expect(&with(&separate, 11, 1), Err(data_padding));
    let single = compress(Codec::Pbpm(Alignment::SingleTape), &page);
    let data = [0x78, 0x56, 0x34, 0x12, 7, 0, 0, 0, 1, 1, 0, 0];
    assert_eq!(single[..16], [&[12, 0x40, 0, 0][..], &data].concat());
    for padding in [9, 10, 11, 14, 15] {
        expect(&with(&single, padding, 0x80), Err(data_padding));
    }
    for good in [&separate, &single] {
        expect(good, Ok(()));
        expect(&with(good, 2, 1), Err(header_padding));
        expect(&with(good, 3, 1), Err(header_padding));
        expect(&good[..3], Err(DecodeError::Truncated));
        expect(&[good, &[0; 4][..]].concat(), Err(DecodeError::TrailingBytes));
        // The word made a full match, which has no data.
        expect(&with(good, usize::from(good[0]) + 4, 0x03), Err(data_length));
    }
}

#[test]
fn wkv() {
    let expect = |object: &[u8], expected| expect(Encoding::Wkv, object, expected);
    // Sixteen literals (a key of 20 bits, in its slot), all other words as 16 words back: header,
    // vectors, stride, mask, planes, key, values.
    let good = compress(Codec::Wkv(Prediction::Strides), &from_words(|_| 0x1234_5678));
    assert_eq!(good.len(), 8 + 8 + 1 + 2 + 2 + 2 + 3 + 32);
    let (stride_at, mask_at, key_at) = (16, 17, 23);
    expect(&good, Ok(()));
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    // More literals than a page has words, fewer than values, five strides, bits that are none.
    for (at, bits) in [(1, 0x04), (0, 0x1f), (4, 0x08), (4, 0x30), (7, 0x80), (6, 0x40)] {
        expect(&with(at, bits), Err(DecodeError::Malformed("WKv header")));
    }
    expect(&with(stride_at, 0x40), Err(DecodeError::Malformed("WKv stride")));
    expect(&with(stride_at, 0x3f), Ok(()));
    expect(&with(key_at + 2, 0x10), Err(DecodeError::Malformed("WKv key padding")));
    // Any key will do.
    expect(&with(key_at, 0xff), Ok(()));
    // A literal less than the header says; a value that is a zero; a miss that is not there.
    let counts = DecodeError::Malformed("WKv counts");
    expect(&with(mask_at, 1), Err(counts));
    expect(&with(mask_at + 2, 1), Err(counts));
    let mut missing = with(mask_at + 2, 1);
    missing[mask_at + 4] ^= 1;
    expect(&missing, Err(counts));
    // A vector more has a mask more, which moves everything behind it.
    assert!(decode(Encoding::Wkv, &with(8, 2)).is_err());
    for length in 0..good.len() {
        expect(&good[..length], Err(DecodeError::Truncated));
    }
    expect(&[&good[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn wkv_with_choices_and_packed_misses() {
    let expect = |object: &[u8], expected| expect(Encoding::Wkv, object, expected);
    // Letters, of which one half is as 16 words back and the other as 24.
    let letters = |nth: usize| {
        u32::from_le_bytes([nth, nth / 3, nth * 7, nth / 5].map(|n| b'a' + n as u8 % 13))
    };
    let page = from_words(|nth| letters(if nth < 512 { nth % 16 + 100 } else { nth % 24 * 31 }));
    let good = compress(Codec::Wkv(Prediction::Strides), &page);
    let header = u64::from_le_bytes(good[..8].try_into().expect("eight bytes"));
    let (strides, levels) = (header >> 33 & 7, header >> 36 & 3);
    assert_eq!((strides, levels), (3, 1));
    expect(&good, Ok(()));
    // The fourth stride of three.
    let mut choice = good.clone();
    choice[19] |= 3;
    expect(&choice, Err(DecodeError::Malformed("WKv choice of a stride")));
    let packed = Err(DecodeError::Malformed("WKv packed misses"));
    expect(&[&good[..], &[0]].concat(), packed);
    // The last codes made escapes, of which there are no more.
    let mut escaped = good.clone();
    *escaped.last_mut().expect("a byte") = 0xff;
    expect(&escaped, packed);
    for length in 0..good.len() {
        assert!(decode(Encoding::Wkv, &good[..length]).is_err(), "{length}");
    }
}

/// A run of so many literals, a copy of the last byte, the end.
fn lzo_stream(literals: u8, copied: usize) -> Vec<u8> {
    let mut stream = vec![17 + literals];
    stream.extend(vec![b'a'; usize::from(literals)]);
    stream.push(0b0010_0000);
    stream.extend(vec![0; (copied - 34) / 255]);
    stream.push(((copied - 34) % 255 + 1) as u8);
    stream.extend([0, 0, 0x11, 0, 0]);
    stream
}

#[test]
fn lzo() {
    let expect = |object: &[u8], expected| expect(Encoding::Lzo, object, expected);
    expect(&lzo_stream(4, 4092), Ok(()));
    expect(&lzo_stream(1, 4095), Ok(()));
    expect(&lzo_stream(4, 4093), Err(DecodeError::TooLong));
    expect(&lzo_stream(4, 4091), Err(DecodeError::Truncated));
    let good = lzo_stream(4, 4092);
    expect(&good[..good.len() - 1], Err(DecodeError::Truncated));
    expect(&[&good[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
    let with_end = |end: [u8; 3]| [&good[..good.len() - 3], &end].concat();
    for end in [[0x10, 0, 0], [0x12, 0, 0], [0x11, 1, 0], [0x19, 0, 0], [0x11, 0, 0x40]] {
        expect(&with_end(end), Err(DecodeError::Malformed("LZO copy from beyond a page")));
    }
    // The distance, less one, is above the two bits that count literals.
    let mut far = good.clone();
    let at = far.len() - 5;
    far[at] = 4 << 2;
    expect(&far, Err(DecodeError::BadDistance { distance: 5, decoded_bytes: 4 }));
    // Copies of two and of three bytes, which only other encoders write: after carried literals and
    // after a run.
    let after_carried = [18, b'a', 0b0000_0000, 0];
    expect(&[&after_carried[..], &lzo_stream(0, 4093)[1..]].concat(), Ok(()));
    let after_run = [21, b'a', b'a', b'a', b'a', 0b0000_0000, 0];
    let distance = DecodeError::BadDistance { distance: 2049, decoded_bytes: 4 };
    expect(&[&after_run[..], &[0x11, 0, 0]].concat(), Err(distance));
    // Lengths that go on past the end, runs past the page.
    expect(&[0], Err(DecodeError::Truncated));
    expect(&[0; 9000], Err(DecodeError::Truncated));
    expect(&[&[0; 20][..], &[255; 9000]].concat(), Err(DecodeError::TooLong));
    expect(&[255], Err(DecodeError::Truncated));
    expect(&[0x11, 0, 0], Err(DecodeError::Truncated));
}

#[test]
fn lzrw() {
    let expect = |object: &[u8], expected| expect(Encoding::Lzrw, object, expected);
    let good = compress(Codec::Lzrw, &[b'a'; PAGE_SIZE]);
    expect(&good, Ok(()));
    expect(&[2], Err(DecodeError::Malformed("LZRW1-A flag")));
    expect(&[1], Err(DecodeError::Truncated));
    expect(&[1; 1 + PAGE_SIZE], Ok(()));
    expect(&[1; PAGE_SIZE], Err(DecodeError::Truncated));
    expect(&[1; 2 + PAGE_SIZE], Err(DecodeError::TrailingBytes));
    // One literal and 227 copies of 18, the last 9 bytes literals: 237 items, 13 in the last group.
    assert_eq!(good.len(), 1 + 15 * 2 + 1 + 227 * 2 + 9);
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    expect(&with(0, 3), Err(DecodeError::Malformed("LZRW1-A flag")));
    let last_group = good.len() - 9 - 4 * 2 - 2;
    let control = DecodeError::Malformed("LZRW1-A control word of the last group");
    expect(&with(last_group + 1, 0x20), Err(control));
    expect(&with(last_group + 1, 0x80), Err(control));
    for (bits, distance) in [(1, 0), (3, 2)] {
        let error = DecodeError::BadDistance { distance, decoded_bytes: 1 };
        expect(&with(5, bits), Err(error));
    }
    // A copy of 18 made one of 17 leaves a byte to come; the other way there is one too many.
    expect(&with(4, 0x01), Err(DecodeError::Truncated));
    // The first of the last nine literals made a copy of them all and more.
    let mut long = good.clone();
    long[last_group] |= 0x10;
    long[last_group + 2 + 8] = 0x0f;
    long[last_group + 2 + 9] = 1;
    expect(&long, Err(DecodeError::TooLong));
    expect(&good[..good.len() - 1], Err(DecodeError::Truncated));
    expect(&good[..2], Err(DecodeError::Truncated));
    expect(&[&good[..], &[0]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn errors_read_well() {
    let said = |error: DecodeError| error.to_string();
    assert_eq!(said(DecodeError::Malformed("WK form")), "malformed WK form");
    assert_eq!(
        said(DecodeError::BadDistance { distance: 9, decoded_bytes: 4 }),
        "a copy from 9 bytes back, with 4 bytes decoded"
    );
    assert_eq!(
        said(DecodeError::NoScratch { encoding: Encoding::Zstd }),
        "the decompressor has no scratch for zstd"
    );
}
