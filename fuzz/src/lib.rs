//! What the fuzz targets share: pages and objects made from the fuzzer's bytes, and what must hold
//! for them; and what clients send to the NBD server.
//!
//! Scratch, objects and pages are allocations of their own and of exactly the size promised, so
//! that the address sanitizer sees any access outside them, those of the C library included.

pub mod nbd;

use ramfold_codec::cluster::{self, ClusterCodec, ClusterSize};
use ramfold_codec::{
    Backend, Codec, Compressor, Decompressor, Encoding, PAGE_SIZE, Page, ZstdLevel,
    compress_scratch_bytes, decompress_scratch_bytes,
};

/// A page from the fuzzer's bytes. The first says how the rest fills it.
pub fn page_from(data: &[u8]) -> Page {
    let mut page = [0; PAGE_SIZE];
    let Some((&how, bytes)) = data.split_first() else { return page };
    if bytes.is_empty() {
        return page;
    }
    match how % 4 {
        // As it is, zeros behind it.
        0 => {
            let length = bytes.len().min(PAGE_SIZE);
            page[..length].copy_from_slice(&bytes[..length]);
        }
        // Again and again.
        1 => page.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, &from)| *to = from),
        // A run or a copy of earlier words for every three bytes.
        2 => {
            let mut at = 0;
            for piece in bytes.chunks_exact(3) {
                let length = (usize::from(piece[1]) * 4).min(PAGE_SIZE - at);
                for step in 0..length {
                    let back = 4 * (1 + usize::from(piece[2]));
                    page[at + step] = match piece[0] % 4 {
                        0 => 0,
                        1 => piece[2],
                        _ => (at + step).checked_sub(back).map_or(piece[0], |from| page[from]),
                    };
                }
                at += length;
            }
        }
        // A word for every byte: upper half from few values, lower half from the byte.
        _ => {
            for (word, &byte) in page.chunks_exact_mut(4).zip(bytes.iter().cycle()) {
                let high = [0, 0x7f3a, 0x0012, 0xff00][usize::from(byte >> 6)];
                let low = u32::from(byte & 0x3f) * 0x0111;
                word.copy_from_slice(&((high << 16) | low).to_le_bytes());
            }
        }
    }
    page
}

/// An object from the fuzzer's bytes: as they are, or what `codec` makes of a page with a few bytes
/// of it changed, which passes the checks that keep arbitrary bytes out of a decoder's depths.
fn object_from(codec: Codec, data: &[u8]) -> Vec<u8> {
    let Some((&how, bytes)) = data.split_first() else { return Vec::new() };
    if how % 2 == 0 {
        return bytes.to_vec();
    }
    let (edits, bytes) = bytes.split_at(bytes.len().min(3 * usize::from(how >> 4)));
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
    let mut object = vec![0; 2 * PAGE_SIZE];
    let length = compressor.compress(&page_from(bytes), &mut object).unwrap_or(0);
    object.truncate(length);
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
        match object.get_mut(at) {
            Some(byte) => *byte ^= edit[2],
            // Past the end: shorter or longer.
            None if at % 2 == 0 => object.truncate(usize::from(edit[2])),
            None => object.push(edit[2]),
        }
    }
    object
}

/// Decodes an object made from `data`, with all instructions alike. If that gives a page, the page
/// must come back from a round trip of its own.
pub fn decode(codec: Codec, data: &[u8]) {
    let object = object_from(codec, data).into_boxed_slice();
    let mut decoded = Backend::available().map(|backend| {
        let encoding = codec.encoding();
        let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
        let decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
        let mut page = Box::new([0; PAGE_SIZE]);
        decompressor.with_backend(backend).decompress(encoding, &object, &mut page).map(|()| page)
    });
    let first = decoded.next().expect("plain code works everywhere");
    assert!(decoded.all(|other| other == first), "not all instructions decode alike");
    if let Ok(page) = first {
        comes_back(codec, &page, 2 * PAGE_SIZE);
    }
}

/// Decodes a cluster made from `data`: as it is, or what a codec makes of pages with a few bytes
/// changed. If that gives a cluster, the cluster must come back from a round trip of its own.
pub fn decode_cluster(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else { return };
    let codec = [ClusterCodec::Lz4, ClusterCodec::Zstd(ZstdLevel::FASTEST)][usize::from(how & 1)];
    let size = ClusterSize::ALL[usize::from(how >> 1) % ClusterSize::ALL.len()];
    let object = if how & 0x80 == 0 {
        data.to_vec()
    } else {
        let (edits, bytes) = data.split_at(data.len().min(3 * usize::from(how >> 4 & 7)));
        let pages = (0..size.pages()).map(|nth| page_from(bytes.get(nth..).unwrap_or_default()));
        let cluster = pages.collect::<Vec<_>>().concat();
        let mut object = compress_cluster(codec, size, &cluster).unwrap_or_default();
        for edit in edits.chunks_exact(3) {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]]));
            if let Some(byte) = object.get_mut(at) {
                *byte ^= edit[2];
            }
        }
        object
    };
    let mut scratch = vec![0; cluster::decompress_scratch_bytes()];
    let mut decompressor = cluster::Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut cluster = vec![0; size.bytes()];
    let object = object.into_boxed_slice();
    if decompressor.decompress(codec.encoding(), &object, &mut cluster).is_err() {
        return;
    }
    let Some(object) = compress_cluster(codec, size, &cluster) else { return };
    let mut back = vec![0x5a; size.bytes()];
    assert_eq!(decompressor.decompress(codec.encoding(), &object, &mut back), Ok(()));
    assert!(back == cluster, "another cluster came back");
}

fn compress_cluster(codec: ClusterCodec, size: ClusterSize, cluster: &[u8]) -> Option<Vec<u8>> {
    let mut scratch = vec![0; cluster::compress_scratch_bytes(codec, size)];
    let mut compressor =
        cluster::Compressor::new(codec, size, &mut scratch).expect("enough scratch");
    let mut object = vec![0; 2 * size.bytes()];
    let length = compressor.compress(cluster, &mut object).ok()?;
    object.truncate(length);
    object.shrink_to_fit();
    Some(object)
}

/// Compresses `page` into `room` bytes and checks that it comes back, and that the object tolerates
/// no other length.
pub fn comes_back(codec: Codec, page: &Page, room: usize) {
    let encoding = codec.encoding();
    let mut out = vec![0; room];
    let mut scratch = vec![0; compress_scratch_bytes(codec)];
    let mut compressor = Compressor::new(codec, &mut scratch).expect("enough scratch");
    let Ok(length) = compressor.compress(page, &mut out) else {
        // Only libzstd refuses a page that has all the room it could need.
        assert!(room < 2 * PAGE_SIZE || encoding == Encoding::Zstd);
        return;
    };
    out.truncate(length);
    out.shrink_to_fit();
    let mut compressor = compressor.with_backend(Backend::SCALAR);
    let mut plain = vec![0; length];
    assert_eq!(compressor.compress(page, &mut plain), Ok(length));
    assert!(plain == out, "not all instructions encode alike");
    let mut shorter = vec![0; length - 1];
    assert!(compressor.compress(page, &mut shorter).is_err());

    let mut scratch = vec![0; decompress_scratch_bytes(encoding)];
    let mut decompressor = Decompressor::new(&mut scratch).expect("scratch is accepted");
    let mut back = Box::new([0x5a; PAGE_SIZE]);
    assert_eq!(decompressor.decompress(encoding, &out, &mut back), Ok(()));
    assert!(*back == *page, "another page came back");
    assert!(decompressor.decompress(encoding, &out[..length - 1], &mut back).is_err());
    out.push(0);
    assert!(decompressor.decompress(encoding, &out, &mut back).is_err());
}
