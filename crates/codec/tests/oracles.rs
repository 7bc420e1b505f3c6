//! The codecs against independent ones: other people's decoders and encoders for LZ4 and zstd, and
//! for WKdm and PBPM slow models written from `docs/codecs.md` and the PBPM paper, one symbol and
//! one bit at a time.

mod corpus;

use corpus::{any_page, pages};
use proptest::prelude::*;
use ramfold_codec::{
    Codec, Compressor, Decompressor, Encoding, PAGE_SIZE, Page, compress_scratch_bytes,
    decompress_scratch_bytes, pbpm, wkdm,
};

const ROOMY: usize = 2 * PAGE_SIZE;

fn compress(name: &str, page: &Page) -> Option<Vec<u8>> {
    let codec: Codec = name.parse().expect("a codec's name");
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
    let mut out = vec![0; ROOMY];
    let length = compressor.compress(page, &mut out).ok()?;
    out.truncate(length);
    Some(out)
}

fn decompress(encoding: Encoding, object: &[u8]) -> Option<Box<Page>> {
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = Box::new([0; PAGE_SIZE]);
    decompressor.decompress(encoding, object, &mut page).ok()?;
    Some(page)
}

/// Bits to be filled in anywhere, least significant bit of each byte first.
struct Bits(Vec<u8>);

impl Bits {
    fn new(bytes: usize) -> Bits {
        Bits(vec![0; bytes])
    }

    fn set(&mut self, byte: usize, bit: usize, width: usize, value: u32) {
        for nth in 0..width {
            if value >> nth & 1 == 1 {
                self.0[byte + (bit + nth) / 8] |= 1 << ((bit + nth) % 8);
            }
        }
    }

    /// Codes of `width` bits, in words of 32 bits as figure 3 of the PBPM paper packs them: each
    /// code goes to the next byte of the word, four codes fill the lowest bits of its four bytes,
    /// and the next four are put above them.
    fn interleaved(codes: &[u32], width: usize) -> Vec<u8> {
        let a_word = 32 / width;
        let mut bits = Bits::new(4 * codes.len().div_ceil(a_word));
        for (nth, &code) in codes.iter().enumerate() {
            let (word, place) = (nth / a_word, nth % a_word);
            bits.set(4 * word + place % 4, width * (place / 4), width, code);
        }
        bits.0
    }
}

fn words_of(page: &Page) -> Vec<u32> {
    page.chunks(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes"))).collect()
}

/// WKdm, from its description.
fn model_wkdm(page: &Page) -> Vec<u8> {
    let words = words_of(page);
    let places: Vec<usize> = (0..words.len()).filter(|&place| words[place] != 0).collect();
    if places.len() <= 43 {
        let mut object = vec![1, places.len() as u8];
        for place in places {
            object.extend((place as u16).to_le_bytes());
            object.extend(words[place].to_le_bytes());
        }
        return object;
    }
    let mut dictionary = [0u32; 16];
    let (mut tags, mut misses, mut slots, mut lows) = (vec![], vec![], vec![], vec![]);
    for word in words {
        let slot = wkdm::SLOT[(word / 1024 % 256) as usize] as usize;
        let known = dictionary[slot];
        if word == 0 {
            tags.push(0);
            continue;
        }
        if word == known {
            tags.push(3);
            slots.push(slot as u32);
        } else if word / 1024 == known / 1024 {
            tags.push(1);
            slots.push(slot as u32);
            lows.push(word % 1024);
        } else {
            tags.push(2);
            misses.extend(word.to_le_bytes());
        }
        dictionary[slot] = word;
    }
    let mut low_bits = Bits::new(4 * lows.len().div_ceil(3));
    for (nth, &low) in lows.iter().enumerate() {
        low_bits.set(4 * (nth / 3), 10 * (nth % 3), 10, low);
    }
    let sections = [Bits::interleaved(&tags, 2), misses, Bits::interleaved(&slots, 4), low_bits.0];
    let slots_at = 8 + sections[0].len() + sections[1].len();
    let lows_at = slots_at + sections[2].len();
    let end = lows_at + sections[3].len();
    let mut object: Vec<u8> = vec![0, 0];
    for offset in [slots_at, lows_at, end] {
        object.extend((offset as u16).to_le_bytes());
    }
    object.extend(sections.concat());
    object
}

/// The symbols of a word, highest byte first, against an entry: `z`, `m` or `x`.
fn symbols(word: u32, entry: u32) -> (String, String) {
    let (bytes, known) = (word.to_be_bytes(), entry.to_be_bytes());
    let zeros = bytes.iter().map(|&byte| if byte == 0 { 'z' } else { 'x' }).collect();
    let matches = (0..4).map(|nth| if bytes[nth] == known[nth] { 'm' } else { 'x' }).collect();
    (zeros, matches)
}

/// Whether symbols fit a pattern: an `x` of the pattern stands for any byte.
fn fits(symbols: &str, pattern: &str) -> bool {
    symbols.chars().zip(pattern.chars()).all(|(symbol, wanted)| wanted == 'x' || symbol == wanted)
}

/// PBPM, algorithm 1 (a) of its paper line by line, with table I's codes.
fn model_pbpm(page: &Page) -> Vec<u8> {
    let mut dictionary = [[0u32; 2]; 8];
    let mut next_way = [0usize; 8];
    let (mut tape1, mut tape2, mut index, mut data) = (vec![], vec![], vec![], vec![]);
    for word in words_of(page) {
        let [b0, b1, b2, _] = word.to_le_bytes();
        let (zeros, _) = symbols(word, 0);
        if fits(&zeros, "zzzz") {
            tape1.push(0b00);
            continue;
        }
        if fits(&zeros, "zzzx") {
            tape1.push(0b11);
            tape2.push(0b00);
            data.push(b0);
            continue;
        }
        if fits(&zeros, "zxzx") {
            tape1.push(0b11);
            tape2.push(0b11);
            data.extend([b0, b2]);
            continue;
        }
        let set = pbpm::SET[b2 as usize] as usize;
        let near = if dictionary[set][1] ^ word < dictionary[set][0] ^ word { 1 } else { 0 };
        let (_, matches) = symbols(word, dictionary[set][near]);
        let mut insert = true;
        if fits(&matches, "mmmm") {
            tape1.push(0b10);
            index.push((2 * set + near) as u32);
            insert = false;
        } else if fits(&matches, "mmmx") {
            tape1.push(0b11);
            tape2.push(0b10);
            index.push((2 * set + near) as u32);
            data.push(b0);
        } else if fits(&matches, "mmxx") {
            tape1.push(0b11);
            tape2.push(0b01);
            index.push((2 * set + near) as u32);
            data.extend([b0, b1]);
        } else {
            tape1.push(0b01);
            data.extend(word.to_le_bytes());
        }
        if insert {
            dictionary[set][next_way[set]] = word;
            next_way[set] = 1 - next_way[set];
        }
    }
    let mut object = (data.len() as u16).to_le_bytes().to_vec();
    object.extend(data);
    object.extend(Bits::interleaved(&tape1, 2));
    object.extend(Bits::interleaved(&tape2, 2));
    object.extend(Bits::interleaved(&index, 4));
    object
}

/// A frame around a block, for decoders that take frames: magic number; single segment with a
/// content size of two bytes, stored less 256; header of a last, compressed block.
fn zstd_frame(block: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0b0110_0000];
    frame.extend((PAGE_SIZE as u16 - 256).to_le_bytes());
    frame.extend(&(1 | 2 << 1 | (block.len() as u32) << 3).to_le_bytes()[..3]);
    frame.extend(block);
    frame
}

fn decode_with_ruzstd(object: &[u8]) -> Vec<u8> {
    use ruzstd::io::Read;
    let frame = zstd_frame(&object[2..]);
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&frame[..]).expect("a frame");
    let mut page = vec![];
    decoder.read_to_end(&mut page).expect("a block");
    page
}

fn check(kind: &str, page: &Page) {
    let object = compress("lz4", page).expect("LZ4 takes any page");
    let mut back = [0; PAGE_SIZE];
    let length = lz4_flex::block::decompress_into(&object, &mut back).expect(kind);
    assert_eq!(length, PAGE_SIZE, "{kind}");
    assert!(back == *page, "{kind}: lz4_flex read another page");

    let mut object = [0; ROOMY];
    let length = lz4_flex::block::compress_into(page, &mut object).expect("enough room");
    let back = decompress(Encoding::Lz4, &object[..length]);
    assert!(back.as_deref() == Some(page), "{kind}: written by lz4_flex");

    for level in ["zstd-1", "zstd-3", "zstd-15"] {
        if let Some(object) = compress(level, page) {
            assert!(decode_with_ruzstd(&object) == page, "{kind}: ruzstd read another page");
        }
    }

    assert_eq!(compress("wkdm", page).as_ref(), Some(&model_wkdm(page)), "{kind}");
    assert_eq!(compress("pbpm", page).as_ref(), Some(&model_pbpm(page)), "{kind}");
}

#[test]
fn every_kind_of_page() {
    for (kind, page) in pages(31, 10) {
        check(kind, &page);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn generated_pages(page in any_page()) {
        check("generated", &page);
    }
}
