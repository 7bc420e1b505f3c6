//! Sockets, by copying and by lending pages.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::files::{pieces, repeat, send_while};
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::Span;
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("socket", 5, "sendmsg from pages and recvmsg into pages", socket),
    operation("zerocopy", 3, "lends pages to TCP by MSG_ZEROCOPY, reads them later", zerocopy),
];

/// From the kernel's errqueue.h: the origin of a notification that lent pages are back.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;

fn message(pieces: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all bit patterns are valid for the C structure.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    message
}

fn socket(turn: &mut Turn<'_>) -> Outcome {
    let (reader, writer) =
        UnixStream::pair().map_err(|error| Skip::errno("socketpair", error.into()))?;
    let thread = turn.thread;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 128);
    let mut rng = turn.rng.clone();
    region.rewrite_by(first, pages, |span, bytes| {
        let send = || {
            repeat("send", bytes.len(), |done| {
                let rest = &bytes[done..];
                // SAFETY: the slice is readable.
                unsafe { libc::send(writer.as_raw_fd(), rest.as_ptr().cast(), rest.len(), 0) }
            });
        };
        send_while(thread, send, || {
            repeat("recvmsg", bytes.len(), |done| {
                let mut pieces = pieces(span.part(done, bytes.len() - done), &mut rng);
                let mut message = message(&mut pieces);
                // SAFETY: the pieces are parts of a span that is held and writable.
                unsafe { libc::recvmsg(reader.as_raw_fd(), &mut message, 0) }
            });
        });
        Ok(())
    })?;
    region.export_by(first, pages, "by sendmsg", |span, bytes| {
        let (length, address) = (bytes.len(), span.address());
        let send = || {
            // SAFETY: the thread ends before the span does, and only reads it.
            let span = unsafe { Span::new(address, length) };
            repeat("sendmsg", length, |done| {
                let mut pieces = pieces(span.part(done, length - done), &mut rng);
                let message = message(&mut pieces);
                // SAFETY: the pieces are parts of a span that is held and readable.
                unsafe { libc::sendmsg(writer.as_raw_fd(), &message, 0) }
            });
        };
        send_while(thread, send, || {
            repeat("recv", length, |done| {
                let rest = &mut bytes[done..];
                // SAFETY: the slice is writable.
                unsafe { libc::recv(reader.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), 0) }
            });
        });
        Ok(())
    })
}

fn connect() -> Result<(TcpStream, TcpStream), std::io::Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let sender = TcpStream::connect(listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    Ok((sender, receiver))
}

fn zerocopy(turn: &mut Turn<'_>) -> Outcome {
    let (sender, mut receiver) =
        connect().map_err(|error| Skip::errno("TCP over loopback", error.into()))?;
    let descriptor = sender.as_raw_fd();
    let on = 1_i32;
    // SAFETY: the option's value outlives the call.
    let set = unsafe {
        let bytes = size_of_val(&on) as libc::socklen_t;
        let value = (&raw const on).cast();
        libc::setsockopt(descriptor, libc::SOL_SOCKET, libc::SO_ZEROCOPY, value, bytes)
    };
    if set != 0 {
        return Err(Skip::errno("SO_ZEROCOPY", Errno::last()));
    }
    let region = turn.region();
    let (first, pages) = turn.range(&region, 8);
    let span = region.span(first, pages);
    // SAFETY: the span is held; nobody writes it until the kernel has given it back.
    let sent = unsafe {
        libc::send(descriptor, span.void(), span.bytes(), libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT)
    };
    let sent = match sent {
        0.. => sent as usize,
        _ => match Errno::last() {
            // Too little lockable memory, or no room.
            errno @ Errno(libc::ENOBUFS | libc::EAGAIN | libc::EOPNOTSUPP) => {
                return Err(Skip::errno("send with MSG_ZEROCOPY", errno));
            }
            errno => fail!("send with MSG_ZEROCOPY of {pages} pages gave {errno}"),
        },
    };
    for _ in 0..turn.rng.between(1, 400) {
        let world = turn.world;
        world.check_lockless(world.fixed_region, turn.rng.below(world.pages(world.fixed_region)));
    }
    let mut bytes = region.expected(first, pages);
    bytes[..sent].fill(0);
    if let Err(error) = receiver.read_exact(&mut bytes[..sent]) {
        fail!("receiving {sent} bytes: {error}");
    }
    region.compare(first, &bytes, "by MSG_ZEROCOPY");
    await_notification(descriptor);
    region.check(first, pages);
    Ok(())
}

/// Waits until the kernel says that it holds the lent pages no more.
fn await_notification(descriptor: i32) {
    loop {
        current::beat();
        let mut control = [0_u64; 32];
        // SAFETY: all bit patterns are valid for the C structure.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        // SAFETY: the buffers outlive the call.
        let got = unsafe { libc::recvmsg(descriptor, &mut message, libc::MSG_ERRQUEUE) };
        if got >= 0 {
            // SAFETY: the kernel has filled the control buffer in, whose length is in `message`.
            let origin = unsafe {
                let header = libc::CMSG_FIRSTHDR(&message);
                if header.is_null() {
                    fail!("the error queue of a socket has a message without a header");
                }
                (*libc::CMSG_DATA(header).cast::<libc::sock_extended_err>()).ee_origin
            };
            if origin == SO_EE_ORIGIN_ZEROCOPY {
                return;
            }
            continue;
        }
        match Errno::last() {
            Errno(libc::EINTR) => {}
            Errno(libc::EAGAIN) => {
                // The queue's arrival is reported as an error condition, asked for or not.
                let mut poll = libc::pollfd { fd: descriptor, events: 0, revents: 0 };
                // SAFETY: the structure outlives the call.
                unsafe { libc::poll(&mut poll, 1, 100) };
            }
            errno => fail!("recvmsg of the error queue gave {errno}"),
        }
    }
}
