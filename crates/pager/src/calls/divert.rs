//! Finding the instructions by which the C library enters the kernel, and replacing them.

use core::ffi::CStr;
use core::ops::Range;
use core::slice;
use core::sync::atomic::Ordering;

use ramfold_sys::code;
use ramfold_sys::raw::nr;

use super::stubs;
use crate::entry::CLibrary;

/// `syscall`.
const ENTER: [u8; 2] = [0x0f, 0x05];
/// `mov r9, [rsp + 8]`: what `syscall` does last before it enters the kernel.
const LOAD_SIXTH: [u8; 5] = [0x4c, 0x8b, 0x4c, 0x24, 0x08];
/// `mov eax, NUMBER`: what the other functions do last.
const LOAD_NUMBER: u8 = 0xb8;
const BYTES: usize = LOAD_SIXTH.len() + ENTER.len();

/// `jmp` and `call`, followed by a distance of four bytes.
const JUMP: u8 = 0xe9;
const CALL: u8 = 0xe8;
/// An instruction of two bytes that does nothing.
const NOTHING: [u8; 2] = [0x66, 0x90];

/// Functions of the C library that enter the kernel, and where they are to arrive.
const FUNCTIONS: [(&CStr, usize, unsafe extern "C" fn()); 7] = [
    (c"mmap", nr::MMAP, stubs::stub_mmap),
    (c"mprotect", nr::MPROTECT, stubs::stub_mprotect),
    (c"mremap", nr::MREMAP, stubs::stub_mremap),
    (c"brk", nr::BRK, stubs::stub_brk),
    (c"execve", nr::EXECVE, stubs::stub_execve),
    (c"execveat", nr::EXECVEAT, stubs::stub_execveat),
    (c"fexecve", nr::EXECVEAT, stubs::stub_execveat),
];

/// Diverts the system calls of this C library; `true` when all are. What is not found in it as
/// expected stays as it is.
pub(crate) fn divert(library: &CLibrary) -> bool {
    if let Some(function) = library.function(c"syscall")
        && let Some(site) = find(function, LOAD_SIXTH)
    {
        stubs::RETURN_FROM_SYSCALL.store(site + BYTES, Ordering::Relaxed);
        replace(site, JUMP, stubs::stub_syscall);
    }
    let divert_one = |&(name, number, stub): &(&CStr, usize, unsafe extern "C" fn())| {
        let [a, b, c, d] = (number as u32).to_le_bytes();
        let site =
            library.function(name).and_then(|function| find(function, [LOAD_NUMBER, a, b, c, d]));
        site.is_some_and(|site| replace(site, CALL, stub))
    };
    FUNCTIONS.iter().filter(|function| !divert_one(function)).count() == 0
}

/// Where a function has this instruction of five bytes and enters the kernel right behind it.
/// `None` also where it keeps something below the end of its stack, where a call would write.
fn find(function: Range<usize>, before: [u8; 5]) -> Option<usize> {
    // SAFETY: code of the C library, which is readable and stays.
    let code = unsafe { slice::from_raw_parts(function.start as *const u8, function.len()) };
    let is_site = |bytes: &[u8]| bytes.starts_with(&before) && bytes.ends_with(&ENTER);
    let offset = code.windows(BYTES).position(is_site)?;
    (!uses_red_zone(&code[..offset])).then_some(function.start + offset)
}

/// Does an instruction here name an address `[rsp - N]`? Its last bytes are a mode (an address with
/// an index byte and a distance of one byte), that index byte for rsp, and a negative distance.
fn uses_red_zone(code: &[u8]) -> bool {
    code.windows(3).any(|bytes| {
        bytes[0] & 0b1100_0111 == 0b0100_0100 && bytes[1] == 0x24 && bytes[2] & 0x80 != 0
    })
}

/// Puts a jump (or call) to `target` in the place of the instructions at a site; `false` where that
/// cannot be done.
fn replace(site: usize, instruction: u8, target: unsafe extern "C" fn()) -> bool {
    let target = target as *const () as isize;
    let distance = target.wrapping_sub((site + 5) as isize);
    let Ok(distance) = i32::try_from(distance) else { return false };
    let mut bytes = [0; BYTES];
    bytes[0] = instruction;
    bytes[1..5].copy_from_slice(&distance.to_le_bytes());
    bytes[5..].copy_from_slice(&NOTHING);
    // SAFETY: called by the constructor, before the program has begun; the stub does what the
    // instructions did.
    unsafe { code::replace(site, &bytes) }.is_ok()
}
