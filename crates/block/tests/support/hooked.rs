//! A device that does what a test wants of it before it is read or written.

use std::ops::ControlFlow;

use ramfold_block::{BlockDevice, DeviceError, Durability, Extent, Zeroing};

/// What is about to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// In place of this, as long as the last argument of the hook says so.
    Prefetch,
}

pub(crate) struct Hooked<D, F> {
    device: D,
    before: F,
}

impl<D, F> Hooked<D, F>
where
    F: Fn(Access, u64, &dyn Fn() -> bool) -> Result<(), DeviceError>,
{
    /// `before` gets the offset. What it fails with the request does.
    pub(crate) fn new(device: D, before: F) -> Hooked<D, F> {
        Hooked { device, before }
    }
}

impl<D, F> BlockDevice for Hooked<D, F>
where
    D: BlockDevice,
    F: Fn(Access, u64, &dyn Fn() -> bool) -> Result<(), DeviceError> + Send + Sync,
{
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        (self.before)(Access::Read, offset, &|| true)?;
        self.device.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8], how: Durability) -> Result<(), DeviceError> {
        (self.before)(Access::Write, offset, &|| true)?;
        self.device.write(offset, data, how)
    }
    fn trim(&self, offset: u64, bytes: u64, how: Durability) -> Result<(), DeviceError> {
        self.device.trim(offset, bytes, how)
    }
    fn zero(
        &self,
        offset: u64,
        bytes: u64,
        zeroing: Zeroing,
        how: Durability,
    ) -> Result<(), DeviceError> {
        self.device.zero(offset, bytes, zeroing, how)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush()
    }
    fn prefetch(&self, offset: u64, _: u64, goes_on: &dyn Fn() -> bool) -> Result<(), DeviceError> {
        (self.before)(Access::Prefetch, offset, goes_on)
    }
    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        self.device.extents(offset, bytes, each)
    }
}
