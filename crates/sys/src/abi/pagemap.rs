//! `PAGEMAP_SCAN` of `linux/fs.h` (Linux 6.7) and the 64-bit entries of `/proc/PID/pagemap`.

use super::{IOC_READ_WRITE, ioc};

/// What a scan can ask of a page (`PAGE_IS_...`).
pub(crate) mod category {
    /// Not write-protected by a userfaultfd.
    pub(crate) const WRITTEN: u64 = 1 << 1;
    /// In RAM.
    pub(crate) const PRESENT: u64 = 1 << 3;
    /// The shared page of zeros.
    pub(crate) const PFNZERO: u64 = 1 << 5;
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct ScanArg {
    pub size: u64,
    pub flags: u64,
    pub start: u64,
    pub end: u64,
    pub walk_end: u64,
    pub vec: u64,
    pub vec_len: u64,
    pub max_pages: u64,
    pub category_inverted: u64,
    pub category_mask: u64,
    pub category_anyof_mask: u64,
    pub return_mask: u64,
}

/// `struct page_region`: pages next to each other with the same answer.
#[repr(C)]
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRegion {
    /// Address of the first page.
    pub start: u64,
    /// Address behind the last page.
    pub end: u64,
    /// What was asked of the pages and is so.
    pub categories: u64,
}

pub(crate) const IOCTL_SCAN: u32 = ioc(IOC_READ_WRITE, b'f' as u32, 16, size_of::<ScanArg>());

const _: () = {
    assert!(size_of::<ScanArg>() == 96);
    assert!(IOCTL_SCAN == 0xc060_6610);
};

/// Bits of an entry of `/proc/PID/pagemap`.
pub(crate) mod entry {
    pub(crate) const FILE_OR_SHARED: u64 = 1 << 61;
    pub(crate) const SWAPPED: u64 = 1 << 62;
    pub(crate) const PRESENT: u64 = 1 << 63;
    /// Mapped by this page table only.
    pub(crate) const EXCLUSIVE: u64 = 1 << 56;
    /// Write-protected by a userfaultfd.
    pub(crate) const UFFD_WP: u64 = 1 << 57;
}
