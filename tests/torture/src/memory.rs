//! Tortured memory, reached by address only.
//!
//! No Rust reference to a byte of it is ever made: the kernel, other processes and other threads
//! change it in ways the language does not know of. Bytes go in and out by copying.

use std::hint::black_box;
use std::marker::PhantomData;

use crate::errno::Errno;

/// Bytes of a page. The program refuses to start where the kernel's pages have another size.
pub(crate) const PAGE: usize = 4096;

/// A stretch of tortured memory that the holder may read and write for `'m`.
#[derive(Clone, Copy)]
pub(crate) struct Span<'m> {
    address: usize,
    bytes: usize,
    held: PhantomData<&'m ()>,
}

impl<'m> Span<'m> {
    /// # Safety
    /// For `'m`, `bytes` bytes from `address` are mapped readable and writable, no Rust reference
    /// to any of them exists, and no other thread reads or writes them except through atomics.
    pub(crate) unsafe fn new(address: usize, bytes: usize) -> Self {
        Self { address, bytes, held: PhantomData }
    }

    pub(crate) fn address(self) -> usize {
        self.address
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    pub(crate) fn pages(self) -> usize {
        self.bytes / PAGE
    }

    /// The first byte's address as a pointer the compiler knows nothing about, so that it cannot
    /// answer a load from a store it has seen before.
    pub(crate) fn pointer(self) -> *mut u8 {
        black_box(std::ptr::with_exposed_provenance_mut(self.address))
    }

    pub(crate) fn void(self) -> *mut libc::c_void {
        self.pointer().cast()
    }

    /// A part of the span.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "part outside of the span");
        Self { address: self.address + offset, bytes, held: PhantomData }
    }

    pub(crate) fn page(self, index: usize) -> Self {
        self.part(index * PAGE, PAGE)
    }

    pub(crate) fn iovec(self) -> libc::iovec {
        libc::iovec { iov_base: self.void(), iov_len: self.bytes }
    }

    /// Writes the whole span from `data`, which is as long as the span.
    pub(crate) fn store(self, data: &[u8]) {
        assert_eq!(data.len(), self.bytes);
        // SAFETY: `data` is readable, the span is writable by the promise of `new`, and no slice
        // overlaps tortured memory because no reference into it exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.pointer(), self.bytes) }
    }

    /// Reads the whole span into `out`, which is as long as the span.
    pub(crate) fn load(self, out: &mut [u8]) {
        assert_eq!(out.len(), self.bytes);
        // SAFETY: as in `store`, with the roles changed.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(), out.as_mut_ptr(), self.bytes) }
    }

    /// Touches the first byte of the span by a load.
    pub(crate) fn touch(self) -> u8 {
        // SAFETY: the span is readable by the promise of `new`, and touched only when not empty.
        if self.bytes == 0 { 0 } else { unsafe { self.pointer().read_volatile() } }
    }
}

/// A mapping of the program's own that is unmapped when dropped.
pub(crate) struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    /// Anonymous private memory: what a pager takes away.
    pub(crate) fn anonymous(bytes: usize) -> Result<Self, Errno> {
        Self::new(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE)
    }

    /// Anonymous shared memory: what a pager leaves alone.
    pub(crate) fn shared(bytes: usize) -> Result<Self, Errno> {
        Self::new(bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED)
    }

    /// Address space without access, to be mapped over.
    pub(crate) fn reserved(bytes: usize) -> Result<Self, Errno> {
        Self::new(bytes, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)
    }

    fn new(bytes: usize, protection: i32, flags: i32) -> Result<Self, Errno> {
        // SAFETY: without MAP_FIXED no existing mapping is disturbed.
        let address = unsafe { map(0, bytes, protection, flags | libc::MAP_ANONYMOUS, -1)? };
        Ok(Self { address, bytes })
    }

    /// A mapping of the file behind `descriptor`, from its start.
    pub(crate) fn file(descriptor: i32, bytes: usize, flags: i32) -> Result<Self, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: callers pass MAP_SHARED or MAP_PRIVATE, never MAP_FIXED.
        let address = unsafe { map(0, bytes, protection, flags, descriptor)? };
        Ok(Self { address, bytes })
    }

    /// # Safety
    /// The mapping is the caller's, and nothing else unmaps it.
    pub(crate) unsafe fn adopt(address: usize, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// Gives the mapping up without unmapping it.
    pub(crate) fn release(self) -> (usize, usize) {
        let parts = (self.address, self.bytes);
        std::mem::forget(self);
        parts
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: the mapping lives as long as `self`, and only its owner hands it out; reserved
        // address space is mapped over before a span of it is used.
        unsafe { Span::new(self.address, self.bytes) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and spans of it cannot outlive `self`.
        if let Err(errno) = unsafe { unmap(self.address, self.bytes) } {
            crate::fail!("munmap of {:#x} gave {errno}", self.address);
        }
    }
}

/// mmap(2) at offset 0.
///
/// # Safety
/// With `MAP_FIXED`, what lies at `address` is the caller's to replace, and no reference into it
/// exists.
pub(crate) unsafe fn map(
    address: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    descriptor: i32,
) -> Result<usize, Errno> {
    let wanted = std::ptr::with_exposed_provenance_mut(address);
    // SAFETY: by the contract of this function.
    let found = unsafe { libc::mmap(wanted, bytes, protection, flags, descriptor, 0) };
    if found == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(found.expose_provenance()) }
}

/// munmap(2).
///
/// # Safety
/// The range is the caller's, and nothing uses it any more.
pub(crate) unsafe fn unmap(address: usize, bytes: usize) -> Result<(), Errno> {
    // SAFETY: by the contract of this function.
    match unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(address), bytes) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}
