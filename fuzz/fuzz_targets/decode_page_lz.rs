#![no_main]

use libfuzzer_sys::fuzz_target;
use ramfold_codec::Codec;

fuzz_target!(|data: &[u8]| {
    ramfold_fuzz::decode(Codec::from_name("page-lz").expect("a codec's name"), data);
});
