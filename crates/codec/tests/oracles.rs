//! The codecs against independent ones: other people's decoders and encoders for LZ4, LZO and zstd,
//! and for the others slow models written from `docs/codecs.md` and the PBPM paper, one symbol and one
//! bit at a time.

mod corpus;

use corpus::{any_page, pages};
use proptest::prelude::*;
use ramfold_codec::pbpm::Alignment;
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

/// What a word finds in a dictionary, which then takes it in: the slot and the entry there. For a word
/// that nothing resembles any entry will do.
trait Dictionary {
    fn find_and_enter(&mut self, word: u32) -> (u32, u32);
}

/// WKdm's: one slot for a word.
struct Slots([u32; 16]);

impl Dictionary for Slots {
    fn find_and_enter(&mut self, word: u32) -> (u32, u32) {
        let slot = wkdm::SLOT[(word / 1024 % 256) as usize];
        let known = std::mem::replace(&mut self.0[slot as usize], word);
        (u32::from(slot), known)
    }
}

/// WK4x4's: four sets, each a list from the latest on.
struct Sets([Vec<u32>; 4]);

impl Dictionary for Sets {
    fn find_and_enter(&mut self, word: u32) -> (u32, u32) {
        let set = usize::from(wkdm::SLOT[(word / 1024 % 256) as usize] % 4);
        let list = &mut self.0[set];
        // The first of the least.
        let mut way = (0..4).min_by_key(|&way| list[way] ^ word).expect("four ways");
        if list[way] / 1024 != word / 1024 {
            way = 3;
        }
        let known = list.remove(way);
        list.insert(0, word);
        ((4 * set + way) as u32, known)
    }
}

/// WKdm or WK4x4, from their description.
fn model_wk(page: &Page, mut dictionary: impl Dictionary) -> Vec<u8> {
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
    let (mut tags, mut misses, mut slots, mut lows) = (vec![], vec![], vec![], vec![]);
    for word in words {
        if word == 0 {
            tags.push(0);
            continue;
        }
        let (slot, known) = dictionary.find_and_enter(word);
        if word == known {
            tags.push(3);
            slots.push(slot);
        } else if word / 1024 == known / 1024 {
            tags.push(1);
            slots.push(slot);
            lows.push(word % 1024);
        } else {
            tags.push(2);
            misses.extend(word.to_le_bytes());
        }
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

/// The pieces of data of a page in one of the three alignments, header included.
fn model_pbpm_data(pieces: &[Vec<u8>], alignment: Alignment) -> Vec<u8> {
    let mut data = vec![];
    match alignment {
        Alignment::Unaligned => data = pieces.concat(),
        Alignment::SeparateTapes => {
            for size in [4, 2, 1] {
                data.extend(pieces.iter().filter(|piece| piece.len() == size).flatten());
            }
        }
        Alignment::SingleTape => {
            // By size, the places in the last word of that kind that are free.
            let mut free: [Vec<usize>; 5] = Default::default();
            for piece in pieces {
                let size = piece.len();
                if free[size].is_empty() {
                    free[size] = (data.len()..data.len() + 4).step_by(size).collect();
                    data.extend([0; 4]);
                }
                let at = free[size].remove(0);
                data[at..at + size].copy_from_slice(piece);
            }
        }
    }
    let aligned = alignment != Alignment::Unaligned;
    if aligned {
        data.resize(data.len().next_multiple_of(4), 0);
    }
    let header = data.len() as u16 | (alignment as u16) << 13;
    let mut section = header.to_le_bytes().to_vec();
    section.resize(if aligned { 4 } else { 2 }, 0);
    section.extend(data);
    section
}

/// PBPM, algorithm 1 (a) of its paper line by line, with table I's codes.
fn model_pbpm(page: &Page, alignment: Alignment) -> Vec<u8> {
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
            data.push(vec![b0]);
            continue;
        }
        if fits(&zeros, "zxzx") {
            tape1.push(0b11);
            tape2.push(0b11);
            data.push(vec![b0, b2]);
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
            data.push(vec![b0]);
        } else if fits(&matches, "mmxx") {
            tape1.push(0b11);
            tape2.push(0b01);
            index.push((2 * set + near) as u32);
            data.push(vec![b0, b1]);
        } else {
            tape1.push(0b01);
            data.push(word.to_le_bytes().to_vec());
        }
        if insert {
            dictionary[set][next_way[set]] = word;
            next_way[set] = 1 - next_way[set];
        }
    }
    let mut object = model_pbpm_data(&data, alignment);
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

fn check_lzo(kind: &str, page: &Page) {
    let object = compress("lzo", page).expect("LZO takes any page");
    let mut back = [0; PAGE_SIZE];
    assert_eq!(lzokay::decompress::decompress(&object, &mut back), Ok(PAGE_SIZE), "{kind}");
    assert!(back == *page, "{kind}: lzokay read another page");
    let mut back = [0; PAGE_SIZE];
    assert_eq!(lzo::decompress_into(&object, &mut back).ok(), Some(PAGE_SIZE), "{kind}");
    assert!(back == *page, "{kind}: lzo read another page");

    // An encoder that looks for the best copies and writes every kind of instruction.
    let object = lzokay::compress::compress(page).expect("lzokay takes any page");
    let back = decompress(Encoding::Lzo, &object);
    assert!(back.as_deref() == Some(page), "{kind}: written by lzokay");
}

/// WLZ read from its description, section by section.
fn read_wlz(object: &[u8]) -> Vec<u32> {
    let mut rest = object;
    let mut bytes = |count: usize| {
        let (these, others) = rest.split_at(count);
        rest = others;
        these
    };
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte));
    let numbers = |bytes: &[u8], size: usize| bytes.chunks(size).map(number).collect::<Vec<_>>();
    let nibbles = |bytes: &[u8]| bytes.iter().flat_map(|b| [b & 15, b >> 4]).collect::<Vec<_>>();
    let header = number(bytes(4)) as usize;
    let (literal_count, token_count) = (header % 2048, header / 2048);
    let slots = [number(bytes(2)), number(bytes(2))]
        .map(|mask| (0..16).filter(|slot| mask >> slot & 1 == 1).collect::<Vec<usize>>());
    let classes: Vec<u8> = bytes(2 * literal_count.div_ceil(8))
        .chunks(2)
        .flat_map(|pair| (0..8).map(move |bit| pair[0] >> bit & 1 | (pair[1] >> bit & 1) << 1))
        .take(literal_count)
        .collect();
    let of_class = |wanted: u8| classes.iter().filter(|&&class| class == wanted).count();
    let key_count = slots[0].len();
    let low = numbers(bytes(2 * key_count), 2);
    let high = nibbles(bytes(key_count.div_ceil(2)));
    let half_keys = numbers(bytes(2 * slots[1].len()), 2);
    let mut partials = numbers(bytes(2 * of_class(1)), 2).into_iter();
    let mut halves = numbers(bytes(2 * of_class(2)), 2).into_iter();
    let mut half_slots = nibbles(bytes(of_class(2).div_ceil(2))).into_iter();
    let mut misses = numbers(bytes(4 * of_class(3)), 4).into_iter();
    let flags = bytes(token_count.div_ceil(8));
    let nth_of = |slots: &[usize], slot: usize| slots.iter().position(|&s| s == slot).unwrap();
    let mut literals = classes.iter().map(|class| match class {
        0 => 0,
        1 => {
            let value = partials.next().unwrap();
            let nth = nth_of(&slots[0], (value >> 12) as usize);
            (u32::from(high[nth]) << 16 | low[nth]) << 12 | value & 0xfff
        }
        2 => {
            let nth = nth_of(&slots[1], usize::from(half_slots.next().unwrap()));
            half_keys[nth] << 16 | halves.next().unwrap()
        }
        _ => misses.next().unwrap(),
    });
    let mut words = vec![];
    let mut distance = 1;
    let mut tokens = rest.iter().map(|&byte| usize::from(byte));
    for nth in 0..token_count {
        let mut head = tokens.next().unwrap();
        let mut most = 31;
        let mut length = head >> 3;
        if flags[nth / 8] >> (nth % 8) & 1 == 1 {
            head |= tokens.next().unwrap() << 8;
            distance = head >> 6;
            (length, most) = (head >> 3 & 7, 7);
        }
        let mut extended = |field: usize, most: usize| {
            let mut sum = field;
            let mut goes_on = field == most;
            while goes_on {
                let byte = tokens.next().unwrap();
                sum += byte;
                goes_on = byte == 255;
            }
            sum
        };
        length = extended(length, most) + 2;
        let run = extended(head & 7, 7);
        words.extend(literals.by_ref().take(run));
        for _ in 0..length {
            words.push(words[words.len() - distance]);
        }
    }
    words.extend(literals);
    words
}

/// LZRW1-A, from its description, with a table of every three bytes' last place.
fn model_lzrw(page: &Page) -> Vec<u8> {
    let hash = |at: usize| {
        let [p0, p1, p2] = [0, 1, 2].map(|nth| u32::from(page[at + nth]));
        (40543 * ((((p0 << 4) ^ p1) << 4) ^ p2)) >> 4 & 0xfff
    };
    let mut last = std::collections::HashMap::new();
    let mut items = vec![];
    let mut at = 0;
    while at < PAGE_SIZE {
        let mut item = vec![page[at]];
        let mut length = 1;
        if at + 18 <= PAGE_SIZE {
            // A place never seen is taken for the first.
            let from = last.insert(hash(at), at).unwrap_or(0);
            let same = (0..18).take_while(|nth| page[from + nth] == page[at + nth]).count();
            if from < at && same >= 3 {
                let distance = at - from;
                item = vec![(distance >> 8 << 4 | (same - 3)) as u8, distance as u8];
                length = same;
            }
        }
        items.push(item);
        at += length;
    }
    let mut object = vec![0];
    for group in items.chunks(16) {
        let control = (0..).zip(group).map(|(nth, item)| (item.len() as u16 - 1) << nth);
        object.extend(control.sum::<u16>().to_le_bytes());
        object.extend(group.concat());
    }
    if object.len() > PAGE_SIZE { [&[1][..], page].concat() } else { object }
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

    check_lzo(kind, page);
    let object = compress("wlz", page).expect("WLZ takes any page");
    assert_eq!(read_wlz(&object), words_of(page), "{kind}");
    assert_eq!(compress("lzrw1-a", page).as_ref(), Some(&model_lzrw(page)), "{kind}");
    let wkdm = model_wk(page, Slots([0; 16]));
    assert_eq!(compress("wkdm", page).as_ref(), Some(&wkdm), "{kind}");
    let wk4x4 = model_wk(page, Sets([(); 4].map(|()| vec![0; 4])));
    assert_eq!(compress("wk4x4", page).as_ref(), Some(&wk4x4), "{kind}");
    for &alignment in Alignment::ALL {
        let object = compress(Codec::Pbpm(alignment).name(), page);
        assert_eq!(object.as_ref(), Some(&model_pbpm(page, alignment)), "{kind}, {alignment:?}");
    }
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
