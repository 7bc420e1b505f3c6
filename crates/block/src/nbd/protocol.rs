//! Numbers of the protocol, by the names that its document gives them.

/// Replies and option replies of a server begin with these, requests of a client too.
pub(super) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub(super) const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(super) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Flags of the handshake: the server's and the client's have the same bits.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(super) const FLAG_NO_ZEROES: u16 = 1 << 1;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_LIST: u32 = 3;
pub(super) const OPT_STARTTLS: u32 = 5;
pub(super) const OPT_INFO: u32 = 6;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(super) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(super) const OPT_SET_META_CONTEXT: u32 = 10;
pub(super) const OPT_EXTENDED_HEADERS: u32 = 11;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_SERVER: u32 = 2;
pub(super) const REP_INFO: u32 = 3;
pub(super) const REP_META_CONTEXT: u32 = 4;
pub(super) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(super) const REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(super) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(super) const REP_ERR_TLS_REQD: u32 = (1 << 31) + 5;
pub(super) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(super) const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;
pub(super) const REP_ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_NAME: u16 = 1;
pub(super) const INFO_DESCRIPTION: u16 = 2;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of the transmission.
pub(crate) const HAS_FLAGS: u16 = 1;
pub(crate) const READ_ONLY: u16 = 1 << 1;
pub(crate) const SEND_FLUSH: u16 = 1 << 2;
pub(crate) const SEND_FUA: u16 = 1 << 3;
pub(crate) const SEND_TRIM: u16 = 1 << 5;
pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(super) const SEND_DF: u16 = 1 << 7;
pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
pub(super) const SEND_CACHE: u16 = 1 << 10;
pub(super) const SEND_FAST_ZERO: u16 = 1 << 11;

pub(super) const CMD_READ: u16 = 0;
pub(super) const CMD_WRITE: u16 = 1;
pub(super) const CMD_DISC: u16 = 2;
pub(super) const CMD_FLUSH: u16 = 3;
pub(super) const CMD_TRIM: u16 = 4;
pub(super) const CMD_CACHE: u16 = 5;
pub(super) const CMD_WRITE_ZEROES: u16 = 6;
pub(super) const CMD_BLOCK_STATUS: u16 = 7;

pub(super) const CMD_FLAG_FUA: u16 = 1;
pub(super) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(super) const CMD_FLAG_DF: u16 = 1 << 2;
pub(super) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(super) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
pub(super) const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub(super) const REPLY_FLAG_DONE: u16 = 1;
pub(super) const REPLY_TYPE_NONE: u16 = 0;
pub(super) const REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub(super) const REPLY_TYPE_OFFSET_HOLE: u16 = 2;
pub(super) const REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub(super) const REPLY_TYPE_BLOCK_STATUS_EXT: u16 = 6;
pub(super) const REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;

/// Flags of an extent in `base:allocation`.
pub(super) const STATE_HOLE: u32 = 1;
pub(super) const STATE_ZERO: u32 = 1 << 1;

/// The only context that there is.
pub(super) const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// What it is called in requests and replies of the transmission.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

/// Names and messages are no longer.
pub(super) const STRING_BYTES_MAX: usize = 4096;

/// The largest payload of a request, and the most that a read may ask for.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// A payload that is too large is read and thrown away up to this; beyond, the client is dropped.
pub(super) const SKIPPED_BYTES_MAX: u64 = 64 << 20;

/// Requests of any offset and length are answered, whole pages sooner.
pub(super) const BLOCK_BYTES_MIN: u32 = 1;
pub(super) const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// Why a request is refused, as a number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Code {
    NotPermitted = 1,
    Failed = 5,
    Invalid = 22,
    NoRoom = 28,
    TooLarge = 75,
    NotSupported = 95,
}
