//! Generic netlink, as far as nbd needs it: a request, and the kernel's reply or error.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// Attributes and messages begin at multiples of this.
const ALIGNMENT: usize = 4;

const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLMSG_ERROR: u16 = 2;
/// Of the type of an attribute: it has attributes in it, or is in network byte order.
const TYPE_FLAGS: u16 = 0xc000;
const NESTED: u16 = 0x8000;

/// The family that names the others.
const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_VERSION: u8 = 1;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

/// Longer than any reply of nbd's.
const REPLY_BYTES_MAX: usize = 16 << 10;

/// A connection to one family of the kernel's.
pub(super) struct Netlink {
    socket: OwnedFd,
    family: u16,
    version: u8,
    sequence: u32,
}

impl Netlink {
    /// Connects to a family by its name.
    ///
    /// # Errors
    /// `ENOENT` where the kernel has no family of that name.
    pub(super) fn open(name: &str, version: u8) -> io::Result<Netlink> {
        let kind = (SocketType::RAW, SocketFlags::CLOEXEC);
        let socket = socket_with(AddressFamily::NETLINK, kind.0, kind.1, Some(GENERIC))?;
        bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        let mut netlink =
            Netlink { socket, family: CONTROL_FAMILY, version: CONTROL_VERSION, sequence: 0 };
        let mut asked = Attributes::default();
        asked.string(CONTROL_FAMILY_NAME, name);
        let reply = netlink.request(CONTROL_GET_FAMILY, &asked)?;
        netlink.family = attributes(&reply)
            .find(|&(kind, _)| kind == CONTROL_FAMILY_ID)
            .and_then(|(_, value)| Some(u16::from_ne_bytes(value.try_into().ok()?)))
            .ok_or_else(|| io::Error::other("the kernel's reply names no family"))?;
        netlink.version = version;
        Ok(netlink)
    }

    /// Sends a command and returns the attributes of the reply, which are none where the kernel
    /// only says that it is done.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn request(&mut self, command: u8, asked: &Attributes) -> io::Result<Vec<u8>> {
        self.sequence += 1;
        let message = self.message(command, asked);
        send(&self.socket, &message, SendFlags::empty())?;
        let mut reply = Vec::new();
        let mut buffer = vec![0; REPLY_BYTES_MAX];
        loop {
            let (received, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            for (kind, sequence, payload) in messages(&buffer[..received]) {
                if sequence != self.sequence {
                    // Of a request that was given up.
                    continue;
                }
                if kind != NLMSG_ERROR {
                    reply = payload.get(GENERIC_HEADER_BYTES..).unwrap_or_default().to_vec();
                    continue;
                }
                return match number(payload) {
                    Some(0) => Ok(reply),
                    Some(failed) => Err(io::Error::from_raw_os_error(failed.wrapping_neg())),
                    None => Err(io::Error::other("the kernel's reply is cut off")),
                };
            }
        }
    }

    fn message(&self, command: u8, asked: &Attributes) -> Vec<u8> {
        let bytes = HEADER_BYTES + GENERIC_HEADER_BYTES + asked.0.len();
        let mut message = Vec::with_capacity(bytes);
        message.extend((bytes as u32).to_ne_bytes());
        message.extend(self.family.to_ne_bytes());
        message.extend((NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        message.extend(self.sequence.to_ne_bytes());
        // The kernel fills in the sender's port.
        message.extend(0u32.to_ne_bytes());
        message.extend([command, self.version, 0, 0]);
        message.extend(&asked.0);
        message
    }
}

/// Attributes of a request.
#[derive(Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn u32(&mut self, kind: u16, value: u32) {
        self.add(kind, &value.to_ne_bytes());
    }

    pub(super) fn u64(&mut self, kind: u16, value: u64) {
        self.add(kind, &value.to_ne_bytes());
    }

    pub(super) fn string(&mut self, kind: u16, value: &str) {
        self.add(kind, &[value.as_bytes(), b"\0"].concat());
    }

    pub(super) fn nested(&mut self, kind: u16, content: &Attributes) {
        self.add(kind | NESTED, &content.0);
    }

    fn add(&mut self, kind: u16, value: &[u8]) {
        let bytes = ATTRIBUTE_HEADER_BYTES + value.len();
        self.0.extend((bytes as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// Attributes of a reply: type and value.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = bytes.split_first_chunk::<ATTRIBUTE_HEADER_BYTES>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !TYPE_FLAGS;
        let value = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The number at the beginning of a message or an attribute.
pub(super) fn number(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
}

/// Messages that came together: type, sequence number and what follows the header.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, u32, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let length = u32::from_ne_bytes(*header.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let sequence = u32::from_ne_bytes(*header[8..].first_chunk()?);
        let payload = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((kind, sequence, payload))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let mut inner = Attributes::default();
        inner.u32(1, 7);
        let mut written = Attributes::default();
        written.string(10, "five5");
        written.u64(2, 1 << 40);
        written.nested(7, &inner);
        let read: Vec<_> = attributes(&written.0).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0], (10, &b"five5\0"[..]));
        assert_eq!(read[1], (2, &(1u64 << 40).to_ne_bytes()[..]));
        assert_eq!(read[2].0, 7);
        let inner: Vec<_> = attributes(read[2].1).collect();
        assert_eq!(inner, [(1, &7u32.to_ne_bytes()[..])]);
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let mut written = Attributes::default();
        written.u32(1, 7);
        written.u64(2, 9);
        for length in 0..written.0.len() {
            let found = attributes(&written.0[..length]).count();
            assert_eq!(found, usize::from(length >= 8), "{length}");
        }
        // A length that is shorter than its own header ends it, too.
        assert_eq!(attributes(&[2, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(messages(&[4; 64]).count(), 0);
    }

    /// The control family is in every kernel with generic netlink.
    #[test]
    fn a_family_is_found_by_its_name() {
        match Netlink::open("nlctrl", 1) {
            Ok(netlink) => assert_eq!(netlink.family, CONTROL_FAMILY),
            Err(error) => return eprintln!("SKIPPED: no generic netlink here: {error}"),
        }
        let unknown = Netlink::open("ramfold-none", 1).err().unwrap();
        assert_eq!(unknown.kind(), io::ErrorKind::NotFound);
    }
}
