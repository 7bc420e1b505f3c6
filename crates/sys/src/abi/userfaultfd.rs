//! `linux/userfaultfd.h` of Linux 6.18.

use super::{IOC_NONE, IOC_READ, IOC_READ_WRITE, ioc};

pub(crate) const API_VERSION: u64 = 0xAA;

/// What a descriptor can be asked to do, `uffdio_api.features` (`UFFD_FEATURE_...`).
pub mod feature {
    /// Writes to write-protected pages are reported (Linux 5.7).
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    /// fork(2) is reported, with a descriptor for the child (Linux 4.11).
    pub const EVENT_FORK: u64 = 1 << 1;
    /// mremap(2) is reported (Linux 4.11).
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// madvise(2) with `MADV_DONTNEED`, `MADV_REMOVE` or `MADV_FREE` is reported (Linux 4.11).
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// munmap(2) is reported (Linux 4.11).
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Shared memory can be registered (Linux 4.11).
    pub const MISSING_SHMEM: u64 = 1 << 5;
    /// A fault names its thread (Linux 4.14).
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages can be moved (Linux 6.8).
    pub const MOVE: u64 = 1 << 16;
}

/// What is reported of a range, `uffdio_register.mode` (`UFFDIO_REGISTER_MODE_...`).
pub mod register_mode {
    /// A touch of a page that is not there.
    pub const MISSING: u64 = 1 << 0;
    /// A write to a page that is write-protected.
    pub const WP: u64 = 1 << 1;
}

pub(crate) mod pagefault_flag {
    pub(crate) const WRITE: u64 = 1 << 0;
    pub(crate) const WP: u64 = 1 << 1;
}

pub(crate) mod event {
    pub(crate) const PAGEFAULT: u8 = 0x12;
    pub(crate) const FORK: u8 = 0x13;
    pub(crate) const REMAP: u8 = 0x14;
    pub(crate) const REMOVE: u8 = 0x15;
    pub(crate) const UNMAP: u8 = 0x16;
}

pub(crate) const COPY_MODE_DONTWAKE: u64 = 1 << 0;
pub(crate) const ZEROPAGE_MODE_DONTWAKE: u64 = 1 << 0;
pub(crate) const WRITEPROTECT_MODE_WP: u64 = 1 << 0;

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Range {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Register {
    pub range: Range,
    pub mode: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Copy {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes done, or `-errno` when none.
    pub copy: i64,
}

/// ZEROPAGE and CONTINUE share this shape.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Fill {
    pub range: Range,
    pub mode: u64,
    /// Bytes done, or `-errno` when none.
    pub done: i64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct WriteProtect {
    pub range: Range,
    pub mode: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Move {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes done, or `-errno` when none.
    pub moved: i64,
}

/// `struct uffd_msg`; the meaning of `arg` depends on `event`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub(crate) struct Message {
    pub event: u8,
    pub reserved1: u8,
    pub reserved2: u16,
    pub reserved3: u32,
    pub arg: [u64; 3],
}

const UFFDIO: u32 = 0xAA;

pub(crate) const IOCTL_API: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x3F, size_of::<Api>());
pub(crate) const IOCTL_REGISTER: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x00, size_of::<Register>());
pub(crate) const IOCTL_UNREGISTER: u32 = ioc(IOC_READ, UFFDIO, 0x01, size_of::<Range>());
pub(crate) const IOCTL_WAKE: u32 = ioc(IOC_READ, UFFDIO, 0x02, size_of::<Range>());
pub(crate) const IOCTL_COPY: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x03, size_of::<Copy>());
pub(crate) const IOCTL_ZEROPAGE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x04, size_of::<Fill>());
pub(crate) const IOCTL_MOVE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x05, size_of::<Move>());
pub(crate) const IOCTL_WRITEPROTECT: u32 =
    ioc(IOC_READ_WRITE, UFFDIO, 0x06, size_of::<WriteProtect>());
pub(crate) const IOCTL_CONTINUE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x07, size_of::<Fill>());
/// On `/dev/userfaultfd`: a new descriptor for the calling process.
pub(crate) const IOCTL_NEW: u32 = ioc(IOC_NONE, UFFDIO, 0x00, 0);

// The sizes are part of the ioctl numbers; a slip would make every call fail with ENOTTY.
const _: () = {
    assert!(size_of::<Message>() == 32);
    assert!(IOCTL_API == 0xc018_aa3f);
    assert!(IOCTL_COPY == 0xc028_aa03);
    assert!(IOCTL_MOVE == 0xc028_aa05);
    assert!(IOCTL_UNREGISTER == 0x8010_aa01);
    assert!(IOCTL_NEW == 0xaa00);
};
