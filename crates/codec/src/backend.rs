//! Which instructions a codec works with.

#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64::{Avx2, Avx512};
use crate::{page_lz, same_filled, wkv};

/// The instructions that codecs with vector code use. All give the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend(Inner);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inner {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Backend {
    /// No vector instructions: what the others are checked against.
    pub const SCALAR: Backend = Backend(Inner::Scalar);

    /// All that work here, the best last.
    pub fn available() -> impl Iterator<Item = Backend> {
        #[cfg(target_arch = "x86_64")]
        let vector = [Avx2::detect().map(Inner::Avx2), Avx512::detect().map(Inner::Avx512)];
        #[cfg(not(target_arch = "x86_64"))]
        let vector = [];
        core::iter::once(Backend::SCALAR).chain(vector.into_iter().flatten().map(Backend))
    }

    /// The best that works here.
    pub fn best() -> Backend {
        Backend::available().last().unwrap_or(Backend::SCALAR)
    }

    /// What the instructions are called.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Inner::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(_) => "AVX-512",
        }
    }

    pub(crate) fn wkv(self) -> &'static wkv::Kernels {
        match self.0 {
            Inner::Scalar => &wkv::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.wkv(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.wkv(),
        }
    }

    pub(crate) fn page_lz(self) -> page_lz::Decoder {
        match self.0 {
            Inner::Scalar => page_lz::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.page_lz(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.page_lz(),
        }
    }

    pub(crate) fn same_filled(self) -> same_filled::Compare {
        match self.0 {
            Inner::Scalar => same_filled::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.same_filled(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.same_filled(),
        }
    }
}
