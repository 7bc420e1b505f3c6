//! Objects that must never change: worked out by hand from the formats' descriptions, and
//! fingerprints of everything the encoders make of a fixed set of pages.

#[macro_use]
mod corpus;

use corpus::{compress, fingerprint, from_words, pages};
use ramfold_codec::pbpm::Alignment;
use ramfold_codec::wkv::Prediction;
use ramfold_codec::{
    Codec, Compressor, Decompressor, Encoding, PAGE_SIZE, Page, compress_scratch_bytes,
    decompress_scratch_bytes, pbpm, wkdm,
};

fn decompress(encoding: Encoding, object: &[u8]) -> Box<Page> {
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = Box::new([0; PAGE_SIZE]);
    decompressor.decompress(encoding, object, &mut page).expect("a valid object");
    page
}

#[track_caller]
fn both_ways(codec: Codec, page: &Page, object: &[u8]) {
    assert_eq!(compress(codec, page), object);
    assert!(*decompress(codec.encoding(), object) == *page);
}

#[test]
fn lz4_of_one_repeated_byte() {
    // Token: one literal, a copy of 15 or more. The literal. Distance 1. The copy ends five bytes
    // before the page does, so it is 4,090 long: 4 for the shortest, 15 in the token, 15 * 255 +
    // 246 after it. Token: five literals.
    let mut object = vec![0x1f, b'a', 1, 0];
    object.extend([255; 15]);
    object.extend([246, 0x50, b'a', b'a', b'a', b'a', b'a']);
    both_ways(Codec::Lz4, &[b'a'; PAGE_SIZE], &object);
}

#[test]
fn zstd_of_one_repeated_byte() {
    // Written by hand rather than by libzstd, which may choose otherwise. Length of the block, 5.
    // Literals header: type 1 (one byte repeated), size format 3, 20 bits of size: 1 | 3 << 2 |
    // 4096 << 4. The byte. No sequences.
    let object = [5, 0, 0x0d, 0x00, 0x01, b'a', 0];
    assert!(*decompress(Encoding::Zstd, &object) == [b'a'; PAGE_SIZE]);
}

#[test]
fn lzo_of_one_repeated_byte() {
    // A run of four (the shortest), 17 above. A copy of 4,092: 2 for the shortest, 31 and 15 times
    // 255 and 234 behind the opcode. Its distance of 4, less one and four times. The end.
    let mut object = vec![21, b'a', b'a', b'a', b'a', 0x20];
    object.extend([0; 15]);
    object.extend([234, 12, 0, 0x11, 0, 0]);
    both_ways(Codec::Lzo, &[b'a'; PAGE_SIZE], &object);
}

#[test]
fn lzrw_of_one_repeated_byte() {
    // Flag 0. A literal, then 227 copies of 18: the first from one back, then each from where the
    // one before it began; no copy starts in the last 17 bytes, of which 9 are left. Control words:
    // all copies but for the first item and the last nine.
    let mut object = vec![0];
    let mut items = vec![vec![b'a']];
    items.push(vec![0x0f, 1]);
    items.extend(vec![vec![0x0f, 18]; 226]);
    items.extend(vec![vec![b'a']; 9]);
    for group in items.chunks(16) {
        let control = (0..).zip(group).map(|(nth, item)| (item.len() as u16 - 1) << nth);
        object.extend(control.sum::<u16>().to_le_bytes());
        object.extend(group.concat());
    }
    both_ways(Codec::Lzrw, &[b'a'; PAGE_SIZE], &object);
}

/// The header of WKv: literals, values, misses, strides, levels, slots; and the vectors that have
/// literals.
fn wkv_header(fields: [u64; 6], vectors: u64) -> Vec<u8> {
    let widths = [11, 11, 11, 3, 2, 16];
    let (mut header, mut at) = (0, 0);
    for (field, width) in fields.into_iter().zip(widths) {
        header |= field << at;
        at += width;
    }
    [header.to_le_bytes(), vectors.to_le_bytes()].concat()
}

#[test]
fn wkv_of_one_repeated_word() {
    // The first vector has nothing to be predicted from; all others are as 16 words back, the first
    // of the distances that are all alike. The literals vote for their own key.
    let word = 0x1234_5678u32;
    let slot = (word >> 12).wrapping_mul(0x9e37_79b1) >> 28;
    let mut object = wkv_header([16, 16, 0, 1, 0, 1 << slot], 1);
    // The stride; the mask; which are values; which are otherwise; the key 0x12345, its low 16 bits
    // first.
    object.extend([0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x45, 0x23, 0x01]);
    object.extend([(slot as u16 * 4096 + 0x678).to_le_bytes(); 16].concat());
    both_ways(Codec::Wkv(Prediction::Strides), &from_words(|_| word), &object);
}

#[test]
fn wkv_of_every_class() {
    // Thirty-two words of one key, and the same again but for three; all else is zero.
    const KEY: u32 = 0x77777;
    let slot_of = |key: u32| key.wrapping_mul(0x9e37_79b1) >> 28;
    let slot = slot_of(KEY);
    // A key that would have the same slot, and does not get it.
    let other = (1..KEY).find(|&key| slot_of(key) == slot).expect("a sixteenth of them") << 12;
    let page = from_words(|nth| match nth {
        100 => KEY << 12 | 0xfff,
        101 => other | 0x304,
        102 => 0,
        64..128 => KEY << 12 | (nth as u32 % 32 * 37),
        _ => 0,
    });
    // Literals: the 32; then the upper half is as predicted, the other key a miss, the zero a zero;
    // then 31 zeros where the words from 96 on are predicted to come again.
    let vectors = 1 << 4 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 9;
    let mut object = wkv_header([66, 33, 1, 1, 0, 1 << slot], vectors);
    // One stride, of 32 words.
    object.push((32 - 16) / 2);
    object.extend([0xffffu16, 0xffff, 0x70, 0xffbf, 0xffff].map(u16::to_le_bytes).concat());
    // What has a value; what is otherwise.
    object.extend([0xff, 0xff, 0xff, 0xff, 0x01, 0, 0, 0, 0]);
    object.extend([0, 0, 0, 0, 0x03, 0, 0, 0, 0]);
    object.extend([0x77, 0x77, 0x07]);
    let values = (0..32).map(|nth| (slot << 12) + nth * 37).chain([KEY << 12 | 0xfff]);
    object.extend(values.flat_map(|value| (value as u16).to_le_bytes()));
    object.extend((other | 0x304).to_le_bytes());
    both_ways(Codec::Wkv(Prediction::Strides), &page, &object);
}

#[test]
fn wkv_of_text() {
    // Fifteen letters that come first in all places, fifteen others now and then, and a digit once.
    let frequent = *b"abcdefghijklmno";
    let others = *b"ABCDEFGHIJKLMNO";
    let letter = |nth: usize| match nth {
        4095 => b'7',
        _ if nth % 8 == 7 => others[nth / 8 % 15],
        _ => frequent[nth * nth / 7 % 15],
    };
    let page: Page = std::array::from_fn(letter);
    // No literals, but misses.
    let mut object = wkv_header([0, 0, 1024, 0, 2, 0], 0);
    object.extend(frequent);
    object.extend(others);
    object.extend(512u16.to_le_bytes());
    let code = |letters: &[u8; 15], byte: u8| letters.iter().position(|&b| b == byte).unwrap_or(15);
    let pack = |bytes: &[u8], letters: &[u8; 15]| -> Vec<u8> {
        let code = |byte| code(letters, byte) as u8;
        bytes.chunks(2).map(|pair| code(pair[0]) | code(pair[1]) << 4).collect()
    };
    object.extend(pack(&page, &frequent));
    let escapes: Vec<u8> = page.iter().skip(7).step_by(8).copied().collect();
    object.extend(pack(&escapes, &others));
    object.push(b'7');
    both_ways(Codec::Wkv(Prediction::Zeros), &page, &object);
}

#[test]
fn wkdm_of_almost_nothing() {
    // Form 1, no words.
    both_ways(Codec::Wkdm, &[0; PAGE_SIZE], &[1, 0]);
    // Form 1, two words: place, word.
    let page = from_words(|nth| match nth {
        5 => 0x1234_5678,
        1023 => 9,
        _ => 0,
    });
    let object = [1, 2, 5, 0, 0x78, 0x56, 0x34, 0x12, 0xff, 0x03, 9, 0, 0, 0];
    both_ways(Codec::Wkdm, &page, &object);
}

#[test]
fn wkdm_of_few_words() {
    // Sixteen times A, B, 0, A; then zeros, with C at the end.
    const A: u32 = 0x1122_3344; // bits 10 to 17: 0x8c
    const B: u32 = 0x1122_3301; // equal above bit 10; the low ten bits are 0x301
    const C: u32 = 0x0000_0155; // bits 10 to 17: 0; the entry it finds is still zero
    let slot_of_a = u32::from(wkdm::SLOT[0x8c]);
    let slot_of_c = u32::from(wkdm::SLOT[0]);
    assert_ne!(slot_of_a, slot_of_c);
    let page = from_words(|nth| match (nth, nth % 4) {
        (1023, _) => C,
        (64.., _) | (_, 2) => 0,
        (_, 1) => B,
        _ => A,
    });
    // Tags: the first A misses (2), each B matches in part (1), a zero is 0, and the A after a B or
    // an A matches in part (1) or exactly (3): A after the zero finds B in the slot, since a zero
    // stores nothing, so it is 1; the A that opens the next four finds that A, so it is 3. In fours
    // from the second on: 3 1 0 1.
    //
    // Four codes of each group of 16 share a byte, codes n, n + 4, n + 8 and n + 12, and these are
    // equal but for the very first: 11_11_11_10, 01_01_01_01, 0, 01_01_01_01, then 11_11_11_11 and
    // so on.
    let mut tags = vec![0xfe, 0x55, 0, 0x55];
    for _ in 1..4 {
        tags.extend([0xff, 0x55, 0, 0x55]);
    }
    tags.resize(255, 0);
    tags.push(0b01_00_00_00); // C: code 15 of the last group, a partial match with zero
    // Slots: 15 exact, 32 partial matches of A and B, one of C: 48, in six words. Two codes n and n
    // + 4 of eight share a byte; C's is the last.
    let mut slots = vec![(slot_of_a | slot_of_a << 4) as u8; 24];
    slots[23] = (slot_of_a | slot_of_c << 4) as u8;
    // Low bits of the partial matches: B, A, sixteen times, then C: 33 in eleven words.
    let mut lows: Vec<u32> = (0..32).map(|nth| if nth % 2 == 0 { 0x301 } else { 0x344 }).collect();
    lows.push(0x155);
    let lows =
        lows.chunks(3).flat_map(|three| (three[0] | three[1] << 10 | three[2] << 20).to_le_bytes());
    // Header: form 0 and nothing; slots at 8 + 256 + 4, low bits 24 later, end 44 later.
    let mut object = vec![0, 0, 0x0c, 0x01, 0x24, 0x01, 0x50, 0x01];
    object.extend(tags);
    object.extend(A.to_le_bytes());
    object.extend(slots);
    object.extend(lows);
    both_ways(Codec::Wkdm, &page, &object);
}

#[test]
fn pbpm_of_every_pattern() {
    // The third byte from the low end is 0x34 in the words that use the dictionary, but for the
    // last.
    let set = pbpm::SET[0x34];
    assert_ne!(set, pbpm::SET[0xad]);
    let (way_0, way_1) = (2 * set, 2 * set + 1);
    let words = [
        (0x0000_00ab, "zzzx: 11 00, ab"),
        (0x00cd_00ef, "zxzx: 11 11, ef cd"),
        (0x1234_5678, "xxxx: 01, the word; enters way 0"),
        (0x1234_5678, "mmmm: 10, way 0"),
        (0x1234_5699, "mmmx: 11 10, way 0, 99; enters way 1"),
        (0x1234_aaaa, "mmxx: 11 01, way 1, which is nearer, aa aa; enters way 0, the older"),
        (0x0000_0000, "zzzz: 00"),
        (0xdead_beef, "xxxx: 01, the word"),
        (0x1234_5678, "mmmx: 11 10, way 1, 78; enters way 1, now the older"),
        (0x1234_aaaa, "mmmm: 10, way 0"),
    ];
    let page = from_words(|nth| words.get(nth).map_or(0, |&(word, _)| word));
    let data =
        [0xab, 0xef, 0xcd, 0x78, 0x56, 0x34, 0x12, 0x99, 0xaa, 0xaa, 0xef, 0xbe, 0xad, 0xde, 0x78];
    // First codes: 11 11 01 10, 11 11 00 01, 11 10 and zeros; codes n, n + 4, n + 8 and n + 12 of a
    // group of 16 share a byte, from its low end.
    let mut codes1 = [0; 256];
    codes1[..4].copy_from_slice(&[0b00_11_11_11, 0b00_10_11_11, 0b00_00_00_01, 0b00_00_01_10]);
    // Second codes, of the five long ones: 00 11 10 01, 10.
    let codes2 = [0b10_00, 0b11, 0b10, 0b01];
    // Indices: ways 0, 0, 1, 1, then 0; codes n and n + 4 of eight share a byte.
    let indices = [way_0 | way_0 << 4, way_0, way_1, way_1];
    // Header: variant 0, 15 bytes of data.
    let object = [&[15, 0][..], &data, &codes1, &codes2, &indices].concat();
    both_ways(Codec::Pbpm(Alignment::Unaligned), &page, &object);
    both_ways(Codec::Pbpm(Alignment::Unaligned), &[0; PAGE_SIZE], &[0; 2 + 256]);
}

macro_rules! fingerprints {
    ($($module:ident: $name:literal, $bytes:literal, $fingerprint:literal;)*) => {
        /// What `corpus/codecs.rs` says of each codec: name, bytes and fingerprint.
        const FINGERPRINTS: &[(&str, usize, u64)] = &[$(($name, $bytes, $fingerprint)),*];
    };
}

for_every_codec!(fingerprints);

/// As the list has it.
fn line(name: &str, bytes: usize, fingerprint: u64) -> String {
    format!("{name}, {bytes}, {fingerprint:#018x}")
}

#[test]
fn fingerprints_of_what_the_encoders_write() {
    let pages = pages(1, 4);
    assert_eq!(fingerprint(pages.iter().map(|(_, page)| &page[..])), 0xf8795ac2f4aeb37d);
    let written = FINGERPRINTS.iter().map(|&(name, ..)| {
        let codec: Codec = name.parse().expect("a codec's name");
        let mut scratch = vec![0; compress_scratch_bytes(codec)];
        let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
        let mut out = [0; 2 * PAGE_SIZE];
        let objects: Vec<Vec<u8>> = pages
            .iter()
            .map(|(_, page)| {
                let length = compressor.compress(page, &mut out).unwrap_or(0);
                out[..length].to_vec()
            })
            .collect();
        let bytes = objects.iter().map(Vec::len).sum::<usize>();
        line(name, bytes, fingerprint(objects.iter().map(|object| &object[..])))
    });
    let expected = FINGERPRINTS.iter().map(|&(name, bytes, print)| line(name, bytes, print));
    assert_eq!(written.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// `12,345`.
fn with_comma(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", number / 1000, number % 1000),
    }
}

#[test]
fn scratch_is_what_the_document_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/codecs.md");
    let document = std::fs::read_to_string(path).expect("docs/codecs.md");
    let rows = [
        ("lz4, lzrw1-a", &["lz4", "lzrw1-a"][..]),
        ("lzo", &["lzo"]),
        ("wkdm, wk4x4", &["wkdm", "wk4x4"]),
        ("pbpm", &["pbpm", "pbpm-separate", "pbpm-single"]),
        ("wkv", &["wkv", "wkv-words"]),
        ("page-lz, page-lz-fast", &["page-lz", "page-lz-fast"]),
        ("zstd-1, -2", &["zstd-1", "zstd-2"]),
        ("zstd-3 to -8", &["zstd-3", "zstd-5", "zstd-8"]),
        ("zstd-9, -10", &["zstd-9", "zstd-10"]),
        ("zstd-11", &["zstd-11"]),
        ("zstd-12 to -19", &["zstd-12", "zstd-15", "zstd-19"]),
    ];
    for (title, names) in rows {
        for name in names {
            let codec: Codec = name.parse().expect("a codec's name");
            let compress = with_comma(compress_scratch_bytes(codec));
            let decompress = with_comma(decompress_scratch_bytes(codec.encoding()));
            let row = format!("| {title} | {compress} | {decompress} |\n");
            assert!(document.contains(&row), "{name}: docs/codecs.md lacks {row}");
        }
    }
}
