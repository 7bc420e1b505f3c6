//! Which instructions a codec works with.

#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64::Avx2;

/// The instructions that codecs with vector code use. All give the same bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backend(Inner);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inner {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// Proof of what this architecture does not have.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) enum Avx2 {}

impl Backend {
    /// No vector instructions: what the others are checked against.
    pub const SCALAR: Backend = Backend(Inner::Scalar);

    /// All that work here, the best last.
    pub fn available() -> impl Iterator<Item = Backend> {
        #[cfg(target_arch = "x86_64")]
        let vector = Avx2::detect().map(|avx2| Backend(Inner::Avx2(avx2)));
        #[cfg(not(target_arch = "x86_64"))]
        let vector = None;
        core::iter::once(Backend::SCALAR).chain(vector)
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
        }
    }

    pub(crate) const fn avx2(self) -> Option<Avx2> {
        match self.0 {
            Inner::Scalar => None,
            #[cfg(target_arch = "x86_64")]
            Inner::Avx2(avx2) => Some(avx2),
        }
    }
}
