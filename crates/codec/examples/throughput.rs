//! Speed and compressed size of every codec on one core, over the pages of the files named.
//!
//!     cargo run --release -p ramfold-codec --example throughput -- FILE...
//!
//! Files are read as whole 4,096-byte pages; same-filled pages are counted and left out, as the
//! store leaves them out. Decoded pages are compared with the originals before anything is timed.

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use ramfold_codec::{
    Codec, Compressor, Decompressor, Encoding, PAGE_SIZE, Page, compress_scratch_bytes,
    decompress_scratch_bytes, same_filled,
};

const ROUNDS: usize = 15;
const BATCH: usize = 128;
/// An object above three quarters of a page is not worth storing.
const ROOM: usize = PAGE_SIZE / 4 * 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut pages: Vec<Page> = Vec::new();
    for path in std::env::args_os().skip(1) {
        pages.extend(std::fs::read(path)?.as_chunks().0);
    }
    if pages.is_empty() {
        return Err("name at least one file of 4,096 bytes or more".into());
    }
    let all = pages.len();
    let filled = fastest(&pages, |page| {
        black_box(same_filled(page));
    });
    pages.retain(|page| same_filled(page).is_none());
    println!("{all} pages, {} of them same-filled", all - pages.len());
    println!("{:8} {:>8} {:>8} {:>10} {:>10}", "codec", "size", "fit", "compress", "decompress");
    println!("{:8} {:>8} {:>8} {:>5.2} GB/s", "filled?", "", "", rate(all, filled));

    for &codec in Codec::ALL {
        let mut scratch = vec![0; compress_scratch_bytes(codec)];
        let mut compressor = Compressor::new(codec, &mut scratch)?;
        let longest = Encoding::ALL.iter().map(|&e| decompress_scratch_bytes(e)).max();
        let mut scratch = vec![0; longest.unwrap_or(0)];
        let mut decompressor = Decompressor::new(&mut scratch)?;

        let mut out = [0; PAGE_SIZE];
        let mut back = [0; PAGE_SIZE];
        let mut objects: Vec<Vec<u8>> = Vec::new();
        let mut stored_bytes = 0;
        for page in &pages {
            match compressor.compress(page, &mut out[..ROOM]) {
                Ok(length) => {
                    decompressor.decompress(codec.encoding(), &out[..length], &mut back)?;
                    if back != *page {
                        return Err(format!("{codec} gave back another page").into());
                    }
                    objects.push(out[..length].to_vec());
                    stored_bytes += length;
                }
                Err(_) => stored_bytes += PAGE_SIZE,
            }
        }
        let compress = fastest(&pages, |page| {
            let _ = black_box(compressor.compress(page, &mut out[..ROOM]));
        });
        let decompress = fastest(&objects, |object| {
            let _ = black_box(decompressor.decompress(codec.encoding(), object, &mut back));
        });
        println!(
            "{:8} {:>7.2}% {:>7.1}% {:>5.2} GB/s {:>5.2} GB/s",
            codec.name(),
            100.0 * stored_bytes as f64 / (pages.len() * PAGE_SIZE) as f64,
            100.0 * objects.len() as f64 / pages.len() as f64,
            rate(pages.len(), compress),
            rate(objects.len(), decompress),
        );
    }
    Ok(())
}

/// Time for all of `items`, from the fastest of several rounds over each batch of them: a batch
/// takes less than a time slice, so other work on the machine spoils some rounds of it but hardly
/// all.
fn fastest<T>(items: &[T], mut work: impl FnMut(&T)) -> Duration {
    let batch_time = |batch: &[T]| {
        let round = |_| {
            let start = Instant::now();
            batch.iter().for_each(&mut work);
            start.elapsed()
        };
        (0..ROUNDS).map(round).min().unwrap_or_default()
    };
    items.chunks(BATCH).map(batch_time).sum()
}

/// GB of page data a second.
fn rate(pages: usize, time: Duration) -> f64 {
    (pages * PAGE_SIZE) as f64 / 1e9 / time.as_secs_f64()
}
