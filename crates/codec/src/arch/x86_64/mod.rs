//! Vector instructions of x86-64, and whether the processor has them.

pub(crate) mod wlz;

use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use core::sync::atomic::{AtomicU8, Ordering};

/// Proof that the processor and the kernel know AVX2, and with it BMI1, BMI2, LZCNT and POPCNT, which
/// came together (Intel Haswell, AMD Excavator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Avx2(());

const UNKNOWN: u8 = 0;
const MISSING: u8 = 1;
const THERE: u8 = 2;

static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);

impl Avx2 {
    /// Asked once: in a virtual machine each question goes to the host.
    pub(crate) fn detect() -> Option<Avx2> {
        let answer = match ANSWER.load(Ordering::Relaxed) {
            UNKNOWN => {
                let answer = if is_there() { THERE } else { MISSING };
                ANSWER.store(answer, Ordering::Relaxed);
                answer
            }
            answer => answer,
        };
        (answer == THERE).then_some(Avx2(()))
    }
}

/// Bits of CPUID, by Intel's Software Developer's Manual, volume 2A.
fn is_there() -> bool {
    const LEAF_1_ECX: u32 = 1 << 23 | 1 << 27 | 1 << 28; // POPCNT, OSXSAVE, AVX
    const LEAF_7_EBX: u32 = 1 << 3 | 1 << 5 | 1 << 8; // BMI1, AVX2, BMI2
    const EXTENDED_1_ECX: u32 = 1 << 5; // LZCNT
    const XCR0: u64 = 1 << 1 | 1 << 2; // the kernel saves SSE and AVX registers
    const EXTENDED: u32 = 0x8000_0000;
    let has = |register: u32, bits: u32| register & bits == bits;
    __cpuid(0).eax >= 7
        && __cpuid(EXTENDED).eax > EXTENDED
        && has(__cpuid(1).ecx, LEAF_1_ECX)
        && has(__cpuid_count(7, 0).ebx, LEAF_7_EBX)
        && has(__cpuid(EXTENDED + 1).ecx, EXTENDED_1_ECX)
        // SAFETY: OSXSAVE, asked for above, says that the instruction may be used.
        && unsafe { saved_registers() } & XCR0 == XCR0
}

/// # Safety
/// CPUID must say OSXSAVE.
#[target_feature(enable = "xsave")]
fn saved_registers() -> u64 {
    // SAFETY: by the caller's word.
    unsafe { _xgetbv(0) }
}
