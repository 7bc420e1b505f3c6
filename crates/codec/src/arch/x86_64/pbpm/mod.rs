//! PBPM's kernels.

mod avx2;
mod avx512;
mod codes;

use super::{Avx2, Avx512};
use crate::pbpm::Kernels;

impl Avx2 {
    pub(crate) fn pbpm(self) -> &'static Kernels {
        &avx2::KERNELS
    }
}

impl Avx512 {
    pub(crate) fn pbpm(self) -> &'static Kernels {
        &avx512::KERNELS
    }
}
