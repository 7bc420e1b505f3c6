//! WKv's kernels with NEON: a vector of the page is four registers, and shuffles by tables close
//! gaps and open them: sixteen masks of four words, 256 of eight narrower elements.

mod decode;
mod encode;
mod registers;

use decode::{resolve, scatter, unpack};
use encode::{classify, gather, highest, pack, strides};

use crate::arch::kernels::wkv_kernels;
use crate::wkv::Kernels;

pub(crate) static KERNELS: Kernels = wkv_kernels!();
