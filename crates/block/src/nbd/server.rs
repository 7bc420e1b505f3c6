//! Clients come and go here.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::connection::Connection;
use super::export::Export;
use super::handshake::{Session, Style};
use super::listener::Listener;
use super::pace::Pace;
use super::pool::Pool;
use super::statistics::{Counters, Statistics, count};
use super::stream::{Recorded, SEND_BUFFER_BYTES, Socket, Stream};
use super::tls::{Tls, TlsSocket};
use crate::kernel::SWAP_BUFFER_BYTES;
use crate::{BlockDevice, STACK_BYTES};

/// Requests under way get so long to end when the server stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// Where no descriptor is left for another client the server looks again after so long.
const NO_DESCRIPTOR_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Who is at the other end of a socket.
enum Client {
    /// One that begins by the handshake, maybe with TLS.
    Handshake(Option<Tls>),
    /// The kernel, for a device of its own.
    Kernel,
    /// The kernel, for a device that is swap.
    Swap,
}

/// What a server offers, and to how many.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the export. The empty name, which clients use by default, means it too.
    pub export: String,
    /// A line about it for people.
    pub description: String,
    /// Requests that change the device are refused.
    pub is_read_only: bool,
    /// Most clients that may be connected; each takes 6.5 MiB at most, 7.5 with TLS.
    pub connections_max: usize,
    /// Threads for requests that take long.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        Options {
            export: String::new(),
            description: String::new(),
            is_read_only: false,
            connections_max: 32,
            threads: (2 * processors).clamp(4, 16),
        }
    }
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) export: Export,
    pub(super) pool: Arc<Pool>,
    pub(super) pace: Pace,
    pub(super) counters: Counters,
    /// Taken by the request that brings pages ahead of reads.
    pub(super) caching: Mutex<()>,
    connections_max: usize,
    is_stopping: AtomicBool,
    open: Mutex<Open>,
    closed: Condvar,
}

/// The connections that there are.
#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
}

impl Open {
    /// Takes out the client that has been in the handshake for longest. It gives its place to
    /// another one when all are taken, so that clients without a certificate keep none out.
    fn take_idler(&mut self) -> Option<Arc<Connection>> {
        let idlers = self.connections.iter().filter(|(_, connection)| connection.shakes_hands());
        let number = *idlers.min_by_key(|(number, _)| **number)?.0;
        self.connections.remove(&number)
    }
}

/// Takes a client out when its thread ends, however it does.
struct Leaving {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.shared.open().connections.remove(&self.number);
        self.shared.closed.notify_all();
    }
}

impl Shared {
    fn new(device: Arc<dyn BlockDevice>, options: &Options) -> Arc<Shared> {
        let export = Export {
            name: options.export.clone(),
            description: options.description.clone(),
            size_bytes: device.size_bytes(),
            is_read_only: options.is_read_only,
        };
        Arc::new(Shared {
            device,
            export,
            pool: Arc::default(),
            pace: Pace::default(),
            counters: Counters::default(),
            caching: Mutex::default(),
            connections_max: options.connections_max,
            is_stopping: AtomicBool::new(false),
            open: Mutex::default(),
            closed: Condvar::new(),
        })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a client on a thread of its own, if there may be another one.
    fn serve(self: &Arc<Shared>, socket: OwnedFd, client: Client) -> io::Result<()> {
        let mut open = self.open();
        if open.connections.len() >= self.connections_max
            && let Some(connection) = open.take_idler()
        {
            connection.stream().end();
            count(&self.counters.dropped);
        }
        if open.connections.len() >= self.connections_max || self.is_stopping() {
            drop(open);
            count(&self.counters.refused);
            return Err(io::Error::other("there are as many clients as there may be"));
        }
        let kernels = Some(Session { style: Style::Simple, has_context: false });
        let (session, send_buffer, hands_over) = match client {
            Client::Handshake(_) => (None, SEND_BUFFER_BYTES, true),
            Client::Kernel => (kernels, SEND_BUFFER_BYTES, true),
            Client::Swap => (kernels, SWAP_BUFFER_BYTES, false),
        };
        let socket = Socket::new(socket, send_buffer);
        let stream: Box<dyn Stream> = match client {
            Client::Handshake(Some(tls)) => Box::new(TlsSocket::new(socket, tls)),
            _ => Box::new(socket),
        };
        let connection = Arc::new(Connection::new(Arc::clone(self), stream, hands_over));
        let number = open.next;
        open.next += 1;
        let shared = Arc::clone(self);
        let served = Arc::clone(&connection);
        // It removes itself, so it waits until it is there.
        let mut thread = thread::Builder::new().name("nbd-client".into());
        if !hands_over {
            // It is locked.
            thread = thread.stack_size(STACK_BYTES);
        }
        thread.spawn(move || {
            let _leaving = Leaving { shared, number };
            // It goes before that tells the waiting thread.
            let served = served;
            served.serve(session);
        })?;
        open.connections.insert(number, connection);
        count(&self.counters.connections);
        Ok(())
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    /// Lets all requests that came end, and then the connections. Returns when there are none.
    fn end_connections(&self) {
        let mut open = self.open();
        self.is_stopping.store(true, Ordering::Relaxed);
        for connection in open.connections.values() {
            connection.stream().stop_receiving();
        }
        let deadline = Instant::now() + STOP_TIME_MAX;
        while !open.connections.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for connection in open.connections.values() {
                    connection.stream().end();
                }
                open = self.closed.wait(open).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.closed.wait_timeout(open, left);
                open = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// An NBD server of one device. It ends on drop.
pub struct Server {
    shared: Arc<Shared>,
    /// Closed, it ends the thread that accepts clients.
    stop: Option<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Offers the device at these places.
    ///
    /// # Errors
    /// When the server cannot have its threads.
    pub fn start(
        device: Arc<dyn BlockDevice>,
        options: &Options,
        listeners: Vec<Listener>,
    ) -> io::Result<Server> {
        let shared = Shared::new(device, options);
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut server = Server { shared, stop: Some(stop), threads: Vec::new() };
        server.threads = server.shared.pool.start(options.threads.max(1))?;
        let shared = Arc::clone(&server.shared);
        let accepting = thread::Builder::new().name("nbd-accept".into()).stack_size(STACK_BYTES);
        server.threads.push(accepting.spawn(move || accept(&shared, &listeners, &stopped))?);
        Ok(server)
    }

    /// Serves a client that is connected already, by the handshake first.
    ///
    /// # Errors
    /// When there are as many clients as there may be, or a thread cannot be started.
    pub fn serve(&self, socket: OwnedFd) -> io::Result<()> {
        self.shared.serve(socket, Client::Handshake(None))
    }

    /// Serves the kernel (nbd(4)) on the other end of this socket: requests from the first byte
    /// on, with simple replies.
    ///
    /// # Errors
    /// As for [`Server::serve`].
    pub fn serve_kernel(&self, socket: OwnedFd) -> io::Result<()> {
        self.shared.serve(socket, Client::Kernel)
    }

    /// The same for a device that is swap: one thread does all that is asked for, with the memory
    /// that it has from the beginning, and is scheduled as the calling thread is.
    ///
    /// # Errors
    /// As for [`Server::serve`].
    pub fn serve_swap(&self, socket: OwnedFd) -> io::Result<()> {
        self.shared.serve(socket, Client::Swap)
    }

    /// What happened so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.statistics(self.shared.open().connections.len() as u64)
    }

    /// Takes no more clients, and lets requests end that came before. Returns what happened.
    pub fn stop(mut self) -> Statistics {
        self.end();
        self.statistics()
    }

    fn end(&mut self) {
        drop(self.stop.take());
        self.shared.end_connections();
        self.shared.pool.end();
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Accepts clients until the other end of `stopped` is closed.
fn accept(shared: &Arc<Shared>, listeners: &[Listener], stopped: &OwnedFd) {
    let mut listening = true;
    while !shared.is_stopping() {
        let places: Vec<BorrowedFd<'_>> = match listening {
            true => listeners.iter().map(AsFd::as_fd).chain([stopped.as_fd()]).collect(),
            false => vec![stopped.as_fd()],
        };
        let mut polled: Vec<_> =
            places.iter().map(|place| PollFd::from_borrowed_fd(*place, PollFlags::IN)).collect();
        let patience = if listening { None } else { Some(&NO_DESCRIPTOR_WAIT) };
        match poll(&mut polled, patience) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            // Out of memory, or a broken listener: nothing that a further look would mend.
            Err(_) => return,
        }
        if polled.last().is_some_and(|stopped| !stopped.revents().is_empty()) {
            return;
        }
        let are_ready: Vec<bool> = polled.iter().map(|place| !place.revents().is_empty()).collect();
        listening = true;
        for (listener, is_ready) in listeners.iter().zip(are_ready) {
            if !is_ready {
                continue;
            }
            match listener.accept() {
                // Whom it cannot serve it has counted, and hangs up.
                Ok(socket) => _ = shared.serve(socket, Client::Handshake(listener.tls().cloned())),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    listening = false;
                }
                // A client that went again.
                Err(_) => {}
            }
        }
    }
}

/// What a server of this device sends to a client that sends these bytes, no more than
/// `bytes_max` at a time. Nothing runs at the same time: each input has one output.
pub fn answers(
    device: Arc<dyn BlockDevice>,
    options: &Options,
    input: Vec<u8>,
    bytes_max: usize,
) -> Vec<u8> {
    let shared = Shared::new(device, options);
    let stream = Arc::new(Recorded::new(input, bytes_max));
    let client: Box<dyn Stream> = Box::new(Arc::clone(&stream));
    Arc::new(Connection::new(shared, client, false)).serve(None);
    stream.take_sent()
}
