//! Replies of the transmission as bytes.

use std::fmt::Display;

use super::handshake::Style;
use super::protocol::{
    BASE_ALLOCATION_ID, Code, EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, REPLY_TYPE_BLOCK_STATUS,
    REPLY_TYPE_BLOCK_STATUS_EXT, REPLY_TYPE_ERROR, REPLY_TYPE_NONE, REPLY_TYPE_OFFSET_DATA,
    REPLY_TYPE_OFFSET_HOLE, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX, STRUCTURED_REPLY_MAGIC,
};

/// The request that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) style: Style,
    pub(super) cookie: u64,
    pub(super) offset: u64,
}

/// Whether a reply has more chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    Follow,
    None,
}

/// The longest of [`Head`]s: an extended header, an offset and the size of a hole.
pub(super) const HEAD_BYTES_MAX: usize = 44;

/// The beginning of a reply, or of a chunk of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: usize,
}

impl Head {
    fn new() -> Head {
        Head { bytes: [0; HEAD_BYTES_MAX], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Asked {
    fn simple(self, error: u32) -> Head {
        let mut head = Head::new();
        head.put(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        head.put(&error.to_be_bytes());
        head.put(&self.cookie.to_be_bytes());
        head
    }

    fn chunk(self, kind: u16, more: More, payload_bytes: u32) -> Head {
        let flags = if more == More::None { REPLY_FLAG_DONE } else { 0 };
        let is_extended = self.style == Style::Extended;
        let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
        let mut head = Head::new();
        head.put(&magic.to_be_bytes());
        head.put(&flags.to_be_bytes());
        head.put(&kind.to_be_bytes());
        head.put(&self.cookie.to_be_bytes());
        if is_extended {
            head.put(&self.offset.to_be_bytes());
            head.put(&u64::from(payload_bytes).to_be_bytes());
        } else {
            head.put(&payload_bytes.to_be_bytes());
        }
        head
    }

    /// The request was done, and there is nothing to tell.
    pub(super) fn done(self) -> Head {
        match self.style {
            Style::Simple => self.simple(0),
            _ => self.chunk(REPLY_TYPE_NONE, More::None, 0),
        }
    }

    /// `bytes` bytes of the device's data follow, from this offset on.
    pub(super) fn data(self, offset: u64, bytes: u32, more: More) -> Head {
        if self.style == Style::Simple {
            return self.simple(0);
        }
        let mut head = self.chunk(REPLY_TYPE_OFFSET_DATA, more, bytes + 8);
        head.put(&offset.to_be_bytes());
        head
    }

    /// `bytes` bytes from this offset on are zeros. Not in simple replies.
    pub(super) fn hole(self, offset: u64, bytes: u32, more: More) -> Head {
        let mut head = self.chunk(REPLY_TYPE_OFFSET_HOLE, more, 12);
        head.put(&offset.to_be_bytes());
        head.put(&bytes.to_be_bytes());
        head
    }

    /// This number of extents follows, each by [`Asked::extent`]. Not in simple replies.
    pub(super) fn extents(self, count: u32) -> Head {
        if self.style == Style::Extended {
            let mut head = self.chunk(REPLY_TYPE_BLOCK_STATUS_EXT, More::None, 8 + count * 16);
            head.put(&BASE_ALLOCATION_ID.to_be_bytes());
            head.put(&count.to_be_bytes());
            return head;
        }
        let mut head = self.chunk(REPLY_TYPE_BLOCK_STATUS, More::None, 4 + count * 8);
        head.put(&BASE_ALLOCATION_ID.to_be_bytes());
        head
    }

    pub(super) fn extent(self, bytes: u64, flags: u32) -> Head {
        let mut head = Head::new();
        if self.style == Style::Extended {
            head.put(&bytes.to_be_bytes());
            head.put(&u64::from(flags).to_be_bytes());
        } else {
            head.put(&(bytes as u32).to_be_bytes());
            head.put(&flags.to_be_bytes());
        }
        head
    }

    /// The request failed: `put` gets the reply. A simple one tells no reason, and is made without
    /// asking for memory.
    pub(super) fn error<R>(self, code: Code, why: &dyn Display, put: impl FnOnce(&[u8]) -> R) -> R {
        let code = code as u32;
        if self.style == Style::Simple {
            return put(self.simple(code).bytes());
        }
        let why = why.to_string();
        let why = &why.as_bytes()[..why.floor_char_boundary(STRING_BYTES_MAX)];
        let payload = 6 + why.len();
        let mut reply = self.chunk(REPLY_TYPE_ERROR, More::None, payload as u32).bytes().to_vec();
        reply.extend(code.to_be_bytes());
        reply.extend((why.len() as u16).to_be_bytes());
        reply.extend(why);
        put(&reply)
    }
}
