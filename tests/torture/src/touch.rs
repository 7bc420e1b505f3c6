//! Loads and stores that may be refused.
//!
//! The instruction that may fault has a known address, and the signal handler continues behind it.
//! That does what sigsetjmp and siglongjmp do in C, which the language does not support.

use std::cell::Cell;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl torture_load",
    "torture_load:",
    "movzx eax, byte ptr [rdi]",
    "ret",
    ".p2align 4",
    ".globl torture_store",
    "torture_store:",
    "mov byte ptr [rdi], sil",
    "xor eax, eax",
    "ret",
    ".p2align 4",
    ".globl torture_refused",
    "torture_refused:",
    "mov eax, -1",
    "ret",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".text",
    ".p2align 4",
    ".globl torture_load",
    "torture_load:",
    "ldrb w0, [x0]",
    "ret",
    ".p2align 4",
    ".globl torture_store",
    "torture_store:",
    "strb w1, [x0]",
    "mov w0, #0",
    "ret",
    ".p2align 4",
    ".globl torture_refused",
    "torture_refused:",
    "mov w0, #-1",
    "ret",
);

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("loads and stores that may be refused are written for x86-64 and AArch64 only");

unsafe extern "C" {
    fn torture_load(address: usize) -> i32;
    fn torture_store(address: usize, byte: i32) -> i32;
    fn torture_refused();
}

/// How an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub signal: i32,
    pub code: i32,
    pub address: usize,
}

thread_local! {
    static REFUSAL: Cell<Refusal> =
        const { Cell::new(Refusal { signal: 0, code: 0, address: 0 }) };
}

/// Loads a byte from memory that may not be readable.
pub(crate) fn load(address: usize) -> Result<u8, Refusal> {
    // SAFETY: when the load faults, the handler of `handlers` lets the function return -1; a load
    // that does not fault has no effect.
    let result = unsafe { torture_load(address) };
    compiler_fence(SeqCst);
    u8::try_from(result).map_err(|_| REFUSAL.get())
}

/// Stores a byte to memory that may not be writable.
///
/// # Safety
/// If the store is not refused, it must do no harm.
pub(crate) unsafe fn store(address: usize, byte: u8) -> Result<(), Refusal> {
    compiler_fence(SeqCst);
    // SAFETY: as in `load`; by the contract of this function the store does no harm.
    let result = unsafe { torture_store(address, i32::from(byte)) };
    if result == 0 { Ok(()) } else { Err(REFUSAL.get()) }
}

/// Where to go on after a fault at `instruction`, if it was one of the instructions above.
pub(crate) fn recover(instruction: usize, refusal: Refusal) -> Option<usize> {
    let loading = torture_load as *const () as usize;
    let storing = torture_store as *const () as usize;
    if instruction != loading && instruction != storing {
        return None;
    }
    REFUSAL.set(refusal);
    Some(torture_refused as *const () as usize)
}
