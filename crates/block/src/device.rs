//! The calls that devices answer and fronts make.

use std::ops::ControlFlow;

/// A block device: `size_bytes` of data that are read and written by byte offset.
///
/// All calls may come from several threads at once. Requests that overlap and run at the same time
/// take effect in any order, each 4 KiB page whole. A front checks that a request lies within the
/// device before it makes the call; a device may panic on one that does not.
pub trait BlockDevice: Send + Sync {
    /// The size in bytes. It does not change.
    fn size_bytes(&self) -> u64;

    /// The data from byte `offset` on.
    ///
    /// # Errors
    /// What the device says; the buffer's content is undefined then.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Replaces the data from byte `offset` on.
    ///
    /// # Errors
    /// What the device says; pages of the range hold their old data or the new then.
    fn write(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), DeviceError>;

    /// The range is not needed any more: it reads as zeros, and takes no memory.
    ///
    /// # Errors
    /// As for [`BlockDevice::write`].
    fn trim(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), DeviceError>;

    /// The range reads as zeros.
    ///
    /// # Errors
    /// As for [`BlockDevice::write`]; [`DeviceError::NotFast`] by [`Zeroing::fast`].
    fn zero(
        &self,
        offset: u64,
        bytes: u64,
        zeroing: Zeroing,
        durability: Durability,
    ) -> Result<(), DeviceError>;

    /// Returns when all writes that had ended before this call are as durable as the device makes
    /// them.
    ///
    /// # Errors
    /// Some write could not be made durable.
    fn flush(&self) -> Result<(), DeviceError>;

    /// The range will be read soon. A device that takes long for that asks `goes_on` from time to
    /// time, and ends where it says no.
    ///
    /// # Errors
    /// What a read of the range would say, as far as it is tried.
    fn prefetch(
        &self,
        offset: u64,
        bytes: u64,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), DeviceError> {
        let _ = (offset, bytes, goes_on);
        Ok(())
    }

    /// Hands the extents of the range to `each`, in order and without gaps, until it breaks.
    ///
    /// # Errors
    /// What the device says.
    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError>;
}

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When later reads see it; the next flush makes it durable.
    AtFlush,
    /// When it is durable (FUA).
    AtOnce,
}

/// How zeros may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroing {
    /// The range may be trimmed, so that a later write may find no room.
    pub may_trim: bool,
    /// Only where it takes less time than a write.
    pub fast: bool,
}

/// A part of a device that is of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, at least one.
    pub bytes: u64,
    /// Memory or a place in the backing belongs to it.
    pub is_allocated: bool,
    /// It is known to read as zeros.
    pub is_zero: bool,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No room is left for the data within the memory and the spill file that the device may use.
    #[error("no room is left for what was written")]
    NoRoom,
    /// It would take as long as writing zeros.
    #[error("zeros cannot be written faster here than other data")]
    NotFast,
    /// Nothing may be written.
    #[error("the device is read-only")]
    ReadOnly,
    /// The data could not be read, written or made durable.
    #[error("{0}")]
    Failed(String),
}
