//! What holds for `auto`, whatever it has learned.

mod corpus;

use corpus::{Numbers, any_page, from_words, pages};
use proptest::prelude::*;
use ramfold_codec::{
    Auto, Backend, Choice, Codec, Compressor, Decompressor, DoesNotFit, Encoding,
    MAX_DECOMPRESS_SCRATCH_BYTES, Objective, PAGE_SIZE, Page, ScratchError, compress_scratch_bytes,
};

/// One that has learned from some page before, with the means to read what it writes.
struct Tried {
    auto: Auto<'static>,
    decompressor: Decompressor<'static>,
    out: [u8; PAGE_SIZE],
}

impl Tried {
    fn new(backend: Backend) -> Tried {
        let auto =
            Auto::new(vec![0x77; Choice::Auto.scratch_bytes()].leak()).expect("enough scratch");
        let scratch = vec![0x77; MAX_DECOMPRESS_SCRATCH_BYTES].leak();
        Tried {
            auto: auto.with_backend(backend),
            decompressor: Decompressor::new(scratch).expect("scratch is accepted"),
            out: [0; PAGE_SIZE],
        }
    }

    /// Compresses, and checks that the page comes back.
    fn compress(
        &mut self,
        page: &Page,
        objective: Objective,
        room: usize,
    ) -> Result<(Encoding, usize), DoesNotFit> {
        let (encoding, length) = self.auto.compress(page, objective, &mut self.out[..room])?;
        assert!(length <= room);
        let mut back = [0xa5; PAGE_SIZE];
        let object = &self.out[..length];
        assert_eq!(self.decompressor.decompress(encoding, object, &mut back), Ok(()));
        assert!(back == *page, "{encoding:?} came back changed");
        Ok((encoding, length))
    }
}

/// Records of 45 bytes with a few random ones: copies by the byte, nothing by the word.
fn records(numbers: &mut Numbers) -> Page {
    let mut page = [0; PAGE_SIZE];
    let names = ["Ada Lovelace", "Grace Hopper", "Barbara Liskov"];
    let mut at = 0;
    while at < PAGE_SIZE {
        let name = names[numbers.below(names.len())].bytes();
        let record = [7, numbers.next() as u8, numbers.next() as u8].into_iter();
        for byte in record.chain(name).chain(*b" ordered on 2026-11-22, paid;") {
            if let Some(place) = page.get_mut(at) {
                *place = byte;
            }
            at += 1;
        }
    }
    page
}

fn noise(numbers: &mut Numbers) -> Page {
    from_words(|_| numbers.word())
}

#[test]
fn it_takes_what_suits_the_pages() {
    let mut numbers = Numbers::new(3);
    let mut tried = Tried::new(Backend::best());
    let vectors = Backend::best() != Backend::SCALAR;
    let mut last = None;
    for _ in 0..40 {
        last = Some(
            tried.compress(&records(&mut numbers), Objective::Speed, PAGE_SIZE).expect("fits").0,
        );
    }
    assert_eq!(last, Some(Encoding::Lz4));
    // Pointers into one heap: the word codec's.
    for _ in 0..100 {
        let page =
            from_words(
                |nth| if nth % 2 == 0 { 0x5500_0000 | numbers.word() & 0xffff } else { 0x7f3a },
            );
        last = Some(tried.compress(&page, Objective::Speed, PAGE_SIZE).expect("fits").0);
    }
    assert_eq!(last, Some(if vectors { Encoding::Wkv } else { Encoding::Lz4 }));
    let dense = tried.compress(&records(&mut numbers), Objective::Density, PAGE_SIZE);
    assert!(matches!(dense, Ok((Encoding::PageLz | Encoding::Zstd, _))), "{dense:?}");
}

/// Of many pages of one manner, the objects are hardly larger than the better codec's.
#[test]
fn it_is_as_small_as_the_better_codec() {
    let mut numbers = Numbers::new(4);
    let mut tried = Tried::new(Backend::best());
    let mut scratch = vec![0; compress_scratch_bytes(Codec::Lz4)];
    let mut lz4 = Compressor::new(Codec::Lz4, &mut scratch).expect("enough scratch");
    let (mut ours, mut theirs) = (0, 0);
    for _ in 0..200 {
        let page = records(&mut numbers);
        ours += tried.compress(&page, Objective::Speed, PAGE_SIZE).expect("fits").1;
        theirs += lz4.compress(&page, &mut [0; PAGE_SIZE]).expect("fits");
    }
    assert!(ours <= theirs + theirs / 50, "{ours} and {theirs} bytes");
}

/// Noise is given up, but not for ever: a page that looks like noise and is not is found at last.
#[test]
fn what_it_gives_up_it_tries_again() {
    let mut numbers = Numbers::new(5);
    let room = PAGE_SIZE * 3 / 4;
    let mut twice = noise(&mut numbers);
    // Shifted, so that a sample of it has as many different bytes as noise.
    twice.copy_within(..PAGE_SIZE / 2 - 60, PAGE_SIZE / 2 + 60);
    let mut tries = 0;
    for before in 300..310 {
        let mut tried = Tried::new(Backend::best());
        for _ in 0..before {
            let page = noise(&mut numbers);
            assert_eq!(tried.compress(&page, Objective::Speed, room), Err(DoesNotFit));
        }
        let found = (0..64).position(|_| tried.compress(&twice, Objective::Speed, room).is_ok());
        tries += found.expect("it is tried again");
    }
    assert!(tries > 0, "noise was not given up");
    // A page that does not look like noise is never given up for the others' sake.
    let mut tried = Tried::new(Backend::best());
    for _ in 0..300 {
        let _ = tried.compress(&noise(&mut numbers), Objective::Speed, room);
    }
    assert!(tried.compress(&records(&mut numbers), Objective::Speed, room).is_ok());
}

#[test]
fn scratch_may_not_be_shorter() {
    for given_bytes in [0, 1, Choice::Auto.scratch_bytes() - 1] {
        let error = Auto::new(&mut vec![0; given_bytes]).err();
        let needed_bytes = Choice::Auto.scratch_bytes();
        assert_eq!(error, Some(ScratchError::TooSmall { needed_bytes, given_bytes }));
    }
}

#[test]
fn every_kind_of_page_comes_back() {
    for backend in Backend::available() {
        let mut tried = Tried::new(backend);
        for objective in [Objective::Speed, Objective::Density, Objective::Speed] {
            let mut kept = 0;
            for (_, page) in pages(9, 8) {
                kept += usize::from(tried.compress(&page, objective, PAGE_SIZE).is_ok());
            }
            assert!(kept > 100, "{kept} pages compressed");
        }
    }
}

proptest! {
    #[test]
    fn any_pages_come_back(
        pages in prop::collection::vec(
            (any_page(), 0..=PAGE_SIZE, any::<bool>(), 1..12usize), 1..8,
        ),
        backend in 0..8usize,
    ) {
        let backends: Vec<_> = Backend::available().collect();
        let mut tried = Tried::new(backends[backend % backends.len()]);
        for (page, room, density, times) in &pages {
            let objective = if *density { Objective::Density } else { Objective::Speed };
            for _ in 0..*times {
                let _ = tried.compress(page, objective, *room);
            }
        }
    }
}
