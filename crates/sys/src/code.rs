//! Changing code that is mapped into this process.

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MprotectFlags, mprotect};

use crate::{Errno, PAGE_SIZE};

/// Overwrites instructions. The page becomes private to this process; the file behind it stays as
/// it is.
///
/// The kernel is asked to write (`/proc/self/mem`), for which the mapping keeps its access. Where
/// that is forbidden (`proc_mem.force_override`, Linux 6.12) the page is writable meanwhile.
///
/// # Errors
/// What mprotect(2) says where both are forbidden, as on a hardened system: nothing is changed.
///
/// # Safety
/// No thread can be about to execute the code at `address`, and code that runs it later works with
/// `bytes` in its place.
pub unsafe fn replace(address: usize, bytes: &[u8]) -> Result<(), Errno> {
    let by_kernel =
        rustix::fs::open(c"/proc/self/mem", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .and_then(|memory| rustix::io::pwrite(&memory, bytes, address as u64));
    if by_kernel == Ok(bytes.len()) {
        return Ok(());
    }
    let start = address & !(PAGE_SIZE - 1);
    let len = (address + bytes.len()).next_multiple_of(PAGE_SIZE) - start;
    let runnable = MprotectFlags::READ | MprotectFlags::EXEC;
    // SAFETY: only access is added; without EXEC no other thread could go on in this page.
    unsafe {
        mprotect(start as *mut _, len, runnable | MprotectFlags::WRITE)?;
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len());
        mprotect(start as *mut _, len, runnable)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    #[test]
    fn code_does_something_else_and_keeps_its_access() {
        // mov eax, 1; ret
        let before = [0xb8, 1, 0, 0, 0, 0xc3];
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory at a place of the kernel's choice, used by this test alone.
        unsafe {
            let page = mmap_anonymous(core::ptr::null_mut(), PAGE_SIZE, access, MapFlags::PRIVATE)
                .unwrap();
            page.cast::<[u8; 6]>().write(before);
            mprotect(page, PAGE_SIZE, MprotectFlags::READ | MprotectFlags::EXEC).unwrap();
            let function: extern "C" fn() -> i32 = core::mem::transmute(page);
            assert_eq!(function(), 1);
            replace(page as usize + 1, &[7]).unwrap();
            assert_eq!(function(), 7);
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let own = maps.lines().find(|line| line.starts_with(&format!("{:x}-", page as usize)));
            assert!(own.unwrap().contains(" r-xp "), "{own:?}");
            munmap(page, PAGE_SIZE).unwrap();
        }
    }
}
