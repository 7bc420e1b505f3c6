//! Objects with something wrong in them, decoded between pages that may not be touched: with all
//! instructions the same page or an error.
//!
//! A few under test. RAMFOLD_DAMAGED_OBJECTS says how many objects have each of their bits flipped,
//! RAMFOLD_DAMAGED_INPUTS how many inputs each codec is given, RAMFOLD_DAMAGED_CODECS which codecs
//! (their names with commas between; all where it is not set):
//!
//!     RAMFOLD_DAMAGED_OBJECTS=1000 RAMFOLD_DAMAGED_INPUTS=100000000 \
//!         RAMFOLD_DAMAGED_CODECS=wkv,lzo cargo test --release -p ramfold-bench --test damage

use std::time::Instant;

use ramfold_bench::PageSource;
use ramfold_bench::Random;
use ramfold_codec::{
    Backend, Codec, Compressor, DecodeError, Decompressor, Encoding, PAGE_SIZE, Page,
    compress_scratch_bytes, decompress_scratch_bytes,
};
use ramfold_sys::mem::Reservation;

/// Memory that ends where an inaccessible page begins.
struct Fenced {
    memory: Reservation,
    len: usize,
}

impl Fenced {
    fn new(len: usize) -> Fenced {
        let memory = Reservation::new(len.next_multiple_of(PAGE_SIZE)).unwrap();
        memory.commit(0, memory.len()).unwrap();
        Fenced { memory, len }
    }

    /// Its last bytes.
    #[allow(unsafe_code, reason = "memory with a fence is mapped, not allocated")]
    fn bytes(&mut self, count: usize) -> &mut [u8] {
        assert!(count <= self.len);
        let end = self.memory.as_ptr().wrapping_add(self.memory.len());
        // SAFETY: committed above, as long as `self`, and borrowed from it.
        unsafe { std::slice::from_raw_parts_mut(end.wrapping_sub(count), count) }
    }
}

/// One codec, decoding with all instructions.
struct Decoders {
    encoding: Encoding,
    decompressors: Vec<Decompressor<'static>>,
    object: Fenced,
    page: Fenced,
}

/// Longest object that is tried.
const OBJECT_MAX: usize = 5000;

impl Decoders {
    fn new(codec: Codec) -> Decoders {
        let encoding = codec.encoding();
        let decompressors = Backend::available().map(|backend| {
            let scratch = Box::leak(Box::new(Fenced::new(decompress_scratch_bytes(encoding))));
            let scratch = scratch.bytes(decompress_scratch_bytes(encoding));
            Decompressor::new(scratch).unwrap().with_backend(backend)
        });
        let decompressors = decompressors.collect();
        Decoders {
            encoding,
            decompressors,
            object: Fenced::new(OBJECT_MAX),
            page: Fenced::new(PAGE_SIZE),
        }
    }

    /// What all instructions make of it.
    fn decode(&mut self, input: &[u8]) -> Result<Box<Page>, DecodeError> {
        let object = self.object.bytes(input.len());
        object.copy_from_slice(input);
        let page: &mut Page = self.page.bytes(PAGE_SIZE).try_into().unwrap();
        let mut all = self.decompressors.iter_mut().map(|decompressor| {
            decompressor.decompress(self.encoding, object, page).map(|()| Box::new(*page))
        });
        let first = all.next().unwrap();
        assert!(all.all(|other| other == first), "not all instructions decode alike: {input:?}");
        first
    }
}

fn number(variable: &str, few: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => few,
    }
}

fn codecs() -> Vec<Codec> {
    let all = Codec::ALL.iter().copied();
    match std::env::var("RAMFOLD_DAMAGED_CODECS") {
        Ok(names) => names
            .split(',')
            .map(|name| {
                let named = all.clone().find(|codec| codec.to_string() == name);
                named.unwrap_or_else(|| panic!("RAMFOLD_DAMAGED_CODECS={names}: no codec {name}"))
            })
            .collect(),
        Err(_) => all.collect(),
    }
}

fn objects(codec: Codec, count: usize) -> Vec<Vec<u8>> {
    let source = PageSource::generated(11);
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).unwrap();
    let mut out = [0; 2 * PAGE_SIZE];
    let pages = (0..).map(|nth| source.page(nth).unwrap().0);
    let objects = pages.filter_map(|page| {
        let length = compressor.compress(&page, &mut out).ok()?;
        (length <= PAGE_SIZE * 3 / 4).then(|| out[..length].to_vec())
    });
    objects.take(count).collect()
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn each_bit_flipped() {
    for codec in codecs() {
        let mut decoders = Decoders::new(codec);
        let (mut errors, mut others) = (0u64, 0u64);
        for mut object in objects(codec, number("RAMFOLD_DAMAGED_OBJECTS", 1)) {
            let page = decoders.decode(&object).expect("an object");
            for bit in 0..8 * object.len() {
                object[bit / 8] ^= 1 << (bit % 8);
                match decoders.decode(&object) {
                    Err(_) => errors += 1,
                    Ok(other) => others += u64::from(other != page),
                }
                object[bit / 8] ^= 1 << (bit % 8);
            }
        }
        println!("{codec}: {errors} errors, {others} other pages, for the checksum to find");
        assert!(errors > 0 && others > 0);
    }
}

/// An object with some bytes changed, cut or drawn out, or put together from two; seldom mere
/// noise.
fn damaged(objects: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let one = |random: &mut Random| &objects[random.below(objects.len())];
    let mut input = one(random).clone();
    match random.below(8) {
        0 => {
            let cut = random.below(input.len());
            let other = one(random);
            input.truncate(cut);
            input.extend_from_slice(&other[other.len().min(cut)..]);
        }
        1 => input.truncate(random.below(input.len())),
        2 => input.extend((0..random.below(40)).map(|_| random.word() as u8)),
        3 if random.below(8) == 0 => input.iter_mut().for_each(|byte| *byte = random.word() as u8),
        _ => {}
    }
    for _ in 0..random.below(6) {
        if input.is_empty() {
            break;
        }
        // The beginning decides most.
        let length = if random.below(2) == 0 { input.len().min(24) } else { input.len() };
        let at = random.below(length);
        input[at] = match random.below(4) {
            0 => 0,
            1 => 0xff,
            2 => input[at] ^ 1 << random.below(8),
            _ => random.word() as u8,
        };
    }
    input.truncate(OBJECT_MAX);
    input
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn damaged_at_random() {
    let inputs = number("RAMFOLD_DAMAGED_INPUTS", 2000);
    for codec in codecs() {
        let mut decoders = Decoders::new(codec);
        let objects = objects(codec, 64);
        let mut random = Random::new(1);
        let started = Instant::now();
        let mut errors = 0u64;
        for _ in 0..inputs {
            errors += u64::from(decoders.decode(&damaged(&objects, &mut random)).is_err());
        }
        let seconds = started.elapsed().as_secs();
        println!("{codec}: {inputs} inputs, {errors} errors, {seconds} s");
        assert!(errors > 0);
    }
}
