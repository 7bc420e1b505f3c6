//! `PROCMAP_QUERY` of `linux/fs.h` (Linux 6.11): one mapping of `/proc/PID/maps`.

use super::{IOC_READ_WRITE, ioc};

pub(crate) mod flag {
    pub(crate) const READABLE: u64 = 1 << 0;
    pub(crate) const WRITABLE: u64 = 1 << 1;
    pub(crate) const EXECUTABLE: u64 = 1 << 2;
    pub(crate) const SHARED: u64 = 1 << 3;
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Query {
    pub size: u64,
    pub query_flags: u64,
    pub query_addr: u64,
    pub vma_start: u64,
    pub vma_end: u64,
    pub vma_flags: u64,
    pub vma_page_size: u64,
    pub vma_offset: u64,
    pub inode: u64,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub vma_name_size: u32,
    pub build_id_size: u32,
    pub vma_name_addr: u64,
    pub build_id_addr: u64,
}

pub(crate) const IOCTL_QUERY: u32 = ioc(IOC_READ_WRITE, b'f' as u32, 17, size_of::<Query>());

const _: () = {
    assert!(size_of::<Query>() == 104);
    assert!(IOCTL_QUERY == 0xc068_6611);
};
