//! Memory that was registered by mistake.
//!
//! A range is registered by its addresses. When the program has put something else there since the
//! look at the mappings (huge pages of hugetlbfs, say), a fault in it comes to us, and the kernel
//! refuses to fill it by small pages. Nothing of the program's was ever taken out there: the
//! mapping is taken out of the registration and left to the kernel.

use ramfold_sys::maps;
use ramfold_sys::uffd::Uffd;

/// Is the mapping at this address none of ours? Then it is not registered any more, and who waits
/// there goes on.
pub(super) fn release(uffd: &Uffd, address: usize) -> bool {
    let mut buffer = [0; 8192];
    let mut foreign = None;
    let looked = maps::for_each(&mut buffer, |mapping| {
        if mapping.range.contains(&address) && !mapping.is_private_anonymous() {
            foreign = Some(mapping.range.clone());
        }
    });
    // While a change is unread something of ours may have been moved to this place.
    match (looked, foreign) {
        (Ok(()), Some(range)) if !uffd.is_changing() => uffd.unregister(range).is_ok(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ramfold_sys::PAGE_SIZE;
    use ramfold_sys::uffd::{Event, register_mode};
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    const HUGE: usize = 2 << 20;

    #[test]
    fn huge_pages_that_were_registered_are_the_kernels_again() {
        let Ok((uffd, _)) = Uffd::open() else { return eprintln!("skipped: no userfaultfd") };
        uffd.enable(0).unwrap();
        let Some(_page) = OneHugePage::provide() else { return eprintln!("skipped: no huge page") };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: new memory at a place of the kernel's choice.
        let memory = unsafe { mmap_anonymous(core::ptr::null_mut(), HUGE, protection, flags) };
        let Ok(memory) = memory else { return eprintln!("skipped: no huge page") };
        let start = memory as usize;
        uffd.register(start..start + HUGE, register_mode::MISSING).unwrap();
        let toucher = std::thread::spawn(move || {
            // SAFETY: mapped above, and unmapped below only after this.
            unsafe { ((start + PAGE_SIZE) as *mut u8).write_volatile(7) };
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        let address = loop {
            assert!(Instant::now() < deadline, "no fault came");
            if let Some(Event::Pagefault { address, .. }) = uffd.read_event().unwrap() {
                break address;
            }
            std::thread::yield_now();
        };
        // SAFETY: the page is missing.
        let refused = unsafe { uffd.copy(address, [0; PAGE_SIZE].as_ptr(), PAGE_SIZE) };
        assert_eq!(refused.unwrap_err().errno, ramfold_sys::Errno::INVAL);
        assert!(release(&uffd, address));
        toucher.join().unwrap();
        // SAFETY: nobody uses it any more.
        unsafe { munmap(memory, HUGE) }.unwrap();
    }

    #[test]
    fn memory_of_ours_stays_registered() {
        let Ok((uffd, _)) = Uffd::open() else { return eprintln!("skipped: no userfaultfd") };
        uffd.enable(0).unwrap();
        let ours = ramfold_sys::mem::Reservation::new(PAGE_SIZE).unwrap();
        ours.commit(0, PAGE_SIZE).unwrap();
        let start = ours.as_ptr() as usize;
        let range = start..start + PAGE_SIZE;
        uffd.register(range.clone(), register_mode::MISSING).unwrap();
        assert!(!release(&uffd, start));
        assert_eq!(uffd.is_registered_anonymous(range), Ok(true));
    }

    /// One more huge page for the machine, which only root can give it; taken back at the end.
    struct OneHugePage {
        before: u64,
    }

    const COUNT: &str = "/proc/sys/vm/nr_hugepages";

    impl OneHugePage {
        fn provide() -> Option<OneHugePage> {
            let before = std::fs::read_to_string(COUNT).ok()?.trim().parse().ok()?;
            std::fs::write(COUNT, format!("{}", before + 1)).ok()?;
            Some(OneHugePage { before })
        }
    }

    impl Drop for OneHugePage {
        fn drop(&mut self) {
            if let Err(error) = std::fs::write(COUNT, format!("{}", self.before)) {
                eprintln!("{COUNT} is one more than it was: {error}");
            }
        }
    }
}
