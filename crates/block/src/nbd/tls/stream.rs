//! A connection that becomes encrypted when the client asks for it.
//!
//! | lock | who takes it |
//! |---|---|
//! | `incoming` | the thread that receives, while it waits for the client too |
//! | `outgoing` | the thread that sends, while it waits for the client too |
//! | `session` | either, after its own, and never while it waits |

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

use rustls::ServerConnection;

use super::Tls;
use crate::nbd::stream::{Patience, Socket, Stream};

/// Encrypted bytes of the client that are received at a time.
const INCOMING_BYTES: usize = 128 << 10;
/// Bytes that are encrypted at a time.
const OUTGOING_BYTES_MAX: usize = 256 << 10;

/// A socket whose bytes are encrypted once the client has asked for it.
pub(in crate::nbd) struct TlsSocket {
    socket: Socket,
    tls: Tls,
    encrypted: OnceLock<Encrypted>,
}

impl TlsSocket {
    pub(in crate::nbd) fn new(socket: Socket, tls: Tls) -> TlsSocket {
        TlsSocket { socket, tls, encrypted: OnceLock::new() }
    }
}

impl Stream for TlsSocket {
    fn receive(&self, buffers: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<usize> {
        match self.encrypted.get() {
            Some(encrypted) => encrypted.receive(&self.socket, buffers, patience),
            None => self.socket.receive(buffers, patience),
        }
    }

    fn send(&self, slices: &[IoSlice<'_>], patience: Patience) -> io::Result<usize> {
        match self.encrypted.get() {
            Some(encrypted) => encrypted.send(&self.socket, slices, patience),
            None => self.socket.send(slices, patience),
        }
    }

    fn needs_tls(&self) -> bool {
        self.encrypted.get().is_none()
    }

    fn start_tls(&self, patience: Patience) -> io::Result<()> {
        let encrypted = Encrypted::begin(&self.tls, &self.socket, patience)?;
        self.encrypted.set(encrypted).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    fn stop_receiving(&self) {
        self.socket.stop_receiving();
    }

    fn end(&self) {
        if let Some(encrypted) = self.encrypted.get() {
            encrypted.say_goodbye(&self.socket);
        }
        self.socket.end();
    }
}

/// A session of TLS, with what is between it and the socket.
struct Encrypted {
    session: Mutex<Session>,
    incoming: Mutex<Incoming>,
    outgoing: Mutex<Outgoing>,
}

struct Session {
    tls: ServerConnection,
    /// The server has said that it sends no more: nothing is received either.
    is_over: bool,
}

/// Encrypted bytes that were received.
struct Incoming {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
    /// The client has said that it sends no more, or does not keep to TLS.
    has_ended: bool,
    /// Why it does not. It is told after what came before.
    failed: Option<io::Error>,
}

/// Encrypted bytes that are sent next.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// How many of the caller's bytes are among them. The caller learns it when all are sent, so
    /// the next call begins with the same bytes where they could not be sent at once.
    taken: usize,
}

impl Encrypted {
    /// The handshake of TLS, after that of the protocol came to it.
    fn begin(tls: &Tls, socket: &Socket, patience: Patience) -> io::Result<Encrypted> {
        let mut session = ServerConnection::new(Arc::clone(&tls.0)).map_err(io::Error::other)?;
        session.set_buffer_limit(Some(OUTGOING_BYTES_MAX));
        let bytes = vec![0; INCOMING_BYTES].into();
        let mut incoming = Incoming { bytes, begin: 0, end: 0, has_ended: false, failed: None };
        let mut outgoing = Outgoing::default();
        loop {
            outgoing.take_from(&mut session)?;
            outgoing.send(socket, patience)?;
            if !session.is_handshaking() {
                break;
            }
            if !incoming.receive(socket, patience)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while session.is_handshaking() && !incoming.is_empty() {
                incoming.give_to(&mut session)?;
            }
            if let Some(error) = incoming.failed.take() {
                // The client is told why, if it still listens.
                outgoing.take_from(&mut session)?;
                let _ = outgoing.send(socket, Patience::Until(Instant::now()));
                return Err(error);
            }
            if incoming.has_ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let (incoming, outgoing) = (Mutex::new(incoming), Mutex::new(outgoing));
        let session = Mutex::new(Session { tls: session, is_over: false });
        Ok(Encrypted { session, incoming, outgoing })
    }

    fn receive(
        &self,
        socket: &Socket,
        mut buffers: &mut [IoSliceMut<'_>],
        patience: Patience,
    ) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        let mut filled = 0;
        loop {
            let mut session = lock(&self.session);
            if session.is_over {
                return Ok(0);
            }
            loop {
                filled += fill(&mut session.tls, &mut buffers)?;
                if buffers.is_empty() || incoming.is_empty() {
                    break;
                }
                incoming.give_to(&mut session.tls)?;
            }
            drop(session);
            if filled > 0 {
                return Ok(filled);
            }
            if let Some(error) = incoming.failed.take() {
                return Err(error);
            }
            if incoming.has_ended || !incoming.receive(socket, patience)? {
                return Ok(0);
            }
        }
    }

    fn send(
        &self,
        socket: &Socket,
        slices: &[IoSlice<'_>],
        patience: Patience,
    ) -> io::Result<usize> {
        let mut outgoing = lock(&self.outgoing);
        if outgoing.taken == 0 {
            let mut session = lock(&self.session);
            for slice in slices {
                let count = session.tls.writer().write(slice)?;
                outgoing.taken += count;
                if count < slice.len() {
                    break;
                }
            }
            outgoing.take_from(&mut session.tls)?;
        }
        outgoing.send(socket, patience)?;
        Ok(std::mem::take(&mut outgoing.taken))
    }

    /// Tells the client that the server sends no more, if it can be told at once.
    fn say_goodbye(&self, socket: &Socket) {
        let (Some(mut outgoing), Some(mut session)) =
            (try_lock(&self.outgoing), try_lock(&self.session))
        else {
            return;
        };
        session.is_over = true;
        session.tls.send_close_notify();
        // It is gone already, or does not read.
        let _ = outgoing
            .take_from(&mut session.tls)
            .and_then(|()| outgoing.send(socket, Patience::Until(Instant::now())));
    }
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Receives more when nothing is left; returns whether there was any.
    fn receive(&mut self, socket: &Socket, patience: Patience) -> io::Result<bool> {
        (self.begin, self.end) = (0, 0);
        self.end = socket.receive(&mut [IoSliceMut::new(&mut self.bytes)], patience)?;
        Ok(self.end > 0)
    }

    /// Gives the session some of the bytes. What comes after the client's last word is thrown away:
    /// the session would not take it.
    fn give_to(&mut self, session: &mut ServerConnection) -> io::Result<()> {
        let mut unread = &self.bytes[self.begin..self.end];
        self.begin += session.read_tls(&mut unread)?;
        match session.process_new_packets() {
            Ok(state) => self.has_ended = state.peer_has_closed(),
            Err(error) => {
                self.failed = Some(io::Error::new(io::ErrorKind::InvalidData, error));
                self.has_ended = true;
            }
        }
        if self.has_ended {
            self.begin = self.end;
        }
        Ok(())
    }
}

impl Outgoing {
    /// Takes what the session wants to send.
    fn take_from(&mut self, session: &mut ServerConnection) -> io::Result<()> {
        while session.wants_write() {
            session.write_tls(&mut self.bytes)?;
        }
        Ok(())
    }

    /// Sends all.
    fn send(&mut self, socket: &Socket, patience: Patience) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            self.sent += socket.send(&[IoSlice::new(&self.bytes[self.sent..])], patience)?;
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Fills the front of the buffers with what was decrypted, and leaves their rest.
fn fill(session: &mut ServerConnection, buffers: &mut &mut [IoSliceMut<'_>]) -> io::Result<usize> {
    let mut filled = 0;
    // No empty one is first.
    IoSliceMut::advance_slices(buffers, 0);
    while let Some(first) = buffers.first_mut() {
        let count = match session.reader().read(first) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        };
        if count == 0 {
            break;
        }
        filled += count;
        IoSliceMut::advance_slices(buffers, count);
    }
    Ok(filled)
}

/// The mutex, where no other thread has it.
fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
