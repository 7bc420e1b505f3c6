//! The codecs against independent ones: other people's decoders and encoders for LZ4, LZO and zstd,
//! and for the others slow models written from `docs/codecs.md` and the PBPM paper, one symbol and
//! one bit at a time. What the models have of the formats, tables too, they have from there: they
//! share nothing with the crate, on purpose.

mod corpus;

use corpus::{any_page, pages};
use proptest::prelude::*;
use ramfold_codec::pbpm::Alignment;
use ramfold_codec::{
    Codec, Compressor, Decompressor, Encoding, PAGE_SIZE, Page, compress_scratch_bytes,
    decompress_scratch_bytes, page_lz, pbpm, wkdm,
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

/// What a word finds in a dictionary, which then takes it in: the slot and the entry there. For a
/// word that nothing resembles any entry will do.
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

/// WKv read from its description, section by section.
fn read_wkv(object: &[u8]) -> Vec<u32> {
    let mut rest = object;
    let mut bytes = |count: usize| {
        let (these, others) = rest.split_at(count);
        rest = others;
        these
    };
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
    let numbers = |bytes: &[u8], size: usize| bytes.chunks(size).map(number).collect::<Vec<_>>();
    let nibbles = |bytes: &[u8]| bytes.iter().flat_map(|b| [b & 15, b >> 4]).collect::<Vec<_>>();
    let mut header = number(bytes(8));
    let mut field = |bits: u32| {
        let value = header % (1 << bits);
        header >>= bits;
        value as usize
    };
    let (literal_count, value_count, miss_count) = (field(11), field(11), field(11));
    let (stride_count, levels, slots) = (field(3), field(2), field(16));
    assert_eq!(header, 0);
    let slots: Vec<usize> = (0..16).filter(|slot| slots >> slot & 1 == 1).collect();
    let vectors = number(bytes(8));
    let strides: Vec<usize> = bytes(stride_count).iter().map(|n| 16 + 2 * *n as usize).collect();
    let choices = bytes(if stride_count > 1 { 16 } else { 0 });
    let masks = numbers(bytes(2 * vectors.count_ones() as usize), 2);
    let mut plane = |count: usize| {
        let bits = bytes(count.div_ceil(8)).iter().flat_map(|b| (0..8).map(move |n| b >> n & 1));
        bits.take(count).collect::<Vec<_>>()
    };
    let value_plane = plane(literal_count);
    let other_plane = plane(literal_count);
    let low = numbers(bytes(2 * slots.len()), 2);
    let high = nibbles(bytes(slots.len().div_ceil(2)));
    let mut values = numbers(bytes(2 * value_count), 2).into_iter();
    let coded = |codes: &[u8], frequent: &[u8], escapes: &[u8]| {
        let mut escapes = escapes.iter();
        let byte = |code| match code {
            15 => *escapes.next().unwrap(),
            code => frequent[usize::from(code)],
        };
        let bytes: Vec<u8> = codes.iter().copied().map(byte).collect();
        assert_eq!(escapes.next(), None);
        bytes
    };
    let misses = match levels {
        0 => rest.to_vec(),
        1 => {
            let frequent = bytes(15);
            let codes = nibbles(bytes(2 * miss_count));
            coded(&codes, frequent, rest)
        }
        _ => {
            let (frequent, next_frequent) = (bytes(15), bytes(15));
            let escaped = number(bytes(2)) as usize;
            let codes = nibbles(bytes(2 * miss_count));
            let next_codes = nibbles(bytes(escaped.div_ceil(2)));
            let escapes = coded(&next_codes[..escaped], next_frequent, rest);
            coded(&codes, frequent, &escapes)
        }
    };
    assert_eq!(misses.len(), 4 * miss_count);
    if literal_count == 0 && miss_count == 1024 {
        return numbers(&misses, 4).into_iter().map(|word| word as u32).collect();
    }
    let mut misses = numbers(&misses, 4).into_iter();

    let mut words: Vec<u64> = vec![];
    let mut masks = masks.into_iter();
    let mut classes = value_plane.into_iter().zip(other_plane);
    for vector in 0..64 {
        let mask = if vectors >> vector & 1 == 1 { masks.next().unwrap() } else { 0 };
        let choice = choices.get(vector / 4).map_or(0, |byte| byte >> (2 * (vector % 4)) & 3);
        let stride = strides.get(usize::from(choice)).filter(|&&stride| stride <= 16 * vector);
        for lane in 0..16 {
            let predicted = stride.map_or(0, |stride| words[words.len() - stride]);
            words.push(match mask >> lane & 1 {
                0 => predicted,
                _ => match classes.next().unwrap() {
                    (0, 0) => 0,
                    (0, _) => misses.next().unwrap(),
                    (_, 0) => {
                        let value = values.next().unwrap();
                        let slot = (value >> 12) as usize;
                        let nth = slots.iter().position(|&s| s == slot).unwrap();
                        (u64::from(high[nth]) << 16 | low[nth]) << 12 | value & 0xfff
                    }
                    _ => predicted >> 16 << 16 | values.next().unwrap(),
                },
            });
        }
    }
    assert_eq!((classes.next(), values.next(), misses.next()), (None, None, None));
    words.into_iter().map(|word| word as u32).collect()
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
    for name in ["wkv", "wkv-words"] {
        let object = compress(name, page).expect("WKv takes any page");
        assert_eq!(read_wkv(&object), words_of(page), "{kind}, {name}");
    }
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
    for (kind, page) in pages(31, 5) {
        check(kind, &page);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn generated_pages(page in any_page()) {
        check("generated", &page);
    }
}

/// The next bits of a stream, one at a time.
struct Reader<'a> {
    bytes: Box<dyn Iterator<Item = &'a u8> + 'a>,
    byte: u8,
    left: u32,
    taken: usize,
}

impl<'a> Reader<'a> {
    fn new(bytes: impl Iterator<Item = &'a u8> + 'a) -> Reader<'a> {
        Reader { bytes: Box::new(bytes), byte: 0, left: 0, taken: 0 }
    }

    fn bit(&mut self) -> usize {
        if self.left == 0 {
            self.byte = *self.bytes.next().expect("the stream goes on");
            self.left = 8;
            self.taken += 1;
        }
        self.left -= 1;
        let bit = self.byte & 1;
        self.byte >>= 1;
        usize::from(bit)
    }

    fn number(&mut self, bits: u32) -> usize {
        (0..bits).map(|nth| self.bit() << nth).sum()
    }

    /// A symbol of the canonical code with these lengths, by its definition: after so many bits,
    /// the words of that length are those that follow all shorter ones.
    fn symbol(&mut self, lengths: &[u8]) -> usize {
        let (mut word, mut first) = (0, 0);
        for length in 1..=15 {
            word = word << 1 | self.bit();
            let symbols: Vec<usize> =
                (0..lengths.len()).filter(|&symbol| lengths[symbol] == length).collect();
            if word - first < symbols.len() {
                return symbols[word - first];
            }
            first = (first + symbols.len()) << 1;
        }
        panic!("no word");
    }
}

/// The format of the page LZ as docs/codecs.md has it, read in the plainest way.
fn page_lz_by_the_book(object: &[u8]) -> Vec<u8> {
    let mut header = Reader::new(object.iter());
    let set = &page_lz::training::SETS[header.number(3)];
    let own = header.bit() == 1;
    let (sequences, literals) = (header.number(11), header.number(13));
    let streams = if literals < 128 { 2 } else { 4 };
    let first = header.number(if streams == 2 { 8 } else { 12 });
    let second = if streams == 2 { 0 } else { header.number(12) };
    let third = header.number(12);
    let mut at = header.taken;

    let mut lengths = set.literals.to_vec();
    if own {
        let mut description = Reader::new(object[at..].iter());
        lengths.clear();
        while lengths.len() < 256 {
            match description.number(4) {
                11 => lengths.extend(vec![0; 2 + description.number(4)]),
                12 => lengths.extend(vec![0; 18 + description.number(8)]),
                length => lengths.push(length as u8),
            }
        }
        at += description.taken;
    }

    let part = literals.div_ceil(streams).next_multiple_of(5);
    let mut bytes = Vec::new();
    for (pair, len) in [first, second][..streams / 2].iter().enumerate() {
        let region = &object[at..at + len];
        let two = [Reader::new(region.iter()), Reader::new(region.iter().rev())];
        let mut taken = 0;
        for (nth, mut stream) in two.into_iter().enumerate() {
            let start = literals.min((2 * pair + nth) * part);
            for _ in start..literals.min(start + part) {
                bytes.push(stream.symbol(&lengths) as u8);
            }
            taken += stream.taken;
        }
        assert_eq!(taken, *len);
        at += len;
    }

    let middle = at + third;
    let mut tokens = Reader::new(object[at..middle].iter());
    let mut distances = Reader::new(object[at..middle].iter().rev());
    let mut extra = Reader::new(object[middle..].iter());
    let runs = [
        (0, 0),
        (1, 0),
        (2, 0),
        (3, 0),
        (4, 0),
        (5, 0),
        (6, 1),
        (8, 2),
        (12, 3),
        (20, 4),
        (36, 12),
    ];
    let copies: Vec<(usize, u32)> = (3..14)
        .map(|length| (length, 0))
        .chain([(14, 1), (16, 2), (20, 3), (28, 4), (44, 5), (76, 6), (140, 7), (268, 12)])
        .collect();
    let mut recent = vec![4, 16, 8];
    let mut page = Vec::new();
    let mut literal = bytes.iter();
    for _ in 0..sequences {
        let token = tokens.symbol(&set.tokens);
        let distance = match distances.symbol(&set.distances) {
            nth @ 0..3 => recent[recent.len() - 1 - nth],
            symbol @ 3..12 => ((1 << (symbol - 3)) + extra.number(symbol as u32 - 3)) * 8,
            symbol => (1 << (symbol - 12)) + extra.number(symbol as u32 - 12),
        };
        recent.push(distance);
        let (base, bits) = runs[token / copies.len()];
        let run = base + extra.number(bits);
        let (base, bits) = copies[token % copies.len()];
        let length = base + extra.number(bits);
        page.extend(literal.by_ref().take(run));
        for _ in 0..length {
            page.push(page[page.len() - distance]);
        }
    }
    page.extend(literal);
    assert_eq!(tokens.taken + distances.taken, third);
    assert_eq!(extra.taken, object.len() - middle);
    page
}

#[test]
fn page_lz_is_as_documented() {
    for name in ["page-lz", "page-lz-fast"] {
        let mut with_own_code = 0;
        for (kind, page) in pages(7, 6) {
            let object = compress(name, &page).expect("it takes any page");
            with_own_code += usize::from(object[0] & 8 != 0);
            assert!(page_lz_by_the_book(&object) == page, "{kind}");
        }
        assert!(with_own_code > 0);
    }
}
