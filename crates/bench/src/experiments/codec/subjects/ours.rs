//! The codecs of ramfold.

use anyhow::{Context, Result};
use ramfold_codec::{
    Backend, Choice, Chosen, Decompressor, Encoding, MAX_DECOMPRESS_SCRATCH_BYTES, Objective, Page,
};

use super::{OBJECT_BYTES_MAX, Object, Room, Subject, Written};

/// `auto` as it compresses when memory is tight.
pub(super) const DENSITY: &str = "auto-density";

pub(in crate::experiments) struct Ours {
    name: &'static str,
    objective: Objective,
    compressor: Chosen<'static>,
    decompressor: Decompressor<'static>,
}

impl Ours {
    /// The codec of that name, where it is one of ours.
    ///
    /// # Errors
    /// When it does not work here.
    pub(in crate::experiments) fn named(name: &str, backend: Backend) -> Result<Option<Ours>> {
        let (name, objective, choice) = match name.parse::<Choice>() {
            Ok(choice) => (choice.name(), Objective::Speed, choice),
            Err(_) if name == DENSITY => (DENSITY, Objective::Density, Choice::Auto),
            Err(_) => return Ok(None),
        };
        Ours::new(name, choice, objective, backend).map(Some)
    }

    /// # Errors
    /// As [`Ours::named`].
    pub(in crate::experiments) fn new(
        name: &'static str,
        choice: Choice,
        objective: Objective,
        backend: Backend,
    ) -> Result<Ours> {
        // A handful of subjects live as long as the program.
        let compressor = Chosen::new(choice, vec![0; choice.scratch_bytes()].leak())
            .with_context(|| format!("cannot compress with {name}"))?;
        let decompressor = Decompressor::new(vec![0; MAX_DECOMPRESS_SCRATCH_BYTES].leak())
            .with_context(|| format!("cannot decompress {name}"))?;
        let compressor = compressor.with_backend(backend);
        let decompressor = decompressor.with_backend(backend);
        Ok(Ours { name, objective, compressor, decompressor })
    }
}

impl Subject for Ours {
    fn name(&self) -> &str {
        self.name
    }

    fn compress(&mut self, page: &Page, out: &mut Room) -> Option<Written> {
        let written = self.compressor.compress(page, self.objective, &mut out[..OBJECT_BYTES_MAX]);
        written.ok().map(|(encoding, len)| Written { encoding: encoding.into(), len })
    }

    fn decompress(&mut self, object: Object<'_>, page: &mut Page) -> Result<()> {
        let encoding = Encoding::try_from(object.encoding)?;
        Ok(self.decompressor.decompress(encoding, object.bytes, page)?)
    }
}
