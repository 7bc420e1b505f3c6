//! Streams of bytes that clients send: right ones, random ones, and right ones that were damaged.
//! Whatever comes, the server goes on or drops the client, and what it sends can be parsed.

use std::sync::Arc;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use ramfold_block::nbd::{Options, answers};
use ramfold_block::{BlockDevice, Durability, PlainDevice};

mod support;

use support::client::{Client, Reply, Shape};

const DEVICE_BYTES: u64 = 1 << 20;

/// Numbers by a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A handshake and requests as clients make them, some of them wrong.
fn conversation(random: &mut Random) -> Client {
    let shape = random.one_of(&[Shape::Simple, Shape::Structured, Shape::Extended]);
    let mut client = Client::new(shape);
    client.flags(random.one_of(&[1, 3]));
    for _ in 0..random.below(3) {
        let option = random.one_of(&[3, 5, 6, 9, 12, 77]);
        let data = random_bytes(random, 20);
        client.option(option, &data);
    }
    client.agree(random.one_of(&["", "disk"]));
    for _ in 0..random.below(12) {
        let kind = random.below(9) as u16;
        let flags = if random.below(4) == 0 { random.below(64) as u16 } else { 0 };
        let offset = match random.below(8) {
            0 => random.next(),
            _ => random.below(DEVICE_BYTES + 4096),
        };
        let length = match random.below(16) {
            0 => random.next() & 0xffff_ffff,
            1 => random.below(3 << 20),
            2..5 => random.below(200_000),
            _ => random.below(20_000),
        };
        let payload = if kind == 1 { length.min(30_000) } else { 0 };
        let length = if kind == 1 { payload } else { length };
        client.request(flags, kind, offset, length, payload as usize);
    }
    client
}

fn random_bytes(random: &mut Random, most: u64) -> Vec<u8> {
    (0..random.below(most)).map(|_| random.next() as u8).collect()
}

/// Changes, removes and repeats some bytes.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => _ = bytes.drain(at..(at + 9).min(bytes.len())),
            _ => {
                let part = bytes[at..(at + 40).min(bytes.len())].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

fn server_of(device: &Arc<PlainDevice>, input: Vec<u8>, at_a_time: usize) -> Vec<u8> {
    let options = Options { export: "disk".into(), ..Options::default() };
    answers(Arc::clone(device) as Arc<dyn BlockDevice>, &options, input, at_a_time)
}

#[test]
fn no_stream_of_bytes_harms_the_server() {
    // Opened once: what is written stays, so that reads have something to tell.
    let device = Arc::new(PlainDevice::new(DEVICE_BYTES));
    for seed in 0..INPUTS {
        let mut random = Random(seed);
        let mut input = match random.below(8) {
            0 => random_bytes(&mut random, 200),
            _ => conversation(&mut random).bytes,
        };
        if random.below(4) != 0 {
            damage(&mut random, &mut input);
        }
        let at_a_time = random.one_of(&[1 << 20, 1 << 20, 1 << 20, 4096, 57]);
        let output = server_of(&device, input, at_a_time);
        assert_eq!(&output[..8], b"NBDMAGIC", "seed {seed}");
    }
}

/// Under a second for each thousand in a build for debugging.
const INPUTS: u64 = 20_000;

#[test]
fn replies_to_right_and_wrong_requests_can_be_parsed() {
    let device = Arc::new(PlainDevice::new(DEVICE_BYTES));
    let data: Vec<u8> = (0..DEVICE_BYTES / 2).map(|at| (at * 7 % 251) as u8).collect();
    device.write(DEVICE_BYTES / 4, &data, Durability::AtFlush).unwrap();
    let mut replies = 0;
    let mut kinds = [0; 6];
    for seed in 0..4000 {
        let mut random = Random(seed | 1 << 40);
        let mut client = conversation(&mut random);
        let output = server_of(&device, client.bytes.clone(), usize::MAX);
        let parsed = client.parse(&output);
        let parsed = parsed.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        replies += parsed.len();
        let has = |is_so: fn(&Reply) -> bool| parsed.iter().any(is_so);
        for (nth, is_there) in [
            has(|reply| matches!(reply, Reply::Done { .. })),
            has(|reply| matches!(reply, Reply::Error { code: 22, .. })),
            has(|reply| matches!(reply, Reply::Error { code: 28, .. })),
            has(|reply| matches!(reply, Reply::Data { .. })),
            has(|reply| matches!(reply, Reply::Hole { .. })),
            has(|reply| matches!(reply, Reply::Extents { .. })),
        ]
        .into_iter()
        .enumerate()
        {
            kinds[nth] += u32::from(is_there);
        }
    }
    assert!(replies > 10_000 && kinds.iter().all(|&count| count > 20), "{replies}: {kinds:?}");
}

#[test]
fn how_a_stream_is_cut_makes_no_difference() {
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 300, ..Config::default() },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    runner
        .run(&(proptest::num::u64::ANY, 1usize..100), |(seed, at_a_time)| {
            let input = conversation(&mut Random(seed)).bytes;
            let fresh = || Arc::new(PlainDevice::new(DEVICE_BYTES));
            let whole = server_of(&fresh(), input.clone(), usize::MAX);
            let cut = server_of(&fresh(), input, at_a_time);
            assert!(whole == cut, "seed {seed}, {at_a_time} bytes at a time");
            Ok(())
        })
        .unwrap();
}
