//! What linux/ublk_cmd.h of Linux 6.12 says.

/// Encodes the number of a command as an ioctl's (`_IOWR('u', number, size)` and so on): drivers
/// before Linux 6.4 do not know these.
const fn command(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'u' as u32) << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;

pub(super) const GET_DEV_INFO: u32 = command(READ, 0x02, size_of::<ControlCommand>());
pub(super) const ADD_DEV: u32 = command(READ_WRITE, 0x04, size_of::<ControlCommand>());
pub(super) const DEL_DEV: u32 = command(READ_WRITE, 0x05, size_of::<ControlCommand>());
pub(super) const START_DEV: u32 = command(READ_WRITE, 0x06, size_of::<ControlCommand>());
pub(super) const STOP_DEV: u32 = command(READ_WRITE, 0x07, size_of::<ControlCommand>());
pub(super) const SET_PARAMS: u32 = command(READ_WRITE, 0x08, size_of::<ControlCommand>());
pub(super) const GET_PARAMS: u32 = command(READ, 0x09, size_of::<ControlCommand>());
pub(super) const START_USER_RECOVERY: u32 = command(READ_WRITE, 0x10, size_of::<ControlCommand>());
pub(super) const END_USER_RECOVERY: u32 = command(READ_WRITE, 0x11, size_of::<ControlCommand>());

/// Linux 6.9.
pub(super) const DEL_DEV_ASYNC: u32 = command(READ, 0x14, size_of::<ControlCommand>());

pub(super) const IO_FETCH: u32 = command(READ_WRITE, 0x20, size_of::<IoCommand>());
pub(super) const IO_COMMIT_AND_FETCH: u32 = command(READ_WRITE, 0x21, size_of::<IoCommand>());

/// Descriptors of requests are mapped queue by queue, as if each had this depth.
pub(super) const DEPTH_MAX: usize = 4096;

pub(super) const FLAG_USER_RECOVERY: u64 = 1 << 3;
pub(super) const FLAG_USER_RECOVERY_REISSUE: u64 = 1 << 4;
pub(super) const FLAG_CMD_IOCTL_ENCODE: u64 = 1 << 6;

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ControlCommand {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) bytes: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_bytes: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}
const _: () = assert!(size_of::<ControlCommand>() == 32);

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Hardware queues, each served by a thread.
    pub queues: u16,
    /// Requests of a queue under way at most.
    pub queue_depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    /// Bytes of a request that reads or writes at most.
    pub request_bytes_max: u32,
    /// The number in `/dev/ublkbN`.
    pub device: u32,
    /// The server's process, also when it has ended; -1 before the first start.
    pub server: i32,
    pub(super) pad1: u32,
    pub(super) flags: u64,
    /// Of no meaning to the kernel: it shows which program made the device.
    pub mark: u64,
    pub(super) owner_user: u32,
    pub(super) owner_group: u32,
    pub(super) reserved1: u64,
    pub(super) reserved2: u64,
}
const _: () = assert!(size_of::<DeviceInfo>() == 64);

/// `struct ublk_params`, as far as it is used here: the kernel takes what `bytes` says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) bytes: u32,
    pub(super) types: u32,
    // `struct ublk_param_basic`
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) optimal_io_shift: u8,
    pub(super) minimal_io_shift: u8,
    pub(super) max_sectors: u32,
    pub(super) chunk_sectors: u32,
    pub(super) device_sectors: u64,
    pub(super) virtual_boundary_mask: u64,
    // `struct ublk_param_discard`
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) max_discard_sectors: u32,
    pub(super) max_write_zeroes_sectors: u32,
    pub(super) max_discard_segments: u16,
    pub(super) reserved: u16,
    pub(super) pad: u32,
}
const _: () = assert!(size_of::<Params>() == 64);

/// Without the padding at the end.
pub(super) const PARAMS_BYTES: u32 = 60;
pub(super) const PARAM_BASIC: u32 = 1 << 0;
pub(super) const PARAM_DISCARD: u32 = 1 << 1;
pub(super) const ATTRIBUTE_READ_ONLY: u32 = 1 << 0;
pub(super) const ATTRIBUTE_VOLATILE_CACHE: u32 = 1 << 2;
pub(super) const ATTRIBUTE_FUA: u32 = 1 << 3;

/// `struct ublksrv_io_cmd`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IoCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) address: u64,
}
const _: () = assert!(size_of::<IoCommand>() == 16);

/// `struct ublksrv_io_desc`: a request, in memory that the kernel writes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Descriptor {
    pub(super) operation_and_flags: u32,
    pub(super) sectors: u32,
    pub(super) start_sector: u64,
    pub(super) address: u64,
}
const _: () = assert!(size_of::<Descriptor>() == 24);

pub(super) const OPERATION_MASK: u32 = 0xff;
pub(super) const OPERATION_READ: u32 = 0;
pub(super) const OPERATION_WRITE: u32 = 1;
pub(super) const OPERATION_FLUSH: u32 = 2;
pub(super) const OPERATION_DISCARD: u32 = 3;
pub(super) const OPERATION_WRITE_ZEROES: u32 = 5;
pub(super) const FLAG_FUA: u32 = 1 << 13;
pub(super) const FLAG_NO_UNMAP: u32 = 1 << 15;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernels_header() {
        // As a C compiler has them from linux/ublk_cmd.h.
        assert_eq!(GET_DEV_INFO, 0x8020_7502);
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(DEL_DEV_ASYNC, 0x8020_7514);
        assert_eq!(SET_PARAMS, 0xc020_7508);
        assert_eq!(END_USER_RECOVERY, 0xc020_7511);
        assert_eq!(IO_FETCH, 0xc010_7520);
        assert_eq!(IO_COMMIT_AND_FETCH, 0xc010_7521);
    }
}
