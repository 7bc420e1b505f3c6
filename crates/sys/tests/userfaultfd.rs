//! The userfaultfd layer against the running kernel: every request and every event.
//!
//! Without permission to open one the tests say so and check nothing.

use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::RwLock;
use std::time::{Duration, Instant};

use ramfold_sys::pagemap::{PageRegion, Pagemap, Pages};
use ramfold_sys::uffd::{Event, Partial, Uffd, feature, register_mode};
use ramfold_sys::{Errno, PAGE_SIZE, mem};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap, mremap_fixed,
    munmap,
};

/// A userfaultfd with these features, or `None` where it may not be opened or the kernel lacks one.
fn open(features: u64) -> Option<Uffd> {
    let (uffd, _) = match Uffd::open() {
        Ok(opened) => opened,
        Err(error) => {
            println!("no userfaultfd here: {error:?}");
            return None;
        }
    };
    match uffd.enable(features) {
        Ok(_) => Some(uffd),
        Err(errno) => {
            println!("features {features:#x} are not to be had here: {errno}");
            None
        }
    }
}

/// MOVE calls pages busy that a child of this process still shares.
static CHILDREN: RwLock<()> = RwLock::new(());

/// Private anonymous memory, unmapped at the end.
struct Memory(Range<usize>);

impl Memory {
    fn new(pages: usize) -> Self {
        let length = pages * PAGE_SIZE;
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE).unwrap() as usize
        };
        Self(start..start + length)
    }

    fn page(&self, index: usize) -> usize {
        self.0.start + index * PAGE_SIZE
    }

    fn pages(&self, from: usize, count: usize) -> Range<usize> {
        self.page(from)..self.page(from + count)
    }

    fn write(&self, index: usize, byte: u8) {
        // SAFETY: within the mapping.
        unsafe { (self.page(index) as *mut u8).write_volatile(byte) };
    }

    fn read(&self, index: usize) -> u8 {
        // SAFETY: within the mapping.
        unsafe { (self.page(index) as *const u8).read_volatile() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: nothing of it is used any more; parts may be gone already.
        let unmapped = unsafe { munmap(self.0.start as *mut _, self.0.len()) };
        assert!(unmapped.is_ok());
    }
}

/// Far longer than anything here takes, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for the next message.
fn next(uffd: &Uffd) -> Event {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = uffd.read_event().unwrap() {
            return event;
        }
        assert!(Instant::now() < deadline, "no message came");
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        let _ = poll(&mut [PollFd::new(uffd, PollFlags::IN)], Some(&second));
    }
}

/// Lets another thread do something and returns the one message that comes of it, after which the
/// thread must end.
fn message_of(uffd: &Uffd, action: impl FnOnce() + Send) -> Event {
    std::thread::scope(|scope| {
        scope.spawn(action);
        next(uffd)
    })
}

/// The address that a thread waits for, and whether it writes.
fn fault(uffd: &Uffd) -> (usize, bool) {
    match next(uffd) {
        Event::Pagefault { address, write, .. } => (address, write),
        other => panic!("{other:?} instead of a fault"),
    }
}

fn errno(result: Result<(), Partial>) -> Errno {
    result.unwrap_err().errno
}

#[test]
fn missing_pages_are_copied_or_zeroed() {
    let Some(uffd) = open(feature::THREAD_ID) else { return };
    let memory = Memory::new(2);
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();
    let content = [7u8; PAGE_SIZE];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(0));
        assert_eq!(fault(&uffd), (memory.page(0), false));
        // SAFETY: the page is due that content.
        unsafe { uffd.copy(memory.page(0), content.as_ptr(), PAGE_SIZE) }.unwrap();
        assert_eq!(reader.join().unwrap(), 7);

        let writer = scope.spawn(|| memory.write(1, 9));
        assert_eq!(fault(&uffd), (memory.page(1), true));
        uffd.zeropage_without_wake(memory.page(1), PAGE_SIZE).unwrap();
        uffd.wake(memory.pages(1, 1)).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(memory.read(1), 9);
    // SAFETY: as above.
    let again = unsafe { uffd.copy(memory.page(1), content.as_ptr(), PAGE_SIZE) };
    assert_eq!(errno(again), Errno::EXIST);
    // Two pages of which the second is there: the first is done.
    madvise_dontneed(&memory, 0);
    // SAFETY: as above.
    let partial =
        unsafe { uffd.copy(memory.page(0), [1u8; 2 * PAGE_SIZE].as_ptr(), 2 * PAGE_SIZE) };
    assert_eq!(partial.unwrap_err().done, PAGE_SIZE);
}

fn madvise_dontneed(memory: &Memory, index: usize) {
    // SAFETY: nobody needs the page.
    unsafe { madvise(memory.page(index) as *mut _, PAGE_SIZE, Advice::LinuxDontNeed) }.unwrap();
}

#[test]
fn a_fault_that_is_woken_is_reported_again() {
    let Some(uffd) = open(0) else { return };
    let memory = Memory::new(1);
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| memory.read(0));
        let first = fault(&uffd);
        uffd.wake(memory.0.clone()).unwrap();
        assert_eq!(fault(&uffd), first);
        uffd.unregister(memory.0.clone()).unwrap();
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn moved_pages_are_missing_where_they_were() {
    let _no_child = CHILDREN.read().unwrap();
    let Some(uffd) = open(feature::MOVE) else { return };
    let pagemap = Pagemap::open().unwrap();
    let (from, to) = (Memory::new(3), Memory::new(3));
    uffd.register(from.0.clone(), register_mode::MISSING).unwrap();
    uffd.register(to.0.clone(), register_mode::MISSING).unwrap();
    let content = [5u8; PAGE_SIZE];
    for index in [0, 1] {
        // SAFETY: the page is due that content.
        unsafe { uffd.copy(from.page(index), content.as_ptr(), PAGE_SIZE) }.unwrap();
    }
    // SAFETY: both are registered, and this thread serves them.
    let moved = unsafe { uffd.move_pages(&pagemap, to.page(0), from.page(0), 3 * PAGE_SIZE) };
    assert_eq!(moved.unwrap_err().done, 2 * PAGE_SIZE);
    // SAFETY: as above.
    let hole = unsafe { uffd.move_pages(&pagemap, to.page(2), from.page(2), PAGE_SIZE) };
    assert_eq!(errno(hole), Errno::NOENT);
    assert_eq!((to.read(0), to.read(1)), (5, 5));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| from.read(0));
        assert_eq!(fault(&uffd), (from.page(0), false));
        // SAFETY: as above.
        unsafe { uffd.move_pages(&pagemap, from.page(0), to.page(0), PAGE_SIZE) }.unwrap();
        assert_eq!(reader.join().unwrap(), 5);
    });
    let mut runs = [PageRegion::default(); 4];
    let found = pagemap.present(to.0.clone(), usize::MAX, &mut runs, Pages::All).unwrap();
    assert_eq!(found.runs, 1);
    assert_eq!(runs[0].start as usize..runs[0].end as usize, to.pages(1, 1));
}

/// What the pager relies on in staging: registered for MOVE alone, a page the program gave up
/// (MADV_FREE) may vanish there, and then is zeros to whoever looks; once written to it stays.
#[test]
fn a_page_that_was_given_up_can_vanish_where_it_was_moved_to() {
    let _no_child = CHILDREN.read().unwrap();
    let Some(uffd) = open(feature::MOVE | feature::PAGEFAULT_FLAG_WP) else { return };
    let pagemap = Pagemap::open().unwrap();
    let (from, to) = (Memory::new(2), Memory::new(2));
    // SAFETY: the test's own memory.
    let advise = |memory: &Memory, advice| unsafe {
        madvise(memory.0.start as *mut _, memory.0.len(), advice).unwrap();
    };
    from.write(0, 5);
    from.write(1, 6);
    advise(&from, Advice::LinuxFree);
    uffd.register(from.0.clone(), register_mode::MISSING).unwrap();
    uffd.register(to.0.clone(), register_mode::WP).unwrap();
    // SAFETY: both are registered, and nobody else knows of them.
    unsafe { uffd.move_pages(&pagemap, to.page(0), from.page(0), 2 * PAGE_SIZE) }.unwrap();
    // SAFETY: the test's own memory.
    unsafe { mem::touch(to.page(1) as *mut u8) };
    assert_eq!(to.read(1), 6);
    // What the kernel does when memory runs short; it may need another look at the page.
    for _ in 0..100 {
        advise(&to, Advice::LinuxPageOut);
        if pagemap.has_page(to.page(0)) == Ok(false) {
            break;
        }
    }
    assert_eq!(pagemap.has_page(to.page(0)), Ok(false), "the kernel keeps it");
    assert_eq!((to.read(0), to.read(1)), (0, 6));
}

#[test]
fn writes_to_protected_pages_are_reported() {
    let Some(uffd) = open(feature::PAGEFAULT_FLAG_WP) else { return };
    let memory = Memory::new(2);
    memory.write(0, 1);
    memory.write(1, 1);
    uffd.register(memory.0.clone(), register_mode::MISSING | register_mode::WP).unwrap();
    uffd.write_protect(memory.pages(0, 1), true).unwrap();
    let pagemap = Pagemap::open().unwrap();
    let unprotected = || {
        let mut runs = [PageRegion::default(); 2];
        let range = memory.0.clone();
        let found = pagemap.present(range, usize::MAX, &mut runs, Pages::Unprotected).unwrap();
        (found.runs, runs[0].start as usize..runs[0].end as usize)
    };
    assert_eq!(unprotected(), (1, memory.pages(1, 1)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| memory.write(0, 2));
        match next(&uffd) {
            Event::Pagefault { address, write, write_protected, .. } => {
                assert_eq!((address, write, write_protected), (memory.page(0), true, true));
            }
            other => panic!("{other:?} instead of a fault"),
        }
        assert_eq!(memory.read(0), 1);
        uffd.write_protect(memory.pages(0, 1), false).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(memory.read(0), 2);
    assert_eq!(unprotected(), (1, memory.0.clone()));
}

#[test]
fn pages_of_a_shared_file_are_mapped() {
    let Some(uffd) = open(feature::MISSING_SHMEM) else { return };
    let file = memfd_create(c"ramfold-test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, PAGE_SIZE as u64).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let map = || {
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        unsafe { mmap(ptr::null_mut(), PAGE_SIZE, access, MapFlags::SHARED, file.as_fd(), 0) }
            .unwrap() as usize
    };
    let (here, there) = (map(), map());
    uffd.register(there..there + PAGE_SIZE, register_mode::MISSING).unwrap();
    let missing = uffd.continue_with_page_cache(there, PAGE_SIZE);
    assert_eq!(errno(missing), Errno::FAULT);
    // SAFETY: mapped above.
    unsafe { (here as *mut u8).write_volatile(3) };
    uffd.continue_with_page_cache(there, PAGE_SIZE).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { (there as *const u8).read_volatile() }, 3);
    for address in [here, there] {
        // SAFETY: not used any more.
        unsafe { munmap(address as *mut _, PAGE_SIZE) }.unwrap();
    }
}

#[test]
fn changes_of_the_address_space_are_told() {
    let features = feature::EVENT_REMOVE | feature::EVENT_REMAP | feature::EVENT_UNMAP;
    let Some(uffd) = open(features) else { return };
    let memory = Memory::new(8);
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();

    let removed = message_of(&uffd, || madvise_dontneed(&memory, 1));
    assert!(matches!(removed, Event::Remove(range) if range == memory.pages(1, 1)));

    let place = Memory::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (from, to) = (memory.page(2) as *mut _, place.page(0) as *mut _);
            let bytes = 2 * PAGE_SIZE;
            // SAFETY: nothing is kept in either.
            unsafe { mremap_fixed(from, bytes, bytes, MremapFlags::MAYMOVE, to) }.unwrap();
        });
        match next(&uffd) {
            Event::Remap { from, to, len } => {
                assert_eq!((from, to, len), (memory.page(2), place.page(0), 2 * PAGE_SIZE));
            }
            other => panic!("{other:?} instead of a move"),
        }
        // A move tells twice: the pager relies on that.
        assert!(matches!(next(&uffd), Event::Unmap(range) if range == memory.pages(2, 2)));
    });
    assert_eq!(uffd.is_registered_anonymous(place.0.clone()), Ok(true));

    let unmapped = message_of(&uffd, || {
        // SAFETY: nothing is kept there.
        unsafe { munmap(memory.page(5) as *mut _, PAGE_SIZE) }.unwrap();
    });
    assert!(matches!(unmapped, Event::Unmap(range) if range == memory.pages(5, 1)));
    // Growing in place is not told; what it grew by is registered all the same.
    let tail = memory.page(7) as *mut _;
    // SAFETY: the last page of the mapping, and free space behind it or an error.
    if unsafe { mremap(tail, PAGE_SIZE, 2 * PAGE_SIZE, MremapFlags::empty()) }.is_ok() {
        let end = memory.0.end;
        assert_eq!(uffd.is_registered_anonymous(end..end + PAGE_SIZE), Ok(true));
        drop_mapping(&uffd, end..end + PAGE_SIZE);
    }
    uffd.unregister(memory.pages(0, 2)).unwrap();
    uffd.unregister(place.0.clone()).unwrap();
    uffd.unregister(memory.pages(4, 1)).unwrap();
    uffd.unregister(memory.pages(6, 2)).unwrap();
}

fn drop_mapping(uffd: &Uffd, range: Range<usize>) {
    uffd.unregister(range.clone()).unwrap();
    // SAFETY: nothing is kept there.
    unsafe { munmap(range.start as *mut _, range.len()) }.unwrap();
}

#[test]
fn an_unread_event_stops_all_else() {
    let Some(uffd) = open(feature::EVENT_REMOVE) else { return };
    let memory = Memory::new(2);
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();
    assert!(!uffd.is_changing());
    std::thread::scope(|scope| {
        scope.spawn(|| madvise_dontneed(&memory, 0));
        let deadline = Instant::now() + PATIENCE;
        while !uffd.is_changing() {
            assert!(Instant::now() < deadline, "no change is seen");
            std::thread::yield_now();
        }
        assert_eq!(errno(uffd.zeropage_without_wake(memory.page(1), PAGE_SIZE)), Errno::AGAIN);
        assert_eq!(uffd.is_registered_anonymous(memory.0.clone()), Err(Errno::AGAIN));
        assert!(matches!(next(&uffd), Event::Remove(_)));
    });
    assert!(!uffd.is_changing());
}

#[test]
fn a_range_with_a_hole_is_registered_in_part_and_found_out() {
    let Some(uffd) = open(0) else { return };
    let memory = Memory::new(6);
    assert_eq!(uffd.is_registered_anonymous(memory.0.clone()), Ok(false));
    // SAFETY: nothing is kept there.
    unsafe { munmap(memory.page(2) as *mut _, PAGE_SIZE) }.unwrap();
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();
    assert_eq!(uffd.is_registered_anonymous(memory.0.clone()), Ok(false));
    assert_eq!(uffd.is_registered_anonymous(memory.pages(0, 2)), Ok(true));
    assert_eq!(uffd.is_registered_anonymous(memory.pages(3, 3)), Ok(true));
    // What is mapped there next does not belong to the registration.
    // SAFETY: the place is free.
    unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        mmap_anonymous(memory.page(2) as *mut _, PAGE_SIZE, access, flags).unwrap();
    }
    assert_eq!(uffd.is_registered_anonymous(memory.0.clone()), Ok(false));
    assert_eq!(uffd.is_registered_anonymous(memory.pages(2, 1)), Ok(false));
    // The question itself has changed nothing.
    assert_eq!(memory.read(2), 0);
    uffd.unregister(memory.0.clone()).unwrap();
    assert_eq!(memory.read(0), 0);
}

#[test]
fn a_fork_is_told_with_a_descriptor_for_the_child() {
    let _child = CHILDREN.write().unwrap();
    let Some(uffd) = open(feature::EVENT_FORK) else { return };
    let memory = Memory::new(1);
    uffd.register(memory.0.clone(), register_mode::MISSING).unwrap();
    let mut child = 0;
    let event = {
        let child = &mut child;
        let page = memory.page(0);
        message_of(&uffd, move || {
            // SAFETY: the child reads one byte and ends, by system calls alone.
            unsafe {
                *child = libc::fork();
                if *child == 0 {
                    libc::_exit(i32::from((page as *const u8).read_volatile()));
                }
            }
        })
    };
    let Event::Fork(of_child) = event else { panic!("{event:?} instead of a fork") };
    assert!(child > 0, "fork failed");
    assert_eq!(fault(&of_child), (memory.page(0), false));
    // SAFETY: the page is due that content, in the child.
    unsafe { of_child.copy(memory.page(0), [42u8; PAGE_SIZE].as_ptr(), PAGE_SIZE) }.unwrap();
    let mut status = 0;
    // SAFETY: waits for the child made above.
    unsafe { assert_eq!(libc::waitpid(child, &mut status, 0), child) };
    assert_eq!(libc::WEXITSTATUS(status), 42);
}

/// A page is moved back and forth while another thread marks it as not accessed: now and then the
/// kernel must try again within one call, and loses count (Linux 6.18).
#[test]
fn all_that_was_moved_is_counted() {
    let _no_child = CHILDREN.read().unwrap();
    let Some(uffd) = open(feature::MOVE) else { return };
    let pagemap = Pagemap::open().unwrap();
    let places = [Memory::new(1), Memory::new(1)];
    for place in &places {
        uffd.register(place.0.clone(), register_mode::MISSING).unwrap();
    }
    // SAFETY: the page is due that content.
    unsafe { uffd.copy(places[0].page(0), [5u8; PAGE_SIZE].as_ptr(), PAGE_SIZE) }.unwrap();
    let deadline = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < deadline {
                for place in &places {
                    // SAFETY: changes no content.
                    unsafe { madvise(place.page(0) as *mut _, PAGE_SIZE, Advice::LinuxCold) }
                        .unwrap();
                }
            }
        });
        let mut from = 0;
        while Instant::now() < deadline {
            let (source, target) = (places[from].page(0), places[1 - from].page(0));
            // SAFETY: both are registered, and nobody reads there.
            unsafe { uffd.move_pages(&pagemap, target, source, PAGE_SIZE) }.unwrap();
            from = 1 - from;
        }
        assert_eq!(places[from].read(0), 5);
    });
}
