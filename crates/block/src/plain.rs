//! A device in memory that compresses nothing: for tests, and to measure others against.

use std::ops::ControlFlow;
use std::sync::{PoisonError, RwLock};

use crate::{BlockDevice, DeviceError, Durability, Extent, Zeroing};

const PAGE_BYTES: u64 = 4096;
/// Pages that have one lock.
const GROUP_PAGES: u64 = 16;
const GROUP_BYTES: u64 = GROUP_PAGES * PAGE_BYTES;

/// Pages of zeros that were never written, or were trimmed, take no memory if their whole group of
/// 16 is so.
pub struct PlainDevice {
    size_bytes: u64,
    groups: Box<[RwLock<Group>]>,
}

#[derive(Default)]
struct Group {
    data: Option<Box<[u8]>>,
    /// One bit for each page that holds data.
    written: u16,
}

impl PlainDevice {
    /// A device of zeros.
    pub fn new(size_bytes: u64) -> PlainDevice {
        let groups = (0..size_bytes.div_ceil(GROUP_BYTES)).map(|_| RwLock::default()).collect();
        PlainDevice { size_bytes, groups }
    }

    /// Calls with each group of a range: its number, and the part of the range in it.
    fn each_group(&self, offset: u64, bytes: u64, mut call: impl FnMut(&RwLock<Group>, u64, u64)) {
        assert!(offset + bytes <= self.size_bytes, "{offset} + {bytes} is beyond the device");
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let group = at / GROUP_BYTES;
            let until = end.min((group + 1) * GROUP_BYTES);
            call(&self.groups[group as usize], at % GROUP_BYTES, until - at);
            at = until;
        }
    }
}

/// The pages of a group that lie wholly in a range of it, as bits.
fn whole_pages(at: u64, bytes: u64) -> u16 {
    let pages = at.div_ceil(PAGE_BYTES)..(at + bytes) / PAGE_BYTES;
    pages.fold(0, |bits, page| bits | 1 << page)
}

impl Group {
    fn zero(&mut self, at: u64, bytes: u64, may_trim: bool) {
        if may_trim {
            self.written &= !whole_pages(at, bytes);
            if self.written == 0 {
                self.data = None;
                return;
            }
        } else {
            self.data.get_or_insert_with(|| vec![0; GROUP_BYTES as usize].into());
            self.written |= touched_pages(at, bytes);
        }
        if let Some(data) = &mut self.data {
            data[at as usize..][..bytes as usize].fill(0);
        }
    }
}

/// The pages of a group that a range of it touches, as bits.
fn touched_pages(at: u64, bytes: u64) -> u16 {
    (at / PAGE_BYTES..(at + bytes).div_ceil(PAGE_BYTES)).fold(0, |bits, page| bits | 1 << page)
}

impl BlockDevice for PlainDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&self, offset: u64, mut buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.each_group(offset, buffer.len() as u64, |group, at, bytes| {
            let (part, rest) = std::mem::take(&mut buffer).split_at_mut(bytes as usize);
            buffer = rest;
            match &group.read().unwrap_or_else(PoisonError::into_inner).data {
                Some(data) => part.copy_from_slice(&data[at as usize..][..bytes as usize]),
                None => part.fill(0),
            }
        });
        Ok(())
    }

    fn write(&self, offset: u64, mut data: &[u8], _: Durability) -> Result<(), DeviceError> {
        self.each_group(offset, data.len() as u64, |group, at, bytes| {
            let (part, rest) = data.split_at(bytes as usize);
            data = rest;
            let mut group = group.write().unwrap_or_else(PoisonError::into_inner);
            let page = group.data.get_or_insert_with(|| vec![0; GROUP_BYTES as usize].into());
            page[at as usize..][..bytes as usize].copy_from_slice(part);
            group.written |= touched_pages(at, bytes);
        });
        Ok(())
    }

    fn trim(&self, offset: u64, bytes: u64, durability: Durability) -> Result<(), DeviceError> {
        self.zero(offset, bytes, Zeroing { may_trim: true, fast: false }, durability)
    }

    fn zero(
        &self,
        offset: u64,
        bytes: u64,
        zeroing: Zeroing,
        _: Durability,
    ) -> Result<(), DeviceError> {
        if zeroing.fast && !zeroing.may_trim {
            return Err(DeviceError::NotFast);
        }
        self.each_group(offset, bytes, |group, at, bytes| {
            let mut group = group.write().unwrap_or_else(PoisonError::into_inner);
            group.zero(at, bytes, zeroing.may_trim);
        });
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn extents(
        &self,
        offset: u64,
        bytes: u64,
        each: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<(), DeviceError> {
        assert!(offset + bytes <= self.size_bytes, "{offset} + {bytes} is beyond the device");
        let is_written = |at: u64| {
            let group = &self.groups[(at / GROUP_BYTES) as usize];
            let written = group.read().unwrap_or_else(PoisonError::into_inner).written;
            written & 1 << (at % GROUP_BYTES / PAGE_BYTES) != 0
        };
        let end = offset + bytes;
        let mut begin = offset;
        while begin < end {
            let is_allocated = is_written(begin);
            let mut until = begin;
            while until < end && is_written(until) == is_allocated {
                until = end.min((until / PAGE_BYTES + 1) * PAGE_BYTES);
            }
            let extent = Extent { bytes: until - begin, is_allocated, is_zero: !is_allocated };
            if each(extent).is_break() {
                break;
            }
            begin = until;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_it_was_written() {
        let device = PlainDevice::new(1 << 20);
        let mut model = vec![0u8; 1 << 20];
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for round in 0..200u64 {
            let offset = next(1 << 20);
            let bytes = next((1 << 20) - offset + 1).min(200_000);
            let range = offset as usize..(offset + bytes) as usize;
            match next(4) {
                0 | 1 => {
                    model[range.clone()].fill(round as u8 | 1);
                    device.write(offset, &model[range], Durability::AtFlush).unwrap();
                }
                2 => {
                    model[range].fill(0);
                    device.trim(offset, bytes, Durability::AtOnce).unwrap();
                }
                _ => {
                    let zeroing = Zeroing { may_trim: false, fast: false };
                    model[range].fill(0);
                    device.zero(offset, bytes, zeroing, Durability::AtFlush).unwrap();
                }
            }
            let mut all = vec![1; 1 << 20];
            device.read(0, &mut all).unwrap();
            assert!(all == model, "round {round}");
            let mut told = 0;
            device
                .extents(0, 1 << 20, &mut |extent| {
                    let part = &all[told..told + extent.bytes as usize];
                    assert!(!extent.is_zero || part.iter().all(|&byte| byte == 0));
                    told += part.len();
                    ControlFlow::Continue(())
                })
                .unwrap();
            assert_eq!(told, 1 << 20);
        }
    }
}
