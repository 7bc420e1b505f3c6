//! WKv's kernels.

mod avx2;
mod avx512;

use super::{Avx2, Avx512};
use crate::wkv::Kernels;

impl Avx2 {
    pub(crate) fn wkv(self) -> &'static Kernels {
        &avx2::KERNELS
    }
}

impl Avx512 {
    pub(crate) fn wkv(self) -> &'static Kernels {
        &avx512::KERNELS
    }
}
