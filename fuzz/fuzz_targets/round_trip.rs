#![no_main]

use libfuzzer_sys::fuzz_target;
use ramfold_codec::{Codec, PAGE_SIZE, same_filled};
use ramfold_fuzz::{comes_back, page_from};

const NAMES: [&str; 18] = [
    "wkv",
    "wkv-words",
    "page-lz",
    "page-lz-fast",
    "lz4",
    "lzo",
    "lzrw1-a",
    "wkdm",
    "wk4x4",
    "pbpm",
    "pbpm-separate",
    "pbpm-single",
    "zstd-1",
    "zstd-3",
    "zstd-6",
    "zstd-9",
    "zstd-12",
    "zstd-15",
];

// The first byte chooses the codec and whether room is short, the second how short; the rest is a
// page.
fuzz_target!(|data: &[u8]| {
    let [choice, room, bytes @ ..] = data else { return };
    let codec =
        Codec::from_name(NAMES[usize::from(choice / 2) % NAMES.len()]).expect("a codec's name");
    let room = if choice & 1 == 0 { 2 * PAGE_SIZE } else { 16 * usize::from(*room) };
    let page = page_from(bytes);
    let is_filled = page.chunks(8).all(|word| *word == page[..8]);
    assert_eq!(same_filled(&page).is_some(), is_filled);
    comes_back(codec, &page, room);
});
