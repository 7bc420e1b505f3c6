//! The codecs that the tests go over, each with what it makes of `pages(1, 4)`: bytes of all
//! objects, and their fingerprint.
//!
//! A change of these figures is a change of what an encoder writes. That is a change of this crate,
//! wanted or not; of zstd it may be libzstd's, whose new output old decoders still read.

/// Calls a macro with the list: a name for modules, the codec's name, bytes, fingerprint.
#[allow(unused_macros)]
macro_rules! for_every_codec {
    ($call:ident) => {
        $call! {
            lz4: "lz4", 245914, 0x9152d149f46da615;
            zstd_1: "zstd-1", 131839, 0xc4c1ad80234c6a14;
            zstd_3: "zstd-3", 131232, 0x5fb77dc3af5435ee;
            zstd_9: "zstd-9", 129045, 0xd1282b3bf82cc673;
            zstd_19: "zstd-19", 129859, 0x766aaf513faecc0f;
            wkv: "wkv", 224410, 0x4a07a05240af192f;
            wkv_words: "wkv-words", 285756, 0xda1bb5c63fd8e717;
            page_lz: "page-lz", 183159, 0x630edba13bd52170;
            page_lz_fast: "page-lz-fast", 187596, 0x36d84c09ccd92fcc;
            lzo: "lzo", 237213, 0x034707eb859ca45a;
            lzrw: "lzrw1-a", 244596, 0x3ce51f4ef1633556;
            wkdm: "wkdm", 258590, 0x93209f15a68c7c85;
            wk4x4: "wk4x4", 256414, 0x8495909be77256a5;
            pbpm: "pbpm", 240527, 0xee54f3a688830f92;
            pbpm_separate: "pbpm-separate", 240848, 0x9e97c3d1af2f3c04;
            pbpm_single: "pbpm-single", 240892, 0x5a4411b6a0788711;
        }
    };
}
