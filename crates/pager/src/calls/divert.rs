//! Finding the instructions by which the C library enters the kernel, and replacing them.

use core::ops::Range;
use core::slice;
use core::sync::atomic::Ordering;

use ramfold_sys::code;

use super::stubs;
use crate::entry::CLibrary;

/// `syscall`.
const ENTER: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp + 8]`: what `syscall` does last before it enters the kernel.
const LOAD_SIXTH: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
const BYTES: usize = LOAD_SIXTH.len() + ENTER.len();

/// `jmp`, followed by a distance of four bytes.
const JUMP: u8 = 0xe9;
/// An instruction of two bytes that does nothing.
const NOTHING: [u8; 2] = [0x66, 0x90];

/// Diverts the system calls of this C library. What is not found in it as expected stays as it is.
pub fn divert(library: &CLibrary) {
    let Some(function) = library.function(c"syscall") else { return };
    if let Some(site) = find(function, &LOAD_SIXTH) {
        stubs::RETURN_FROM_SYSCALL.store(site + BYTES, Ordering::Relaxed);
        replace(site, JUMP, stubs::stub_syscall as *const () as usize);
    }
}

/// Where a function has this instruction of five bytes and enters the kernel right behind it.
fn find(function: Range<usize>, before: &[u8; 5]) -> Option<usize> {
    // SAFETY: code of the C library, which is readable and stays.
    let code = unsafe { slice::from_raw_parts(function.start as *const u8, function.len()) };
    let is_site = |bytes: &[u8]| bytes.starts_with(before) && bytes.ends_with(&ENTER);
    Some(function.start + code.windows(BYTES).position(is_site)?)
}

/// Puts a jump (or call) to `target` in the place of the instructions at a site.
fn replace(site: usize, instruction: u8, target: usize) {
    let distance = (target as isize).wrapping_sub((site + 5) as isize);
    let Ok(distance) = i32::try_from(distance) else { return };
    let mut bytes = [0; BYTES];
    bytes[0] = instruction;
    bytes[1..5].copy_from_slice(&distance.to_le_bytes());
    bytes[5..].copy_from_slice(&NOTHING);
    // Where it is forbidden all stays as it was.
    // SAFETY: called by the constructor, before the program has begun; the stub does what the
    // instructions did.
    let _ = unsafe { code::replace(site, &bytes) };
}
