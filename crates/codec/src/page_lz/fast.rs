//! Which copies a page is written as, found in a fifth of the time that [`search`](super::search)
//! takes: the first that comes, of the remembered distances and the last place with the same hash.
//! Objects are 2 to 12 % larger for it.

use super::search::{HASH_BITS, Tables};
use super::sequence::{SEQUENCES_MAX, Sequence, Sequences};
use super::symbols::Recent;
use crate::lz::{common_length_by, hash_of_five, u32_at};
use crate::{PAGE_SIZE, Page};

/// The step grows by one each time this many positions (a power of two) had no copy.
const SKIP_BITS: u32 = 5;
/// A copy of so many bytes from a remembered distance is not weighed against another.
const LONG: usize = 16;
/// Shorter copies from farther away cost about as many bits as literals.
const FAR_MIN: usize = 5;
/// Of the bytes copied, one in so many is entered in the table.
const ENTERED: usize = 4;

/// The last position where a copy is looked for: eight bytes are read there.
const LAST: usize = PAGE_SIZE - 8;

/// Lists copies of `page` in `found` and returns their number.
pub(super) fn search(page: &Page, tables: &mut Tables<'_>, found: &mut Sequences) -> usize {
    tables.four.fill([0; 2]);
    let mut recent = Recent::at_first();
    let mut count = 0;
    let mut anchor = 0;
    let mut tries = 1 << SKIP_BITS;
    let mut at = 0;
    while at <= LAST && count < SEQUENCES_MAX {
        let (distance, mut length) = copy_at(page, tables, recent, at);
        if length == 0 {
            at += tries >> SKIP_BITS;
            tries += 1;
            continue;
        }
        tries = 1 << SKIP_BITS;
        while at > anchor && at > distance && page[at - 1] == page[at - distance - 1] {
            at -= 1;
            length += 1;
        }
        recent.used(recent.symbol(distance), distance);
        found[count] = Sequence { run: at - anchor, length, distance }.pack();
        count += 1;
        anchor = at + length;
        for inside in (at + 1..anchor.min(LAST) - 1).step_by(ENTERED) {
            tables.four[hash_of_five(page, inside, HASH_BITS)] = (inside as u16).to_le_bytes();
        }
        at = anchor;
    }
    count
}

/// Distance and length of a copy at `at`, which is entered in the table; a length of 0 where there
/// is none.
#[inline(always)]
fn copy_at(page: &Page, tables: &mut Tables<'_>, recent: Recent, at: usize) -> (usize, usize) {
    let word = u32_at(page, at);
    let four = &mut tables.four[hash_of_five(page, at, HASH_BITS)];
    let position = usize::from(u16::from_le_bytes(*four));
    *four = (at as u16).to_le_bytes();
    let mut copy = (0, 0);
    for distance in recent.all() {
        // Three bytes alike are worth a copy, where its distance costs next to nothing.
        if distance <= at && (word ^ u32_at(page, at - distance)) << 8 == 0 {
            let length = common_length_by(tables.compare, page, at - distance, at, PAGE_SIZE);
            if length > copy.1 {
                copy = (distance, length);
            }
        }
    }
    if copy.1 < LONG && position < at && u32_at(page, position) == word {
        let length = common_length_by(tables.compare, page, position, at, PAGE_SIZE);
        if length >= FAR_MIN.max(copy.1 + 2) {
            copy = (at - position, length);
        }
    }
    copy
}
