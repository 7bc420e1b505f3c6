//! What holds for every codec, one module of tests for each.

#[macro_use]
mod corpus;

use corpus::{Numbers, any_page, page_of, pages};
use proptest::prelude::*;
use ramfold_codec::{
    Backend, Codec, Compressor, DecodeError, Decompressor, DoesNotFit, Encoding,
    MAX_COMPRESS_SCRATCH_BYTES, MAX_DECOMPRESS_SCRATCH_BYTES, PAGE_SIZE, Page, ScratchError,
    compress_scratch_bytes, decompress_scratch_bytes,
};

/// More than any codec here writes for any page: an unlimited room.
const ROOMY: usize = 2 * PAGE_SIZE;

fn codec(name: &str) -> Codec {
    name.parse().expect("a codec's name")
}

fn compress(name: &str, page: &Page, room: usize) -> Result<Vec<u8>, DoesNotFit> {
    let mut scratch = vec![0; compress_scratch_bytes(codec(name))];
    let mut compressor = Compressor::new(codec(name), &mut scratch).expect("enough scratch");
    let mut out = vec![0; room];
    let length = compressor.compress(page, &mut out)?;
    out.truncate(length);
    Ok(out)
}

fn decompress(encoding: Encoding, object: &[u8]) -> Result<Box<Page>, DecodeError> {
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = Box::new([0x5a; PAGE_SIZE]);
    decompressor.decompress(encoding, object, &mut page)?;
    Ok(page)
}

/// Pages of every kind, compressed one after another by the same compressor, as the store does.
fn each_page(name: &str, check: impl FnMut(&str, &Page, Result<&[u8], DoesNotFit>)) {
    each_page_with(name, Backend::best(), check);
}

fn each_page_with(
    name: &str,
    backend: Backend,
    mut check: impl FnMut(&str, &Page, Result<&[u8], DoesNotFit>),
) {
    let mut scratch = vec![0; compress_scratch_bytes(codec(name))];
    let compressor = Compressor::new(codec(name), &mut scratch).expect("enough scratch");
    let mut compressor = compressor.with_backend(backend);
    let mut out = [0; ROOMY];
    for (kind, page) in pages(7, PAGES_A_KIND) {
        let object = compressor.compress(&page, &mut out).map(|length| &out[..length]);
        check(kind, &page, object);
    }
}

const PAGES_A_KIND: usize = 5;

fn pages_come_back(name: &str) {
    let encoding = codec(name).encoding();
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut kept = 0;
    each_page(name, |kind, page, object| {
        // zstd refuses pages that do not compress; the others take any page, given the room.
        let Ok(object) = object else {
            assert_eq!(encoding, Encoding::Zstd, "{kind}");
            return;
        };
        kept += 1;
        let mut back = [0xa5; PAGE_SIZE];
        decompressor.decompress(encoding, object, &mut back).expect(kind);
        assert!(back == *page, "{kind} came back changed");
    });
    assert!(kept > 100, "{kept} pages compressed");
}

fn room_is_exact(name: &str) {
    let mut scratch = vec![0; compress_scratch_bytes(codec(name))];
    let mut compressor = Compressor::new(codec(name), &mut scratch).expect("enough scratch");
    let mut out = [0; ROOMY];
    each_page(name, |kind, page, object| {
        let Ok(object) = object else { return };
        assert!(!object.is_empty(), "{kind}: an entry of length 0 would need a meaning");
        let length = compressor.compress(page, &mut out[..object.len()]).expect(kind);
        assert_eq!(&out[..length], object, "{kind}");
        for room in [object.len() - 1, object.len() / 2, 0] {
            assert_eq!(compressor.compress(page, &mut out[..room]), Err(DoesNotFit), "{kind}");
        }
    });
}

fn objects_depend_on_the_page_alone(name: &str) {
    // Scratch full of another pattern, at an odd address, far longer than needed; other pages
    // before each; and more of them than the 128 after which libzstd looks for memory to give back.
    let mut scratch = vec![0xc3; 4 * compress_scratch_bytes(codec(name)) + 1];
    let mut compressor = Compressor::new(codec(name), &mut scratch[1..]).expect("enough scratch");
    let mut out = [0; ROOMY];
    let before = pages(8, 1);
    each_page(name, |kind, page, object| {
        for (_, other) in &before[..2] {
            let _ = compressor.compress(other, &mut out);
        }
        let again = compressor.compress(page, &mut out).map(|length| &out[..length]);
        assert_eq!(again, object, "{kind}");
    });
}

/// Vector code writes what scalar code writes, and reads what it reads; also of damaged objects.
fn backends_agree(name: &str) {
    let encoding = codec(name).encoding();
    let mut numbers = Numbers::new(17);
    for backend in Backend::available() {
        let mut scratch = vec![0x77; compress_scratch_bytes(codec(name))];
        let compressor = Compressor::new(codec(name), &mut scratch).expect("enough scratch");
        let mut compressor = compressor.with_backend(backend);
        let mut scratch = vec![0x77; decompress_scratch_bytes(encoding)];
        let decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
        let mut decompressor = decompressor.with_backend(backend);
        let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
        let scalar = Decompressor::new(&mut scratch).expect("scratch is accepted");
        let mut scalar = scalar.with_backend(Backend::SCALAR);
        let mut out = [0; ROOMY];
        let (mut page_of, mut page_of_scalar) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        each_page_with(name, Backend::SCALAR, |kind, page, object| {
            let kind = format!("{kind} by {}", backend.name());
            let same = compressor.compress(page, &mut out).map(|length| &out[..length]);
            assert_eq!(same, object, "{kind}");
            let Ok(object) = object else { return };
            assert_eq!(decompressor.decompress(encoding, object, &mut page_of), Ok(()), "{kind}");
            assert!(page_of == *page, "{kind}");
            for _ in 0..20 {
                let mut damaged = object.to_vec();
                let at = numbers.below(damaged.len());
                damaged[at] ^= 1 << numbers.below(8);
                let ended = decompressor.decompress(encoding, &damaged, &mut page_of);
                let expected = scalar.decompress(encoding, &damaged, &mut page_of_scalar);
                assert_eq!(ended, expected, "{kind}");
                assert!(ended.is_err() || page_of == page_of_scalar, "{kind}");
            }
        });
    }
}

/// As much as Miri gets through (`scripts/miri`): two pages, each written with one set of
/// instructions and read with another, and damaged objects of them.
fn a_few_pages(name: &str) {
    let encoding = codec(name).encoding();
    // Words of many kinds, text, both again with changes, and a run up to the end.
    let mut mixed = page_of("a heap", 1);
    mixed[1000..2000].copy_from_slice(&page_of("text", 2)[..1000]);
    mixed.copy_within(..2000, 2000);
    mixed[4000..].fill(0);
    mixed[2000..].iter_mut().step_by(97).for_each(|byte| *byte ^= 1);
    let by_one_and_another =
        [(Backend::SCALAR, Backend::best()), (Backend::best(), Backend::SCALAR)];
    let mut numbers = Numbers::new(3);
    let pages = [mixed, page_of("few words", 3)];
    // The head of an object is damaged, and another one anywhere.
    for ((page, (writer, reader)), near) in pages.iter().zip(by_one_and_another).zip([16, ROOMY]) {
        let mut scratch = vec![0x77; compress_scratch_bytes(codec(name))];
        let compressor = Compressor::new(codec(name), &mut scratch).expect("enough scratch");
        let mut object = vec![0; ROOMY];
        let length = compressor.with_backend(writer).compress(page, &mut object).expect("fits");
        object.truncate(length);
        let mut scratch = vec![0x77; decompress_scratch_bytes(encoding)];
        let decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
        let mut decompressor = decompressor.with_backend(reader);
        let mut back = [0; PAGE_SIZE];
        assert_eq!(decompressor.decompress(encoding, &object, &mut back), Ok(()));
        assert!(back == *page);
        let mut damaged = object.clone();
        damaged[numbers.below(near.min(length))] ^= 1 << numbers.below(8);
        let _ = decompressor.decompress(encoding, &damaged, &mut back);
        assert!(decompressor.decompress(encoding, &object[..length / 2], &mut back).is_err());
    }
}

fn scratch_may_not_be_shorter(name: &str) {
    let codec = codec(name);
    let needed_bytes = compress_scratch_bytes(codec);
    assert!(needed_bytes <= MAX_COMPRESS_SCRATCH_BYTES, "{needed_bytes}");
    // One odd address and one even: the exact size suffices wherever the memory is.
    for offset in [0, 1] {
        let mut scratch = vec![0; needed_bytes + offset];
        assert!(Compressor::new(codec, &mut scratch[offset..]).is_ok_and(|c| c.codec() == codec));
    }
    let too_few = |given_bytes: &usize| *given_bytes < needed_bytes;
    let lengths = [0, 1, needed_bytes / 2, needed_bytes.saturating_sub(1)];
    for given_bytes in lengths.into_iter().filter(too_few) {
        let error = Compressor::new(codec, &mut vec![0; given_bytes]).err();
        assert_eq!(error, Some(ScratchError::TooSmall { needed_bytes, given_bytes }));
    }

    let encoding = codec.encoding();
    let needed_bytes = decompress_scratch_bytes(encoding);
    assert!(needed_bytes <= MAX_DECOMPRESS_SCRATCH_BYTES, "{needed_bytes}");
    let page = [7; PAGE_SIZE];
    let object = compress(name, &page, ROOMY).expect("one repeated byte compresses");
    for offset in [0, 1] {
        let mut scratch = vec![0x3c; needed_bytes + offset];
        let mut decompressor = Decompressor::new(&mut scratch[offset..]).expect("accepted");
        let mut back = [0; PAGE_SIZE];
        assert_eq!(decompressor.decompress(encoding, &object, &mut back), Ok(()));
        assert!(back == page);
    }
    if let Some(given_bytes) = needed_bytes.checked_sub(1) {
        let mut scratch = vec![0; given_bytes];
        let mut decompressor = Decompressor::new(&mut scratch).expect("decodes other encodings");
        let result = decompressor.decompress(encoding, &object, &mut [0; PAGE_SIZE]);
        assert_eq!(result, Err(DecodeError::NoScratch { encoding }));
    }
}

fn other_lengths_are_errors(name: &str) {
    let encoding = codec(name).encoding();
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut back = [0; PAGE_SIZE];
    let mut numbers = Numbers::new(3);
    each_page(name, |kind, _, object| {
        let Ok(object) = object else { return };
        // Every prefix of a short object, some of a long one and always the longest.
        let step = 1 + object.len() / 200;
        let longest = object.len().saturating_sub(8)..object.len();
        for length in (0..object.len()).step_by(step).chain(longest) {
            let result = decompressor.decompress(encoding, &object[..length], &mut back);
            assert!(result.is_err(), "{kind}: {length} of {} bytes", object.len());
        }
        let mut longer = object.to_vec();
        longer.push(0);
        for byte in [0, 1, 0x10, 0x80, 0xff, numbers.next() as u8] {
            *longer.last_mut().expect("just pushed") = byte;
            let result = decompressor.decompress(encoding, &longer, &mut back);
            assert!(result.is_err(), "{kind}: {byte:#x} appended");
        }
        longer.pop();
        longer.extend_from_slice(object);
        let result = decompressor.decompress(encoding, &longer, &mut back);
        assert!(result.is_err(), "{kind}: twice");
    });
}

/// Whatever a decoder makes of an object, the next one must not suffer from it.
fn survive(encoding: Encoding, objects: impl Iterator<Item = Vec<u8>>, good: (&[u8], &Page)) {
    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = [0; PAGE_SIZE];
    for (nth, object) in objects.enumerate() {
        let _ = decompressor.decompress(encoding, &object, &mut page);
        if nth % 64 == 0 {
            assert_eq!(decompressor.decompress(encoding, good.0, &mut page), Ok(()));
            assert!(page == *good.1);
        }
    }
}

fn garbage_is_survived(name: &str) {
    let encoding = codec(name).encoding();
    let (_, page) = pages(1, 1).pop().expect("the last kind, a heap");
    let good = compress(name, &page, ROOMY).expect("a heap compresses");
    let mut numbers = Numbers::new(11);
    let garbage = (0..2000).map(|_| {
        let longest = [40, 5000][numbers.below(2)];
        let length = numbers.below(longest);
        // Bytes of few ones get past more checks than uniform ones.
        let mask = [0xff, 0x0f, 0x03, 0x11][numbers.below(4)];
        (0..length).map(|_| numbers.next() as u8 & mask).collect()
    });
    survive(encoding, garbage, (&good, &page));

    let mut numbers = Numbers::new(12);
    let objects: Vec<Vec<u8>> =
        pages(2, 2).iter().filter_map(|(_, page)| compress(name, page, ROOMY).ok()).collect();
    let damaged = objects.iter().flat_map(|object| (0..60).map(move |_| object)).map(|object| {
        let mut object = object.clone();
        // The first bytes hold headers and deserve half of the damage.
        for _ in 0..1 + numbers.below(4) {
            let near = if numbers.below(2) == 0 { object.len() } else { object.len().min(300) };
            let at = numbers.below(near);
            object[at] ^= 1 << numbers.below(8);
        }
        object
    });
    survive(encoding, damaged, (&good, &page));
}

macro_rules! every_codec {
    ($($module:ident: $name:literal, $bytes:literal, $fingerprint:literal;)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(
        mod $module {
            use super::*;

            #[test]
            fn pages_come_back() {
                super::pages_come_back($name);
            }

            #[test]
            fn room_is_exact() {
                super::room_is_exact($name);
            }

            #[test]
            fn objects_depend_on_the_page_alone() {
                super::objects_depend_on_the_page_alone($name);
            }

            #[test]
            fn backends_agree() {
                super::backends_agree($name);
            }

            #[test]
            fn a_few_pages() {
                super::a_few_pages($name);
            }

            #[test]
            fn scratch_may_not_be_shorter() {
                super::scratch_may_not_be_shorter($name);
            }

            #[test]
            fn other_lengths_are_errors() {
                super::other_lengths_are_errors($name);
            }

            #[test]
            fn garbage_is_survived() {
                super::garbage_is_survived($name);
            }

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(64))]

                #[test]
                fn any_page_comes_back(page in any_page(), room in 0..ROOMY) {
                    let encoding = codec($name).encoding();
                    match compress($name, &page, room) {
                        Ok(object) => {
                            prop_assert!(object.len() <= room);
                            prop_assert_eq!(decompress(encoding, &object), Ok(page));
                        }
                        Err(DoesNotFit) => {
                            // Then it is too long for the room, or zstd takes it at no length.
                            match compress($name, &page, ROOMY) {
                                Ok(object) => prop_assert!(object.len() > room),
                                Err(DoesNotFit) => prop_assert_eq!(encoding, Encoding::Zstd),
                            }
                        }
                    }
                }

                #[test]
                fn any_bytes_are_a_page_or_an_error(
                    object in prop::collection::vec(any::<u8>(), 0..600),
                ) {
                    let _ = decompress(codec($name).encoding(), &object);
                }
            }
        }
        )*
    };
}

for_every_codec!(every_codec);

#[test]
fn the_listed_codecs_are_tested_above() {
    for codec in Codec::ALL {
        assert!(TESTED.contains(&codec.name()), "{codec}");
    }
}

#[test]
fn every_level_of_zstd_fits_the_largest_scratch() {
    for level in 1..=19 {
        let name = format!("zstd-{level}");
        let needed_bytes = compress_scratch_bytes(codec(&name));
        assert!(needed_bytes <= MAX_COMPRESS_SCRATCH_BYTES, "{name}: {needed_bytes}");
        if level <= 10 {
            assert!(needed_bytes <= 112 << 10, "{name}: {needed_bytes}");
        }
        let page = corpus::from_words(|nth| (nth % 97) as u32);
        let object = compress(&name, &page, PAGE_SIZE / 4).expect("a period of 97 words");
        assert_eq!(decompress(Encoding::Zstd, &object).as_deref(), Ok(&page));
    }
}

/// One decompressor serves every encoding, in any order.
#[test]
fn encodings_share_a_decompressor() {
    let mut scratch = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut page = [0; PAGE_SIZE];
    for (kind, original) in pages(21, 2) {
        for codec in Codec::ALL {
            let Ok(object) = compress(codec.name(), &original, ROOMY) else { continue };
            assert_eq!(decompressor.decompress(codec.encoding(), &object, &mut page), Ok(()));
            assert!(page == original, "{kind} by {codec}");
        }
    }
}

/// Workers own their compressors and take them along.
#[test]
fn compressors_and_decompressors_move_between_threads() {
    fn moves<T: Send>(value: T) -> T {
        value
    }
    let page = corpus::from_words(|nth| nth as u32 / 3);
    let mut scratch = vec![0; compress_scratch_bytes(codec("zstd-3"))];
    let mut compressor = moves(Compressor::new(codec("zstd-3"), &mut scratch).expect("enough"));
    let mut scratch = vec![0; MAX_DECOMPRESS_SCRATCH_BYTES];
    let mut decompressor = moves(Decompressor::new(&mut scratch).expect("accepted"));
    let mut out = [0; PAGE_SIZE];
    let length = compressor.compress(&page, &mut out).expect("compresses");
    let back = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let length = compressor.compress(&page, &mut out).expect("compresses");
            let mut back = [0; PAGE_SIZE];
            decompressor
                .decompress(Encoding::Zstd, &out[..length], &mut back)
                .map(|()| (length, back))
        });
        other.join().expect("no panic")
    });
    assert!(back == Ok((length, page)));
}

/// The encoder steps over more and more of what does not compress, so that it comes upon a copy
/// late and has to reach back. By then it had passed more bytes than there was room for.
#[test]
fn lz4_reaches_back_for_a_copy_however_small_the_room() {
    let mut reached = 0;
    for seed in 0..200 {
        let mut numbers = Numbers::new(seed);
        let mut page = corpus::from_words(|_| numbers.word());
        let from = PAGE_SIZE / 2 + numbers.below(PAGE_SIZE / 4);
        page.copy_within(numbers.below(PAGE_SIZE / 8)..PAGE_SIZE - from, from);
        let object = compress("lz4", &page, ROOMY).expect("any page, given the room");
        assert_eq!(compress("lz4", &page, object.len()).as_ref(), Ok(&object), "seed {seed}");
        reached += usize::from(object.len() < PAGE_SIZE - 100);
    }
    assert!(reached > 100, "only {reached} pages had a copy that was found");
}
