//! Connections as streams of bytes: sockets, and memory in their place.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv};
use rustix::net::sockopt::{set_socket_send_buffer_size, socket_domain};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};

/// More than 32 replies of 4 KiB. The kernel gives no more than net.core.wmem_max allows.
pub(super) const SEND_BUFFER_BYTES: usize = 1 << 20;

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    Endless,
    Until(Instant),
}

impl Patience {
    pub(super) fn of(time: Duration) -> Patience {
        Patience::Until(Instant::now() + time)
    }
}

/// A connection to a client.
pub(super) trait Stream: Send + Sync {
    /// Receives at least one byte, or none when the client sends no more.
    ///
    /// # Errors
    /// When the connection is lost; [`io::ErrorKind::TimedOut`].
    fn receive(&self, buffers: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<usize>;

    /// Sends at least one byte of these.
    ///
    /// # Errors
    /// When the connection is lost; [`io::ErrorKind::TimedOut`].
    fn send(&self, slices: &[IoSlice<'_>], patience: Patience) -> io::Result<usize>;

    /// Whether the client has to ask for TLS first.
    fn needs_tls(&self) -> bool {
        false
    }

    /// Encrypts what follows, once the client agrees.
    ///
    /// # Errors
    /// When the client does not keep to TLS, or has no certificate that is trusted; when the
    /// connection is lost; [`io::ErrorKind::TimedOut`].
    fn start_tls(&self, _patience: Patience) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing more is received than what came so far.
    fn stop_receiving(&self);

    /// Ends the connection at once, and all calls that wait for it.
    fn end(&self);
}

/// A connected stream socket, which blocks.
#[derive(Debug)]
pub(super) struct Socket(OwnedFd);

impl Socket {
    /// `send_buffer`: bytes that may wait to be received, on a UNIX socket.
    pub(super) fn new(socket: OwnedFd, send_buffer: usize) -> Socket {
        // The kernel looks after buffers of TCP by itself.
        if socket_domain(&socket) == Ok(AddressFamily::UNIX) {
            // As it is it has room too, but for fewer replies at a time.
            let _ = set_socket_send_buffer_size(&socket, send_buffer);
        }
        Socket(socket)
    }

    /// Waits until the socket can be read, or written to.
    fn wait(&self, events: PollFlags, patience: Patience) -> io::Result<()> {
        loop {
            let left = match patience {
                Patience::Endless => None,
                Patience::Until(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    Some(Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 }))
                }
            };
            match poll(&mut [PollFd::new(&self.0, events)], left.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Stream for Socket {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<usize> {
        if let Patience::Until(_) = patience {
            self.wait(PollFlags::IN, patience)?;
        }
        loop {
            match readv(&self.0, buffers) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn send(&self, slices: &[IoSlice<'_>], patience: Patience) -> io::Result<usize> {
        let mut flags = SendFlags::NOSIGNAL;
        if let Patience::Until(_) = patience {
            flags |= SendFlags::DONTWAIT;
        }
        loop {
            match sendmsg(&self.0, slices, &mut SendAncillaryBuffer::default(), flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, patience)?,
                result => return Ok(result?),
            }
        }
    }

    // Neither can fail but where the client is gone.
    fn stop_receiving(&self) {
        let _ = shutdown(&self.0, Shutdown::Read);
    }

    fn end(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// A client that has sent all it will, and reads all at once.
#[derive(Debug)]
pub(super) struct Recorded {
    state: Mutex<RecordedState>,
    /// No more bytes come at a time.
    bytes_max: usize,
}

#[derive(Debug)]
struct RecordedState {
    unread: Vec<u8>,
    read: usize,
    sent: Vec<u8>,
    has_ended: bool,
}

impl Recorded {
    pub(super) fn new(input: Vec<u8>, bytes_max: usize) -> Recorded {
        let sent = Vec::new();
        let state = RecordedState { unread: input, read: 0, sent, has_ended: false };
        Recorded { state: Mutex::new(state), bytes_max: bytes_max.max(1) }
    }

    /// What was sent to the client.
    pub(super) fn take_sent(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner).sent)
    }
}

impl Stream for std::sync::Arc<Recorded> {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>], _: Patience) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut took = 0;
        for buffer in buffers {
            let rest = &state.unread[state.read..];
            let count = buffer.len().min(rest.len()).min(self.bytes_max - took);
            buffer[..count].copy_from_slice(&rest[..count]);
            state.read += count;
            took += count;
        }
        Ok(if state.has_ended { 0 } else { took })
    }

    fn send(&self, slices: &[IoSlice<'_>], _: Patience) -> io::Result<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.has_ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        // A part of them, as sockets do.
        let slice = slices.iter().find(|slice| !slice.is_empty());
        let slice: &[u8] = slice.map_or(&[], |slice| slice);
        let count = slice.len().min(self.bytes_max);
        state.sent.extend_from_slice(&slice[..count]);
        Ok(count)
    }

    fn stop_receiving(&self) {
        self.end();
    }

    fn end(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
    }
}
