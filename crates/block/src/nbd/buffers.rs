//! What a connection has received and not looked at, and what it will send.

use std::io::{self, IoSliceMut};

use super::stream::{Patience, Stream};

const INPUT_BYTES: usize = 256 << 10;
const OUTPUT_BYTES: usize = 256 << 10;
/// What is unread goes to the front of the buffer where less than this is behind it.
const INPUT_ROOM_MIN: usize = 64 << 10;
/// So much is received behind the payload of a large write: the next request, and little of its
/// payload, which would be copied.
const AHEAD_BYTES: usize = 4096;

/// Bytes of the client.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Input {
        Input { bytes: vec![0; INPUT_BYTES].into(), begin: 0, end: 0 }
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Takes `count` bytes off: they are dealt with.
    pub(super) fn take(&mut self, count: usize) -> &[u8] {
        let taken = self.begin..self.begin + count;
        self.begin = taken.end;
        &self.bytes[taken]
    }

    /// Receives more; returns whether there was any.
    pub(super) fn receive(&mut self, stream: &dyn Stream, patience: Patience) -> io::Result<bool> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
        } else if self.bytes.len() - self.end < INPUT_ROOM_MIN {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        let room = &mut self.bytes[self.end..];
        let received = stream.receive(&mut [IoSliceMut::new(room)], patience)?;
        self.end += received;
        Ok(received > 0)
    }

    /// Fills the buffer: with what was received, then past this one. Returns whether the client
    /// has sent enough.
    pub(super) fn receive_into(
        &mut self,
        buffer: &mut [u8],
        stream: &dyn Stream,
    ) -> io::Result<bool> {
        let mut filled = buffer.len().min(self.unread().len());
        buffer[..filled].copy_from_slice(self.take(filled));
        while filled < buffer.len() {
            (self.begin, self.end) = (0, 0);
            let rest = buffer.len() - filled;
            let mut buffers = [
                IoSliceMut::new(&mut buffer[filled..]),
                IoSliceMut::new(&mut self.bytes[..AHEAD_BYTES]),
            ];
            let received = stream.receive(&mut buffers, Patience::Endless)?;
            if received == 0 {
                return Ok(false);
            }
            filled += received.min(rest);
            self.end = received.saturating_sub(rest);
        }
        Ok(true)
    }
}

/// Replies that are sent together.
#[derive(Debug)]
pub(super) struct Output {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Output {
    pub(super) fn new() -> Output {
        Output { bytes: vec![0; OUTPUT_BYTES].into(), filled: 0 }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.bytes.len() - self.filled >= bytes
    }

    /// What follows the bytes so far.
    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// `bytes` bytes of the room are filled.
    pub(super) fn add(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.add(bytes.len());
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }
}
