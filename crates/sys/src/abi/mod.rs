//! Structures and numbers of the kernel's interface, as its headers define them.

pub(crate) mod pagemap;
pub(crate) mod procmap;
pub(crate) mod userfaultfd;

/// An ioctl number as `_IOC` of `asm-generic/ioctl.h` makes it.
pub(crate) const fn ioc(direction: u32, kind: u32, number: u32, size: usize) -> u32 {
    (direction << 30) | ((size as u32) << 16) | (kind << 8) | number
}

pub(crate) const IOC_NONE: u32 = 0;
pub(crate) const IOC_READ: u32 = 2;
pub(crate) const IOC_READ_WRITE: u32 = 3;
