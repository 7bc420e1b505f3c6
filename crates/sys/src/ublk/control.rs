//! Commands to `/dev/ublk-control`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::abi::{self, ControlCommand, DeviceInfo, Params};
use crate::Errno;

/// Where commands go.
const CONTROL: &str = "/dev/ublk-control";
const SECTOR_SHIFT: u32 = 9;

/// How a device is made.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice {
    /// The number in `/dev/ublkbN`; the next free one without.
    pub device: Option<u32>,
    /// Hardware queues.
    pub queues: u16,
    /// Requests of a queue under way at most, 4,096 at most.
    pub queue_depth: u16,
    /// Bytes of a request that reads or writes at most, a power of two.
    pub request_bytes_max: u32,
    /// When its server dies, the device waits for another, which is handed the requests again that
    /// were under way.
    pub recoverable: bool,
    /// Shows which program made the device.
    pub mark: u64,
}

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The size, whole blocks.
    pub bytes: u64,
    /// The size of a block, a power of two from 512 to the page's.
    pub block_bytes: u32,
    /// Bytes of a request that reads or writes at most.
    pub request_bytes_max: u32,
    /// Nothing may be written.
    pub read_only: bool,
}

/// Whether a device is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not started, stopped, or its server has died.
    Dead,
    /// It has a server.
    Live,
    /// Its server has died and it waits for another.
    Waiting,
}

impl DeviceInfo {
    /// Whether the device is served.
    pub fn state(&self) -> State {
        match self.state {
            1 => State::Live,
            2 => State::Waiting,
            _ => State::Dead,
        }
    }

    /// When its server dies, it waits for another.
    pub fn is_recoverable(&self) -> bool {
        self.flags & abi::FLAG_USER_RECOVERY != 0
    }
}

/// The control device: makes and ends devices. Each call waits until it is done.
pub struct Control {
    device: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// `ENOENT` where the driver is not loaded; `ENOSYS` and `EPERM` where io_uring is not there or
    /// not allowed.
    pub fn open() -> io::Result<Control> {
        let device = File::options().read(true).write(true).open(CONTROL)?;
        let ring = IoUring::builder().build(4)?;
        Ok(Control { device, ring })
    }

    /// Makes a device that has no server yet, and says what it is like.
    ///
    /// # Errors
    /// `EEXIST` for a number in use; `EOPNOTSUPP` before Linux 6.4.
    pub fn add(&mut self, new: &NewDevice) -> io::Result<DeviceInfo> {
        let recovery = match new.recoverable {
            true => abi::FLAG_USER_RECOVERY | abi::FLAG_USER_RECOVERY_REISSUE,
            false => 0,
        };
        let mut info = DeviceInfo {
            queues: new.queues,
            queue_depth: new.queue_depth,
            request_bytes_max: new.request_bytes_max,
            device: new.device.unwrap_or(u32::MAX),
            flags: abi::FLAG_CMD_IOCTL_ENCODE | recovery,
            mark: new.mark,
            ..DeviceInfo::default()
        };
        self.exchange(abi::ADD_DEV, info.device, &mut info, 0)?;
        Ok(info)
    }

    /// What the kernel knows of a device.
    ///
    /// # Errors
    /// `ENODEV` where there is none of this number.
    pub fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        self.exchange(abi::GET_DEV_INFO, device, &mut info, 0)?;
        Ok(info)
    }

    /// Says what a device is like, before it is started.
    ///
    /// # Errors
    /// `EINVAL` for what a device cannot be.
    pub fn set_features(&mut self, device: u32, features: &Features) -> io::Result<()> {
        let mut params = params_of(features);
        self.exchange(abi::SET_PARAMS, device, &mut params, 0)
    }

    /// What a device is like.
    ///
    /// # Errors
    /// `ENODEV` where there is none of this number.
    pub fn features(&mut self, device: u32) -> io::Result<Features> {
        let mut params = Params { bytes: abi::PARAMS_BYTES, ..Params::default() };
        self.exchange(abi::GET_PARAMS, device, &mut params, 0)?;
        Ok(Features {
            bytes: params.device_sectors << SECTOR_SHIFT,
            block_bytes: 1 << params.logical_block_shift,
            request_bytes_max: params.max_sectors << SECTOR_SHIFT,
            read_only: params.attributes & abi::ATTRIBUTE_READ_ONLY != 0,
        })
    }

    /// Makes `/dev/ublkbN`. All its queues must have been [fetched](super::Queue::fetch) by this
    /// process: it waits for that.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(&mut self, device: u32) -> io::Result<()> {
        self.command(abi::START_DEV, device, 0, 0, u64::from(std::process::id()))
    }

    /// Takes `/dev/ublkbN` away. What is under way is answered first; what comes later fails.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stop(&mut self, device: u32) -> io::Result<()> {
        self.command(abi::STOP_DEV, device, 0, 0, 0)
    }

    /// Ends a device. It waits until nobody has its queues open.
    ///
    /// # Errors
    /// `ENODEV` where there is none of this number.
    pub fn delete(&mut self, device: u32) -> io::Result<()> {
        self.command(abi::DEL_DEV, device, 0, 0, 0)
    }

    /// Ends a device, and does not wait: where a file system is still mounted on it, its number is
    /// in use until that is unmounted. Before Linux 6.9 it waits.
    ///
    /// # Errors
    /// `ENODEV` where there is none of this number.
    pub fn delete_without_waiting(&mut self, device: u32) -> io::Result<()> {
        match self.command(abi::DEL_DEV_ASYNC, device, 0, 0, 0) {
            Err(why) if why.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
                self.delete(device)
            }
            done => done,
        }
    }

    /// Begins to take over a device that waits for a server: its queues may be opened and fetched.
    ///
    /// # Errors
    /// `EBUSY` as long as the kernel has not taken back what the dead server had.
    pub fn begin_recovery(&mut self, device: u32) -> io::Result<()> {
        self.command(abi::START_USER_RECOVERY, device, 0, 0, 0)
    }

    /// Gives the device its requests again. All queues must have been fetched.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.command(abi::END_USER_RECOVERY, device, 0, 0, u64::from(std::process::id()))
    }

    /// A command that reads or writes a structure.
    fn exchange<T: Copy>(
        &mut self,
        command: u32,
        device: u32,
        value: &mut T,
        data: u64,
    ) -> io::Result<()> {
        // The kernel would go on to use it if this had to return before the command is done.
        let shared = Box::into_raw(Box::new(*value));
        let bytes = size_of::<T>() as u16;
        let result = self.command(command, device, shared as u64, bytes, data);
        if result.as_ref().is_err_and(|error| error.raw_os_error().is_none()) {
            return result;
        }
        // SAFETY: made by `Box::into_raw` above, and the command is done.
        *value = *unsafe { Box::from_raw(shared) };
        result
    }

    /// An error without a number of the system's: whether it is done is not known.
    fn command(
        &mut self,
        command: u32,
        device: u32,
        address: u64,
        bytes: u16,
        data: u64,
    ) -> io::Result<()> {
        let content = ControlCommand {
            device,
            queue: u16::MAX,
            bytes,
            address,
            data,
            path_bytes: 0,
            pad: 0,
            reserved: 0,
        };
        let mut place = [0u8; 80];
        // SAFETY: plain numbers without padding, shorter than the place.
        unsafe { place.as_mut_ptr().cast::<ControlCommand>().write_unaligned(content) };
        let entry =
            opcode::UringCmd80::new(types::Fd(self.device.as_raw_fd()), command).cmd(place).build();
        // SAFETY: the file is open as long as the ring, and the structure at the address stays
        // until the command is done.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::other("the ring of the control device is full"))?;
        loop {
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => continue,
                Err(error) => return Err(io::Error::other(error)),
                Ok(_) => {}
            }
            if let Some(done) = self.ring.completion().next() {
                return match done.result() {
                    failed @ ..0 => Err(io::Error::from_raw_os_error(-failed)),
                    _ => Ok(()),
                };
            }
        }
    }
}

fn params_of(features: &Features) -> Params {
    let shift = features.block_bytes.trailing_zeros() as u8;
    let read_only = if features.read_only { abi::ATTRIBUTE_READ_ONLY } else { 0 };
    // What takes no memory has no limit but that of a 32-bit number of bytes, in the kernel too.
    let whole_blocks = !(features.block_bytes - 1) >> SECTOR_SHIFT;
    Params {
        bytes: abi::PARAMS_BYTES,
        types: abi::PARAM_BASIC | abi::PARAM_DISCARD,
        attributes: abi::ATTRIBUTE_VOLATILE_CACHE | abi::ATTRIBUTE_FUA | read_only,
        logical_block_shift: shift,
        physical_block_shift: shift,
        optimal_io_shift: shift,
        minimal_io_shift: shift,
        max_sectors: features.request_bytes_max >> SECTOR_SHIFT,
        device_sectors: features.bytes >> SECTOR_SHIFT,
        discard_granularity: features.block_bytes,
        max_discard_sectors: whole_blocks,
        max_write_zeroes_sectors: whole_blocks,
        max_discard_segments: 1,
        ..Params::default()
    }
}
