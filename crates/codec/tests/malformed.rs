//! Each way in which an object can be wrong, made by hand, and the error that says so.

mod corpus;

use corpus::from_words;
use ramfold_codec::{
    Codec, Compressor, DecodeError, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES,
    PAGE_SIZE, Page, compress_scratch_bytes,
};

fn compress(codec: Codec, page: &Page) -> Vec<u8> {
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
    let mut out = vec![0; 2 * PAGE_SIZE];
    let length = compressor.compress(page, &mut out).expect("these pages compress");
    out.truncate(length);
    out
}

#[track_caller]
fn expect(encoding: Encoding, object: &[u8], expected: Result<(), DecodeError>) {
    let mut scratch = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = [0; PAGE_SIZE];
    assert_eq!(decompressor.decompress(encoding, object, &mut page), expected);
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
fn wkdm() {
    let expect = |object: &[u8], expected| expect(Encoding::Wkdm, object, expected);
    expect(&[2, 0], Err(DecodeError::Malformed("WKdm form")));
    expect(&[0, 1], Err(DecodeError::Malformed("WKdm form")));
    expect(&[1], Err(DecodeError::Truncated));

    expect(&[1, 1, 0xff, 3, 9, 0, 0, 0], Ok(()));
    expect(&[1, 1, 0x00, 4, 9, 0, 0, 0], Err(DecodeError::TooLong));
    expect(&[1, 1, 5, 0, 0, 0, 0, 0], Err(DecodeError::Malformed("WKdm sparse pair")));
    expect(&[1, 0, 5, 0, 9, 0, 0, 0], Err(DecodeError::TrailingBytes));
    expect(&[1, 2, 5, 0, 9, 0, 0, 0], Err(DecodeError::Truncated));
    let pair = |place| [place, 0, 9, 0, 0, 0];
    let two = |first, second| [&[1, 2][..], &pair(first), &pair(second)].concat();
    expect(&two(5, 6), Ok(()));
    expect(&two(5, 5), Err(DecodeError::Malformed("WKdm sparse pair")));
    expect(&two(6, 5), Err(DecodeError::Malformed("WKdm sparse pair")));
    let many = |count: u8| (0..count).flat_map(pair).collect::<Vec<u8>>();
    expect(&[&[1, 43][..], &many(43)].concat(), Ok(()));
    let too_many = DecodeError::Malformed("WKdm sparse word count");
    expect(&[&[1, 44][..], &many(44)].concat(), Err(too_many));

    // 50 words: one miss, 24 exact and 25 partial matches. So six words and a bit of slots, eight
    // words and a bit of low parts.
    let page = from_words(|nth| match nth {
        0..25 => 0x1234_5678,
        25..50 => 0x1234_5400 + nth as u32,
        _ => 0,
    });
    let good = compress(Codec::Wkdm, &page);
    let (slots_at, lows_at, end) = (268, 268 + 4 * 7, 268 + 4 * 7 + 4 * 9);
    assert_eq!(good.len(), end);
    expect(&good, Ok(()));
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    for field in [2, 3, 4, 5, 6, 7] {
        expect(&with(field, 4), Err(DecodeError::Malformed("WKdm section offset")));
    }
    // A miss more or less moves the sections.
    expect(&with(8 + 255, 0x80), Err(DecodeError::Malformed("WKdm section offset")));
    expect(&with(8, 0x02), Err(DecodeError::Malformed("WKdm section offset")));
    // The 49th slot is the first of its word, whose other seven are padding.
    expect(&with(lows_at - 4, 0x10), Err(DecodeError::Malformed("WKdm slot padding")));
    expect(&with(lows_at - 1, 0x80), Err(DecodeError::Malformed("WKdm slot padding")));
    // The 25th low part is the first of its word; the two upper bits of each word are never used.
    expect(&with(end - 3, 0x04), Err(DecodeError::Malformed("WKdm low-bit padding")));
    expect(&with(end - 1, 0x80), Err(DecodeError::Malformed("WKdm low-bit padding")));
    expect(&with(lows_at + 3, 0x40), Err(DecodeError::Malformed("WKdm low-bit padding")));
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
    let good = compress(Codec::Pbpm, &page);
    let (codes1_at, codes2_at, indices_at) = (2 + 7, 2 + 7 + 256, 2 + 7 + 256 + 4);
    assert_eq!(good.len(), indices_at + 4);
    expect(&good, Ok(()));
    let with = |at: usize, bits: u8| {
        let mut object = good.clone();
        object[at] ^= bits;
        object
    };
    for variant in [0x20, 0x40, 0x80] {
        expect(&with(1, variant), Err(DecodeError::Malformed("PBPM alignment variant")));
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
    expect(&good[..indices_at + 3], Err(DecodeError::Truncated));
    expect(&good[..indices_at - 1], Err(DecodeError::Truncated));
    expect(&good[..codes1_at], Err(DecodeError::Truncated));
    expect(&good[..1], Err(DecodeError::Truncated));
    expect(&[&good[..], &[0; 4]].concat(), Err(DecodeError::TrailingBytes));
}

#[test]
fn errors_read_well() {
    let said = |error: DecodeError| error.to_string();
    assert_eq!(said(DecodeError::Malformed("WKdm form")), "malformed WKdm form");
    assert_eq!(
        said(DecodeError::BadDistance { distance: 9, decoded_bytes: 4 }),
        "a copy from 9 bytes back, with 4 bytes decoded"
    );
    assert_eq!(
        said(DecodeError::NoScratch { encoding: Encoding::Zstd }),
        "the decompressor has no scratch for zstd"
    );
}
