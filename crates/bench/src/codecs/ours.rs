//! The codecs of ramfold.

use anyhow::{Context, Result};
use ramfold_codec::{
    Backend, Codec, Compressor, Decompressor, MAX_DECOMPRESS_SCRATCH_BYTES, Page,
    compress_scratch_bytes,
};

use super::Subject;

pub struct Ours {
    codec: Codec,
    compressor: Compressor<'static>,
    decompressor: Decompressor<'static>,
}

impl Ours {
    pub fn new(codec: Codec, backend: Backend) -> Result<Ours> {
        // A handful of subjects live as long as the program.
        let compressor = Compressor::new(codec, vec![0; compress_scratch_bytes(codec)].leak())
            .with_context(|| format!("cannot compress with {codec}"))?;
        let decompressor = Decompressor::new(vec![0; MAX_DECOMPRESS_SCRATCH_BYTES].leak())
            .with_context(|| format!("cannot decompress {codec}"))?;
        let compressor = compressor.with_backend(backend);
        let decompressor = decompressor.with_backend(backend);
        Ok(Ours { codec, compressor, decompressor })
    }
}

impl Subject for Ours {
    fn name(&self) -> &str {
        self.codec.name()
    }

    fn compress(&mut self, page: &Page, room: usize, out: &mut [u8]) -> Option<usize> {
        self.compressor.compress(page, &mut out[..room]).ok()
    }

    fn decompress(&mut self, object: &[u8], page: &mut Page) -> Result<()> {
        Ok(self.decompressor.decompress(self.codec.encoding(), object, page)?)
    }
}
