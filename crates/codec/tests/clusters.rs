//! Clusters: back as they were, by independent decoders too, and whatever a decoder is given an
//! answer.

mod corpus;

use std::io::Read;

use corpus::{KINDS, Numbers};
use proptest::prelude::*;
use ramfold_codec::cluster::{
    ClusterCodec, ClusterSize, Compressor, Decompressor, compress_scratch_bytes,
    decompress_scratch_bytes,
};
use ramfold_codec::{Codec, DecodeError, DoesNotFit, Encoding, PAGE_SIZE, ZstdLevel};

fn codecs() -> Vec<ClusterCodec> {
    let levels = [1, 3, 9].map(|level| ClusterCodec::Zstd(ZstdLevel::new(level).unwrap()));
    [&[ClusterCodec::Lz4][..], &levels].concat()
}

fn compress(
    codec: ClusterCodec,
    size: ClusterSize,
    cluster: &[u8],
    room: usize,
) -> Result<Vec<u8>, DoesNotFit> {
    let mut scratch = vec![0x5a; compress_scratch_bytes(codec, size)];
    let mut compressor = Compressor::new(codec, size, &mut scratch).expect("enough scratch");
    let mut out = vec![0; room];
    let length = compressor.compress(cluster, &mut out)?;
    out.truncate(length);
    Ok(out)
}

fn decompress(encoding: Encoding, object: &[u8], bytes: usize) -> Result<Vec<u8>, DecodeError> {
    let mut scratch = vec![0x5a; decompress_scratch_bytes()];
    let mut decompressor = Decompressor::new(&mut scratch).expect("enough scratch");
    let mut cluster = vec![0; bytes];
    decompressor.decompress(encoding, object, &mut cluster).map(|()| cluster)
}

/// Pages of one kind, or of several, and some that come again.
fn cluster_of(seed: u64, size: ClusterSize) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let kind = numbers.below(KINDS.len());
    let mut cluster = Vec::new();
    while cluster.len() < size.bytes() {
        let again = !cluster.is_empty() && numbers.below(4) == 0;
        if again {
            let from = numbers.below(cluster.len() - PAGE_SIZE + 1);
            cluster.extend_from_within(from..from + PAGE_SIZE);
        } else {
            let kind = if numbers.below(2) == 0 { kind } else { numbers.below(KINDS.len()) };
            cluster.extend_from_slice(&KINDS[kind].1(&mut numbers));
        }
    }
    cluster
}

fn by_ruzstd(object: &[u8], size: usize) -> Vec<u8> {
    // A frame around the block: magic number, no content size and a window of 128 KiB, one last
    // compressed block (RFC 8878, section 3.1.1).
    let block = &object[2..];
    assert_eq!(usize::from(u16::from_le_bytes([object[0], object[1]])), block.len());
    let header = (block.len() as u32) << 3 | 2 << 1 | 1;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    frame.extend_from_slice(&header.to_le_bytes()[..3]);
    frame.extend_from_slice(block);
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&frame[..]).expect("a frame");
    let mut cluster = Vec::with_capacity(size);
    decoder.read_to_end(&mut cluster).expect("a block");
    cluster
}

fn by_another_decoder(encoding: Encoding, object: &[u8], size: usize) -> Vec<u8> {
    match encoding {
        Encoding::Lz4 => {
            let mut cluster = vec![0; size];
            let length = lz4_flex::block::decompress_into(object, &mut cluster);
            assert_eq!(length.expect("an LZ4 block"), size);
            cluster
        }
        Encoding::Zstd => by_ruzstd(object, size),
        _ => unreachable!("no cluster's"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn come_back_as_they_were(seed: u64) {
        for size in ClusterSize::ALL {
            let cluster = cluster_of(seed, size);
            for codec in codecs() {
                let Ok(object) = compress(codec, size, &cluster, 2 * size.bytes()) else {
                    prop_assert!(matches!(codec, ClusterCodec::Zstd(_)));
                    continue;
                };
                let encoding = codec.encoding();
                let back = decompress(encoding, &object, size.bytes()).unwrap();
                prop_assert!(back == cluster, "{codec:?} {size}");
                prop_assert!(by_another_decoder(encoding, &object, size.bytes()) == cluster);
                // The same object, however much room there is; none where there is too little.
                prop_assert_eq!(compress(codec, size, &cluster, object.len()), Ok(object.clone()));
                prop_assert_eq!(compress(codec, size, &cluster, object.len() - 1), Err(DoesNotFit));
                // It is no cluster of another size.
                for other in ClusterSize::ALL {
                    let decoded = decompress(encoding, &object, other.bytes());
                    prop_assert_eq!(decoded.is_ok(), other == size);
                }
            }
        }
    }

    #[test]
    fn of_other_encoders_are_read(seed: u64) {
        for size in ClusterSize::ALL {
            let cluster = cluster_of(seed, size);
            let mut object = vec![0; lz4_flex::block::get_maximum_output_size(cluster.len())];
            let length = lz4_flex::block::compress_into(&cluster, &mut object).unwrap();
            object.truncate(length);
            prop_assert!(decompress(Encoding::Lz4, &object, size.bytes()).unwrap() == cluster);
        }
    }

    #[test]
    fn damaged_are_answered(seed: u64, damages in 1usize..5) {
        let mut numbers = Numbers::new(seed);
        for size in ClusterSize::ALL {
            let cluster = cluster_of(seed, size);
            for codec in codecs() {
                let room = 2 * size.bytes();
                let Ok(mut object) = compress(codec, size, &cluster, room) else { continue };
                for _ in 0..damages {
                    let place = numbers.below(object.len());
                    object[place] ^= 1 << numbers.below(8);
                }
                object.truncate(object.len() - numbers.below(2));
                // A cluster or an error, and no more than is promised.
                let _ = decompress(codec.encoding(), &object, size.bytes());
            }
        }
    }
}

#[test]
fn whose_size_or_codec_is_none_are_refused() {
    let cluster = vec![7; 2 * PAGE_SIZE];
    for codec in codecs() {
        for size in ClusterSize::ALL {
            assert_eq!(compress(codec, size, &cluster, cluster.len()), Err(DoesNotFit));
        }
    }
    for encoding in [Encoding::Lz4, Encoding::Zstd] {
        let object = [0x1f, 7, 1, 0];
        assert_eq!(
            decompress(encoding, &object, 2 * PAGE_SIZE),
            Err(DecodeError::Malformed("cluster size"))
        );
    }
    assert!(decompress(Encoding::Wkdm, &[0; 64], PAGE_SIZE).is_err());
    assert_eq!(ClusterCodec::try_from(Codec::Lzo), Err(Codec::Lzo));
    for codec in codecs() {
        assert_eq!(ClusterCodec::try_from(Codec::from(codec)), Ok(codec));
    }
}
