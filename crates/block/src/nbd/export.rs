//! What a server offers.

use super::protocol::{
    CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, SEND_CACHE, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH,
    SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
};

/// The device as clients see it.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
}

impl Export {
    /// Whether a client means this one: the empty name stands for the only export.
    pub(super) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The transmission flags; `has_chunks`: replies are structured.
    pub(super) fn flags(&self, has_chunks: bool) -> u16 {
        let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        if self.is_read_only {
            flags |= READ_ONLY;
        } else {
            flags |= SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
        }
        if has_chunks {
            flags |= SEND_DF;
        }
        flags
    }
}
