//! Finding copies.

use super::token::{copy_run, write_token};
use super::{
    ENTRIES, Flags, HASH_BITS, Literals, NEW_MIN, TOKENS_MAX, TokenBytes, hash_of, word_at,
};
use crate::lz::{Output, Table, bytes_at, common_length};
use crate::{PAGE_SIZE, PAGE_WORDS, Page};

/// What remains of a page without its copies.
pub(super) struct Parsed {
    pub literal_count: usize,
    pub token_bytes: usize,
    pub token_count: usize,
    /// A bit for each token: does it name a new distance?
    pub flags: Flags,
}

/// Two words at once.
#[inline]
fn pair_at(page: &Page, place: usize) -> [u8; 8] {
    bytes_at(page, 4 * place)
}

/// Finds copies; the words outside of them go to `literals`, the copies to `tokens`. `None`
/// never happens: it stands for a table or tokens that do not fit their memory.
#[inline]
pub(super) fn parse(
    page: &Page,
    table: &mut [u8; 2 * ENTRIES],
    literals: &mut Literals,
    tokens: &mut TokenBytes,
) -> Option<Parsed> {
    let words = page.as_chunks::<4>().0;
    let mut table = Table::<ENTRIES>::clear(table)?;
    let mut out = Output::new(tokens);
    let mut flags: Flags = [0; TOKENS_MAX / 8];
    let (mut token_count, mut literal_count) = (0usize, 0usize);
    let (mut anchor, mut at, mut distance) = (0, 1, 1);
    while at < PAGE_WORDS - 1 {
        let pair = pair_at(page, at);
        let is_new = pair_at(page, at - distance) != pair;
        if is_new {
            let from = table.swap(hash_of(word_at(page, at), HASH_BITS), at);
            let same = pair_at(page, from) == pair
                && at + NEW_MIN <= PAGE_WORDS
                && words[at + 2] == words[from + 2];
            if !same {
                at += 1;
                continue;
            }
            distance = at - from;
        }
        let length = common_length(page, 4 * (at - distance), 4 * at, PAGE_SIZE) / 4;
        let (run, end) = (at - anchor, at + length);
        copy_run(literals, literal_count, words, anchor, run);
        literal_count += run;
        write_token(&mut out, run, length, is_new.then_some(distance)).ok()?;
        flags[token_count / 8 % (TOKENS_MAX / 8)] |= u8::from(is_new) << (token_count % 8);
        token_count += 1;
        // The places in a copy are known by those they were copied from, but for its ends.
        for place in [at + 1, end - 2, end - 1] {
            if place < PAGE_WORDS - 1 {
                table.swap(hash_of(word_at(page, place), HASH_BITS), place);
            }
        }
        anchor = end;
        at = end;
    }
    let run = PAGE_WORDS - anchor;
    copy_run(literals, literal_count, words, anchor, run);
    Some(Parsed { literal_count: literal_count + run, token_bytes: out.len(), token_count, flags })
}
