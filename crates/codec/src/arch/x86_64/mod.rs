//! Vector instructions of x86-64, and whether the processor has them.

mod avx2;
mod avx512;
mod lz;
mod page_lz;
mod pbpm;
mod same_filled;
mod wkv;

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU8, Ordering};

/// Proof that the processor and the kernel know AVX2, and with it BMI1, BMI2, LZCNT and POPCNT,
/// which came together (Intel Haswell, AMD Excavator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Avx2(());

/// Proof of what [`Avx2`] proves and of AVX-512 as it is since Intel's Ice Lake and AMD's Zen 4:
/// F, BW, DQ, VL, VBMI, VBMI2, BITALG and VPOPCNTDQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Avx512(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Avx2> {
        (level() >= AVX2).then_some(Avx2(()))
    }
}

impl Avx512 {
    pub(crate) fn detect() -> Option<Avx512> {
        (level() >= AVX512).then_some(Avx512(()))
    }
}

const UNKNOWN: u8 = 0;
const NEITHER: u8 = 1;
const AVX2: u8 = 2;
const AVX512: u8 = 3;

/// Which of them is there, asked once: in a virtual machine each question goes to the host.
fn level() -> u8 {
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let level = ask();
            ANSWER.store(level, Ordering::Relaxed);
            level
        }
        level => level,
    }
}

/// Bits of CPUID and XCR0, by Intel's Software Developer's Manual, volumes 1 and 2A.
fn ask() -> u8 {
    const LEAF_1_ECX: u32 = 1 << 23 | 1 << 27 | 1 << 28; // POPCNT, OSXSAVE, AVX
    const EXTENDED: u32 = 0x8000_0000;
    const EXTENDED_1_ECX: u32 = 1 << 5; // LZCNT
    const LEAF_7_EBX: u32 = 1 << 3 | 1 << 5 | 1 << 8; // BMI1, AVX2, BMI2
    const XCR0: u64 = 0b110; // SSE and AVX registers are saved
    const LEAF_7_EBX_512: u32 = 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31; // F, DQ, BW, VL
    // VBMI, VBMI2, BITALG, VPOPCNTDQ
    const LEAF_7_ECX_512: u32 = 1 << 1 | 1 << 6 | 1 << 12 | 1 << 14;
    const XCR0_512: u64 = 0b1110_0110; // and the masks and wide registers
    let has = |register: u32, bits: u32| register & bits == bits;
    if cfg!(miri) {
        // It knows no CPUID, and of instructions those that it was told of.
        return if cfg!(target_feature = "avx2") { AVX2 } else { NEITHER };
    }
    if __cpuid(0).eax < 7
        || __cpuid(EXTENDED).eax <= EXTENDED
        || !has(__cpuid(1).ecx, LEAF_1_ECX)
        || !has(__cpuid(EXTENDED + 1).ecx, EXTENDED_1_ECX)
    {
        return NEITHER;
    }
    let leaf_7 = __cpuid_count(7, 0);
    // SAFETY: OSXSAVE, asked for above, says that the instruction may be used.
    let saved = unsafe { saved_registers() };
    if !has(leaf_7.ebx, LEAF_7_EBX) || saved & XCR0 != XCR0 {
        return NEITHER;
    }
    let wide = has(leaf_7.ebx, LEAF_7_EBX_512)
        && has(leaf_7.ecx, LEAF_7_ECX_512)
        && saved & XCR0_512 == XCR0_512;
    if wide { AVX512 } else { AVX2 }
}

/// # Safety
/// CPUID must say OSXSAVE.
#[target_feature(enable = "xsave")]
fn saved_registers() -> u64 {
    // SAFETY: by the caller's word.
    unsafe { _xgetbv(0) }
}
