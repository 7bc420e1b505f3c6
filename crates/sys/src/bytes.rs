//! Copying, filling and comparing bytes without the C library: functions that compilers insert
//! calls of. The agent must not use those of the program, which may define functions of these
//! names.
//!
//! They have the arguments and results of memmove, memset, memcmp and strlen.

use core::arch::naked_asm;
use core::ffi::c_char;

/// As memmove(3), and so as memcpy(3).
///
/// # Safety
/// As memmove(3): both ranges are `bytes` long; they may overlap.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb 20f",
        "cmp rdx, 32",
        "ja 2f",
        // 16 to 32 bytes: the first and the last 16. All is read before anything is written.
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + rdx - 16], xmm1",
        "ret",
        "2:",
        "cmp rdx, 64",
        "ja 3f",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + rdx - 32]",
        "movups xmm3, [rsi + rdx - 16]",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + rdx - 32], xmm2",
        "movups [rdi + rdx - 16], xmm3",
        "ret",
        "3:",
        "mov rcx, rdi",
        "sub rcx, rsi",
        "cmp rcx, rdx",
        "jb 8f",
        // Upwards: the last 64 bytes are kept for the end, the rest by 64.
        "cmp rdx, 1024",
        "jae 6f",
        "movups xmm4, [rsi + rdx - 64]",
        "movups xmm5, [rsi + rdx - 48]",
        "movups xmm6, [rsi + rdx - 32]",
        "movups xmm7, [rsi + rdx - 16]",
        "lea r8, [rdi + rdx - 64]",
        "5:",
        "movups xmm0, [rsi]",
        "movups xmm1, [rsi + 16]",
        "movups xmm2, [rsi + 32]",
        "movups xmm3, [rsi + 48]",
        "add rsi, 64",
        "movups [rdi], xmm0",
        "movups [rdi + 16], xmm1",
        "movups [rdi + 32], xmm2",
        "movups [rdi + 48], xmm3",
        "add rdi, 64",
        "cmp rdi, r8",
        "jb 5b",
        "movups [r8], xmm4",
        "movups [r8 + 16], xmm5",
        "movups [r8 + 32], xmm6",
        "movups [r8 + 48], xmm7",
        "ret",
        // The processor knows best how to copy much.
        "6:",
        "mov rcx, rdx",
        "rep movsb",
        "ret",
        // Downwards, where the end of the one lies in the other: the first 64 bytes are kept.
        "8:",
        "movups xmm4, [rsi]",
        "movups xmm5, [rsi + 16]",
        "movups xmm6, [rsi + 32]",
        "movups xmm7, [rsi + 48]",
        "lea r8, [rdi + 64]",
        "add rsi, rdx",
        "add rdi, rdx",
        "9:",
        "movups xmm0, [rsi - 16]",
        "movups xmm1, [rsi - 32]",
        "movups xmm2, [rsi - 48]",
        "movups xmm3, [rsi - 64]",
        "sub rsi, 64",
        "movups [rdi - 16], xmm0",
        "movups [rdi - 32], xmm1",
        "movups [rdi - 48], xmm2",
        "movups [rdi - 64], xmm3",
        "sub rdi, 64",
        "cmp rdi, r8",
        "ja 9b",
        "movups [rax], xmm4",
        "movups [rax + 16], xmm5",
        "movups [rax + 32], xmm6",
        "movups [rax + 48], xmm7",
        "ret",
        // Less than 16.
        "20:",
        "cmp edx, 8",
        "jb 21f",
        "mov rcx, [rsi]",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], r8",
        "ret",
        "21:",
        "cmp edx, 4",
        "jb 22f",
        "mov ecx, [rsi]",
        "mov r8d, [rsi + rdx - 4]",
        "mov [rdi], ecx",
        "mov [rdi + rdx - 4], r8d",
        "ret",
        "22:",
        "test edx, edx",
        "jz 23f",
        "movzx ecx, byte ptr [rsi]",
        "movzx r8d, byte ptr [rsi + rdx - 1]",
        "lea r10, [rdi + rdx - 1]",
        "shr edx, 1",
        "movzx r9d, byte ptr [rsi + rdx]",
        "mov [rdi + rdx], r9b",
        "mov [r10], r8b",
        "mov [rdi], cl",
        "23:",
        "ret",
    )
}

/// As memmove(3), and so as memcpy(3).
///
/// # Safety
/// As memmove(3): both ranges are `bytes` long; they may overlap.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    naked_asm!(
        "sub x3, x0, x1",
        "cmp x3, x2",
        "b.lo 4f",
        // Upwards.
        "mov x4, x0",
        "1:",
        "subs x2, x2, #32",
        "b.lo 2f",
        "ldp q0, q1, [x1], #32",
        "stp q0, q1, [x4], #32",
        "b 1b",
        "2:",
        "adds x2, x2, #32",
        "b.eq 9f",
        "3:",
        "ldrb w5, [x1], #1",
        "strb w5, [x4], #1",
        "subs x2, x2, #1",
        "b.ne 3b",
        "ret",
        // Downwards, where the end of the one lies in the other.
        "4:",
        "add x4, x0, x2",
        "add x1, x1, x2",
        "5:",
        "subs x2, x2, #32",
        "b.lo 6f",
        "ldp q0, q1, [x1, #-32]!",
        "stp q0, q1, [x4, #-32]!",
        "b 5b",
        "6:",
        "adds x2, x2, #32",
        "b.eq 9f",
        "7:",
        "ldrb w5, [x1, #-1]!",
        "strb w5, [x4, #-1]!",
        "subs x2, x2, #1",
        "b.ne 7b",
        "9:",
        "ret",
    )
}

/// As memset(3).
///
/// # Safety
/// As memset(3): the range is writable.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn fill(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "movzx esi, sil",
        "mov rcx, 0x0101010101010101",
        "imul rsi, rcx",
        "cmp rdx, 16",
        "jb 4f",
        "movq xmm0, rsi",
        "punpcklqdq xmm0, xmm0",
        "cmp rdx, 512",
        "ja 3f",
        "lea r8, [rdi + rdx - 16]",
        "2:",
        "movups [rdi], xmm0",
        "add rdi, 16",
        "cmp rdi, r8",
        "jb 2b",
        "movups [r8], xmm0",
        "ret",
        "3:",
        "mov r8, rax",
        "mov eax, esi",
        "mov rcx, rdx",
        "rep stosb",
        "mov rax, r8",
        "ret",
        // Less than 16.
        "4:",
        "cmp edx, 8",
        "jb 5f",
        "mov [rdi], rsi",
        "mov [rdi + rdx - 8], rsi",
        "ret",
        "5:",
        "cmp edx, 4",
        "jb 6f",
        "mov [rdi], esi",
        "mov [rdi + rdx - 4], esi",
        "ret",
        "6:",
        "test edx, edx",
        "jz 7f",
        "mov [rdi], sil",
        "mov [rdi + rdx - 1], sil",
        "shr edx, 1",
        "mov [rdi + rdx], sil",
        "7:",
        "ret",
    )
}

/// As memset(3).
///
/// # Safety
/// As memset(3): the range is writable.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn fill(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    naked_asm!(
        "dup v0.16b, w1",
        "mov x4, x0",
        "1:",
        "subs x2, x2, #16",
        "b.lo 2f",
        "str q0, [x4], #16",
        "b 1b",
        "2:",
        "adds x2, x2, #16",
        "b.eq 4f",
        "3:",
        "strb w1, [x4], #1",
        "subs x2, x2, #1",
        "b.ne 3b",
        "4:",
        "ret",
    )
}

/// As memcmp(3), and so as bcmp(3).
///
/// # Safety
/// As memcmp(3): both ranges are readable.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn compare(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    naked_asm!(
        "1:",
        "cmp rdx, 8",
        "jb 2f",
        "mov rax, [rdi]",
        "mov rcx, [rsi]",
        "cmp rax, rcx",
        "jne 4f",
        "add rdi, 8",
        "add rsi, 8",
        "sub rdx, 8",
        "jmp 1b",
        "2:",
        "test rdx, rdx",
        "jz 3f",
        "movzx eax, byte ptr [rdi]",
        "movzx ecx, byte ptr [rsi]",
        "sub eax, ecx",
        "jne 5f",
        "inc rdi",
        "inc rsi",
        "dec rdx",
        "jmp 2b",
        "3:",
        "xor eax, eax",
        "ret",
        // The first bytes count most.
        "4:",
        "bswap rax",
        "bswap rcx",
        "cmp rax, rcx",
        "sbb eax, eax",
        "or eax, 1",
        "5:",
        "ret",
    )
}

/// As memcmp(3), and so as bcmp(3).
///
/// # Safety
/// As memcmp(3): both ranges are readable.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn compare(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    naked_asm!(
        "1:",
        "subs x2, x2, #8",
        "b.lo 2f",
        "ldr x3, [x0], #8",
        "ldr x4, [x1], #8",
        "cmp x3, x4",
        "b.eq 1b",
        // The first bytes count most.
        "rev x3, x3",
        "rev x4, x4",
        "cmp x3, x4",
        "cset w0, hi",
        "csinv w0, w0, wzr, hs",
        "ret",
        "2:",
        "adds x2, x2, #8",
        "b.eq 4f",
        "3:",
        "ldrb w3, [x0], #1",
        "ldrb w4, [x1], #1",
        "subs w3, w3, w4",
        "b.ne 5f",
        "subs x2, x2, #1",
        "b.ne 3b",
        "4:",
        "mov w3, #0",
        "5:",
        "mov w0, w3",
        "ret",
    )
}

/// As strlen(3).
///
/// # Safety
/// As strlen(3): the text ends with zero.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub unsafe extern "C" fn length(text: *const c_char) -> usize {
    naked_asm!(
        "mov rax, rdi",
        "2:",
        "cmp byte ptr [rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3:",
        "sub rax, rdi",
        "ret",
    )
}

/// As strlen(3).
///
/// # Safety
/// As strlen(3): the text ends with zero.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub unsafe extern "C" fn length(text: *const c_char) -> usize {
    naked_asm!(
        "mov x1, x0",
        "1:",
        "ldrb w2, [x1], #1",
        "cbnz w2, 1b",
        "sub x0, x1, x0",
        "sub x0, x0, #1",
        "ret",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: usize = 1100;

    fn numbered(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index * 7 % 251 + 1) as u8).collect()
    }

    #[test]
    fn every_length_is_copied_whichever_way_the_ranges_overlap() {
        for bytes in (0..300).chain(1000..LONGEST) {
            for shift in [0usize, 1, 7, 16, 31, 64, 65, 200] {
                for up in [false, true] {
                    let (to, from) = if up { (shift, 0) } else { (0, shift) };
                    let mut memory = numbered(LONGEST + 300);
                    let mut expected = memory.clone();
                    expected.copy_within(from..from + bytes, to);
                    let start = memory.as_mut_ptr();
                    // SAFETY: both ranges lie in the vector.
                    let returned = unsafe { copy(start.add(to), start.add(from), bytes) };
                    assert_eq!(returned, start.wrapping_add(to));
                    assert!(memory == expected, "{bytes} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn every_length_is_filled_and_nothing_beside_it() {
        for bytes in (0..100).chain(480..LONGEST) {
            let mut memory = numbered(LONGEST + 20);
            let mut expected = memory.clone();
            expected[3..3 + bytes].fill(0xa5);
            let start = memory.as_mut_ptr().wrapping_add(3);
            // SAFETY: the range lies in the vector.
            assert_eq!(unsafe { fill(start, 0x1a5, bytes) }, start);
            assert!(memory == expected, "{bytes} bytes");
        }
    }

    #[test]
    fn the_first_difference_decides() {
        let same = numbered(60);
        for bytes in 0..same.len() {
            // SAFETY: as long as is said.
            assert_eq!(unsafe { compare(same.as_ptr(), same.clone().as_ptr(), bytes) }, 0);
            for at in 0..bytes {
                for (byte, later) in [(0, 255), (255, 0), (0x80, 0x7f)] {
                    let mut other = same.clone();
                    other[at] = byte;
                    other[at + 1..].fill(later);
                    // SAFETY: as above.
                    let order = unsafe { compare(same.as_ptr(), other.as_ptr(), bytes) };
                    assert_eq!(order.signum(), same[..bytes].cmp(&other[..bytes]) as i32);
                }
            }
        }
    }

    #[test]
    fn the_length_of_a_text() {
        for text in [c"", c"a", c"some more"] {
            // SAFETY: it ends with zero.
            assert_eq!(unsafe { length(text.as_ptr()) }, text.to_bytes().len());
        }
    }
}
