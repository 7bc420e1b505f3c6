//! The kernels of every backend against the plain ones, on pages of any number of words of each
//! kind.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::data::ROOM;
use super::*;
use crate::PAGE_SIZE;
use crate::numbers::Numbers;

#[test]
fn the_table_follows_its_rule() {
    assert_eq!(SET, crate::bits::shuffled_runs(8));
}

/// Of pages.
const TRIES: usize = if cfg!(miri) { 1 } else { 300 };

/// Numbers of words that ask the dictionary; fewer for Miri.
fn counts() -> impl Iterator<Item = usize> {
    let all = (0..=140).chain([500, 512]).chain(PAGE_WORDS - 70..=PAGE_WORDS);
    all.filter(|count| !cfg!(miri) || [0, 1, 77, PAGE_WORDS].contains(count))
}

/// A word that asks. Upper halves and third bytes are few, so all sorts of matches are there; of
/// one upper half in four all is of the set of zero.
fn asking(numbers: &mut Numbers, halves: usize) -> u32 {
    let half = numbers.below(halves) as u32;
    let upper = if half.is_multiple_of(4) { half << 8 } else { half * 0x0123 };
    let low = [numbers.below(2), numbers.below(256), 256 * numbers.below(3)][numbers.below(3)];
    let word = upper << 16 | low as u32 | 0x5500;
    match numbers.below(8) {
        0 => numbers.next() as u32 | 0x100,
        1 => word & 0xffff,
        _ => word,
    }
}

fn not_asking(numbers: &mut Numbers) -> u32 {
    let bits = numbers.next() as u32;
    [0, bits & 0xff, bits & !ZXZX_ZEROS][numbers.below(3)]
}

/// A page of which `count` words ask, anywhere.
fn page(numbers: &mut Numbers, count: usize) -> Page {
    let halves = [1, 2, 4, 9, 40][numbers.below(5)];
    let mut page = [0; PAGE_SIZE];
    let mut left = count;
    for (place, word) in page.as_chunks_mut().0.iter_mut().enumerate() {
        let asks = numbers.below(PAGE_WORDS - place) < left;
        left -= usize::from(asks);
        let value = if asks { asking(numbers, halves) } else { not_asking(numbers) };
        *word = value.to_le_bytes();
    }
    page
}

/// What is on the tapes.
#[derive(Clone, PartialEq)]
struct Written {
    first: Vec<u8>,
    second: Vec<u8>,
    indices: Vec<u8>,
    data: Vec<u8>,
}

/// Working memory with anything in it.
fn scratch() -> Box<[u8; SCRATCH_BYTES]> {
    Box::new([0xa5; SCRATCH_BYTES])
}

fn write(kernels: &Kernels, page: &Page) -> Written {
    let mut scratch = scratch();
    let mut tapes = Tapes::carve(&mut Carver(&mut *scratch)).expect("room for tapes");
    let mut room = [0xa5; ROOM];
    let mut data = Unaligned::empty(&mut room);
    let lengths = (kernels.write)(page, &mut tapes, &mut data);
    let length = data.len();
    Written {
        first: tapes.first[..PAGE_WORDS].to_vec(),
        second: tapes.second[..lengths.second].to_vec(),
        indices: tapes.indices[..lengths.indices].to_vec(),
        data: room[..length].to_vec(),
    }
}

/// The page, if all indices are of the sets of their words.
fn read(kernels: &Kernels, written: &Written) -> Option<Page> {
    let mut scratch = scratch();
    let mut tapes = Tapes::carve(&mut Carver(&mut *scratch)).expect("room for tapes");
    tapes.first[..PAGE_WORDS].copy_from_slice(&written.first);
    tapes.second[..written.second.len()].copy_from_slice(&written.second);
    tapes.indices[..written.indices.len()].copy_from_slice(&written.indices);
    let mut room = [0xa5; ROOM];
    let mut data = Unaligned::read(&mut room, &written.data, [0; 3]).expect("any data");
    let mut page = [0xa5; PAGE_SIZE];
    (kernels.read)(&mut tapes, &mut data, &mut page).then_some(page)
}

fn others() -> impl Iterator<Item = Backend> {
    Backend::available().filter(|backend| *backend != Backend::SCALAR)
}

#[track_caller]
fn agree(nth: usize, page: &Page) {
    let written = write(&SCALAR, page);
    assert!(read(&SCALAR, &written) == Some(*page), "{nth}");
    for backend in others() {
        let name = backend.name();
        assert!(write(backend.pbpm(), page) == written, "{nth} by {name}");
        assert!(read(backend.pbpm(), &written) == Some(*page), "{nth} by {name}");
    }
}

#[test]
fn any_number_of_words_asks() {
    let mut numbers = Numbers(1);
    for count in counts() {
        agree(count, &page(&mut numbers, count));
    }
}

#[test]
fn all_words_are_of_one_set() {
    // Two of them for Miri.
    for set in (0..SETS as u8).filter(|set| !cfg!(miri) || set % 4 == 1) {
        let third = SET.iter().rposition(|&other| other == set).expect("each is in the table");
        let mut page = [0; PAGE_SIZE];
        let mut numbers = Numbers(u64::from(set) + 1);
        for word in page.as_chunks_mut().0 {
            let upper = (numbers.below(3) << 24 | third << 16) as u32;
            *word = (upper | 0x100 | numbers.below(4) as u32).to_le_bytes();
        }
        agree(usize::from(set), &page);
    }
}

/// Whatever the codes and indices are: words are made of entries of other sets, and enter twice.
#[test]
fn other_tapes_are_read_alike() {
    let mut numbers = Numbers(2);
    let (mut pages, mut refused) = (0, 0);
    for nth in 0..TRIES {
        let count = numbers.below(PAGE_WORDS + 1);
        let mut written = write(&SCALAR, &page(&mut numbers, count));
        // Much damage, or little.
        let share = [1, 100, 1000][numbers.below(3)];
        for index in &mut written.indices {
            if numbers.below(share) == 0 {
                *index = numbers.below(2 * SETS) as u8;
            }
        }
        // mmmx and zzzx have as much data each, mmxx and zxzx.
        let indexed = |second: u8| matches!(second << 2 | LONG, MMXX | MMMX);
        for second in &mut written.second {
            if indexed(*second) && numbers.below(share) == 0 {
                *second ^= 0b11 & (MMXX ^ ZXZX) >> 2;
            }
        }
        written.data.resize(4 * PAGE_WORDS, 0x5a);
        written.indices.resize(PAGE_WORDS, 3);
        let expected = read(&SCALAR, &written);
        for backend in others() {
            let name = backend.name();
            assert!(read(backend.pbpm(), &written) == expected, "{nth} by {name}");
        }
        pages += usize::from(expected.is_some());
        refused += usize::from(expected.is_none());
    }
    assert!(cfg!(miri) || (pages > 20 && refused > 20), "{pages} pages, {refused} refused");
}

#[test]
fn codes_are_packed_alike() {
    let mut numbers = Numbers(3);
    for words in 0..=if cfg!(miri) { 3 } else { 64 } {
        let (twos, fours) = (16 * words, 8 * words);
        let codes: Vec<u8> = (0..twos).map(|_| numbers.below(16) as u8).collect();
        let low: Vec<u8> = codes.iter().map(|code| code & 3).collect();
        let mut packed = [vec![0; 4 * words], vec![0; 4 * words]];
        (SCALAR_CODES.pack_twos)(&low, &mut packed[0]);
        (SCALAR_CODES.pack_fours)(&codes[..fours], &mut packed[1]);
        for backend in Backend::available() {
            let (name, kernels) = (backend.name(), backend.pbpm().codes);
            let mut other = [vec![0; 4 * words], vec![0; 4 * words]];
            (kernels.pack_twos)(&low, &mut other[0]);
            (kernels.pack_fours)(&codes[..fours], &mut other[1]);
            assert!(other == packed, "{words} by {name}");
            let mut back = [vec![0; twos], vec![0; fours]];
            (kernels.unpack_twos)(&packed[0], &mut back[0]);
            (kernels.unpack_fours)(&packed[1], &mut back[1]);
            assert!(back[0] == low && back[1] == codes[..fours], "{words} by {name}");
        }
    }
}
