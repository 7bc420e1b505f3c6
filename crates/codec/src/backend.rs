//! The instructions that a codec works with.

#[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
use crate::arch::aarch64;
#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64::{Avx2, Avx512};
use crate::{lz, page_lz, pbpm, same_filled, wkv};

/// The instructions that codecs with vector code use. The objects are the same with all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend(Inner);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inner {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
    Neon,
}

impl Backend {
    /// No vector instructions. The others are tested against this one.
    pub const SCALAR: Backend = Backend(Inner::Scalar);

    /// All that this processor has, the best last.
    pub fn available() -> impl Iterator<Item = Backend> {
        [
            Some(Inner::Scalar),
            #[cfg(target_arch = "x86_64")]
            Avx2::detect().map(Inner::Avx2),
            #[cfg(target_arch = "x86_64")]
            Avx512::detect().map(Inner::Avx512),
            #[cfg(all(
                target_arch = "aarch64",
                target_feature = "neon",
                target_endian = "little"
            ))]
            Some(Inner::Neon),
        ]
        .into_iter()
        .flatten()
        .map(Backend)
    }

    /// The best that this processor has.
    pub fn best() -> Backend {
        Backend::available().last().unwrap_or(Backend::SCALAR)
    }

    /// A name for reports.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Inner::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(_) => "AVX-512",
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => "NEON",
        }
    }

    pub(crate) fn wkv(self) -> &'static wkv::Kernels {
        match self.0 {
            Inner::Scalar => &wkv::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.wkv(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.wkv(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => &aarch64::WKV,
        }
    }

    pub(crate) fn lz(self) -> lz::Compare {
        match self.0 {
            Inner::Scalar => lz::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.lz(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.lz(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => aarch64::LZ,
        }
    }

    pub(crate) fn pbpm(self) -> &'static pbpm::Kernels {
        match self.0 {
            Inner::Scalar => &pbpm::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.pbpm(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.pbpm(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => &pbpm::SCALAR,
        }
    }

    pub(crate) fn page_lz(self) -> page_lz::Decoder {
        match self.0 {
            Inner::Scalar => page_lz::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.page_lz(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.page_lz(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => page_lz::SCALAR,
        }
    }

    pub(crate) fn same_filled(self) -> same_filled::Compare {
        match self.0 {
            Inner::Scalar => same_filled::SCALAR,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => avx2.same_filled(),
            #[cfg(target_arch = "x86_64")]
            Inner::Avx512(avx512) => avx512.same_filled(),
            #[cfg(all(target_arch = "aarch64", target_feature = "neon", target_endian = "little"))]
            Inner::Neon => aarch64::SAME_FILLED,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// What belongs to the target: otherwise its tests would be passed by without a word.
    #[test]
    fn what_the_target_has_is_available() {
        let names: Vec<_> = Backend::available().map(Backend::name).collect();
        assert_eq!(names.first(), Some(&"scalar"));
        if cfg!(target_feature = "avx2") {
            assert!(names.contains(&"AVX2"), "{names:?}");
        }
        // NEON is part of every such target that has a standard library.
        if cfg!(all(target_arch = "aarch64", target_endian = "little")) {
            assert_eq!(names, ["scalar", "NEON"]);
        }
    }
}
