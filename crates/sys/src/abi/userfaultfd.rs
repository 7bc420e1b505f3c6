//! `linux/userfaultfd.h` of Linux 6.18.

use super::{IOC_NONE, IOC_READ, IOC_READ_WRITE, ioc};

pub const API_VERSION: u64 = 0xAA;

/// Open flag: report faults of user mode only. A system call that meets such a page fails with
/// `EFAULT`, so the pager never asks for it.
pub const USER_MODE_ONLY: u32 = 1;

/// What a descriptor can be asked to do, `uffdio_api.features`.
pub mod feature {
    pub const PAGEFAULT_FLAG_WP: u64 = 1 << 0;
    pub const EVENT_FORK: u64 = 1 << 1;
    pub const EVENT_REMAP: u64 = 1 << 2;
    pub const EVENT_REMOVE: u64 = 1 << 3;
    pub const EVENT_UNMAP: u64 = 1 << 6;
    pub const MISSING_SHMEM: u64 = 1 << 5;
    pub const THREAD_ID: u64 = 1 << 8;
    pub const POISON: u64 = 1 << 14;
    pub const MOVE: u64 = 1 << 16;
}

/// What is reported of a range, `uffdio_register.mode`.
pub mod register_mode {
    pub const MISSING: u64 = 1 << 0;
    pub const WP: u64 = 1 << 1;
}

pub mod pagefault_flag {
    pub const WRITE: u64 = 1 << 0;
    pub const WP: u64 = 1 << 1;
}

pub mod event {
    pub const PAGEFAULT: u8 = 0x12;
    pub const FORK: u8 = 0x13;
    pub const REMAP: u8 = 0x14;
    pub const REMOVE: u8 = 0x15;
    pub const UNMAP: u8 = 0x16;
}

pub const COPY_MODE_DONTWAKE: u64 = 1 << 0;
pub const ZEROPAGE_MODE_DONTWAKE: u64 = 1 << 0;
pub const COPY_MODE_WP: u64 = 1 << 1;
pub const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
pub const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Api {
    pub api: u64,
    pub features: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Range {
    pub start: u64,
    pub len: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Register {
    pub range: Range,
    pub mode: u64,
    pub ioctls: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Copy {
    pub dst: u64,
    pub src: u64,
    pub len: u64,
    pub mode: u64,
    /// Bytes done, or `-errno` when none.
    pub copy: i64,
}

/// ZEROPAGE, CONTINUE and POISON share this shape.
#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Fill {
    pub range: Range,
    pub mode: u64,
    /// Bytes done, or `-errno` when none.
    pub done: i64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct WriteProtect {
    pub range: Range,
    pub mode: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
pub struct Move {
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
pub struct Message {
    pub event: u8,
    pub reserved1: u8,
    pub reserved2: u16,
    pub reserved3: u32,
    pub arg: [u64; 3],
}

const UFFDIO: u32 = 0xAA;

pub const IOCTL_API: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x3F, size_of::<Api>());
pub const IOCTL_REGISTER: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x00, size_of::<Register>());
pub const IOCTL_UNREGISTER: u32 = ioc(IOC_READ, UFFDIO, 0x01, size_of::<Range>());
pub const IOCTL_WAKE: u32 = ioc(IOC_READ, UFFDIO, 0x02, size_of::<Range>());
pub const IOCTL_COPY: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x03, size_of::<Copy>());
pub const IOCTL_ZEROPAGE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x04, size_of::<Fill>());
pub const IOCTL_MOVE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x05, size_of::<Move>());
pub const IOCTL_WRITEPROTECT: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x06, size_of::<WriteProtect>());
pub const IOCTL_CONTINUE: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x07, size_of::<Fill>());
pub const IOCTL_POISON: u32 = ioc(IOC_READ_WRITE, UFFDIO, 0x08, size_of::<Fill>());
/// On `/dev/userfaultfd`: a new descriptor for the calling process.
pub const IOCTL_NEW: u32 = ioc(IOC_NONE, UFFDIO, 0x00, 0);

// The sizes are part of the ioctl numbers; a slip would make every call fail with ENOTTY.
const _: () = {
    assert!(size_of::<Message>() == 32);
    assert!(IOCTL_API == 0xc018_aa3f);
    assert!(IOCTL_COPY == 0xc028_aa03);
    assert!(IOCTL_MOVE == 0xc028_aa05);
    assert!(IOCTL_UNREGISTER == 0x8010_aa01);
    assert!(IOCTL_NEW == 0xaa00);
};
