//! Requests of the transmission: what their bytes ask for, and whether that can be done.

use super::export::Export;
use super::handshake::{Fields, Session, Style};
use super::protocol::{
    CMD_BLOCK_STATUS, CMD_CACHE, CMD_DISC, CMD_FLAG_DF, CMD_FLAG_FAST_ZERO, CMD_FLAG_FUA,
    CMD_FLAG_NO_HOLE, CMD_FLAG_PAYLOAD_LEN, CMD_FLAG_REQ_ONE, CMD_FLUSH, CMD_READ, CMD_TRIM,
    CMD_WRITE, CMD_WRITE_ZEROES, Code, EXTENDED_REQUEST_MAGIC, PAYLOAD_BYTES_MAX, REQUEST_MAGIC,
    SKIPPED_BYTES_MAX,
};
use crate::{Durability, Zeroing};

/// A request as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    flags: u16,
    kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    length: u64,
}

/// What bytes of a client begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    /// More are needed.
    More,
    /// A request, and its length in bytes without its payload.
    Request(usize, Header),
    /// No request.
    Malformed,
}

/// Takes the header of the next request off the bytes of a client.
pub(super) fn parse(bytes: &[u8], style: Style) -> Parsed {
    let is_extended = style == Style::Extended;
    let mut fields = Fields(bytes);
    let Some(magic) = fields.u32() else { return Parsed::More };
    if magic != if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC } {
        return Parsed::Malformed;
    }
    let header = (|| {
        let (flags, kind) = (fields.u16()?, fields.u16()?);
        let (cookie, offset) = (fields.u64()?, fields.u64()?);
        let length = if is_extended { fields.u64()? } else { fields.u32()?.into() };
        Some(Header { flags, kind, cookie, offset, length })
    })();
    header.map_or(Parsed::More, |header| Parsed::Request(bytes.len() - fields.0.len(), header))
}

/// A part of the device. It lies within the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// What is asked of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read { in_one_chunk: bool },
    Write(Durability),
    Flush,
    Trim(Durability),
    Zero(Zeroing, Durability),
    Cache,
    Status { one_extent: bool },
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Run(Command, Span),
    /// The client is told why. Its payload, whose length comes last, is thrown away.
    Refuse(Code, &'static str, u64),
    /// The client is done.
    Disconnect,
    /// The client does not keep to the protocol.
    Drop,
}

/// Whether the request can be made of the export.
pub(super) fn check(header: &Header, session: Session, export: &Export) -> Verdict {
    let is_extended = session.style == Style::Extended;
    let is_write = header.kind == CMD_WRITE;
    let has_payload = match is_extended {
        true => header.flags & CMD_FLAG_PAYLOAD_LEN != 0,
        false => is_write,
    };
    let payload = if has_payload { header.length } else { 0 };
    if payload > SKIPPED_BYTES_MAX {
        return Verdict::Drop;
    }
    if header.kind == CMD_DISC {
        return if has_payload { Verdict::Drop } else { Verdict::Disconnect };
    }
    match command(header, session, is_extended && has_payload).and_then(|command| {
        within_bounds(header, command, export, has_payload)?;
        Ok(command)
    }) {
        Ok(command) => Verdict::Run(command, Span { offset: header.offset, bytes: header.length }),
        Err((code, why)) => Verdict::Refuse(code, why, payload),
    }
}

type Refusal = (Code, &'static str);

/// The command, if its flags are its own.
fn command(header: &Header, session: Session, has_payload_flag: bool) -> Result<Command, Refusal> {
    let has = |flag: u16| header.flags & flag != 0;
    let durability = if has(CMD_FLAG_FUA) { Durability::AtOnce } else { Durability::AtFlush };
    let (command, flags) = match header.kind {
        CMD_READ if session.style == Style::Simple => (Command::Read { in_one_chunk: true }, 0),
        CMD_READ => (Command::Read { in_one_chunk: has(CMD_FLAG_DF) }, CMD_FLAG_DF),
        CMD_WRITE if session.style != Style::Extended => (Command::Write(durability), 0),
        CMD_WRITE if has_payload_flag => (Command::Write(durability), CMD_FLAG_PAYLOAD_LEN),
        CMD_WRITE => return Err((Code::Invalid, "the write has no payload")),
        CMD_FLUSH => (Command::Flush, 0),
        CMD_TRIM => (Command::Trim(durability), 0),
        CMD_CACHE => (Command::Cache, 0),
        CMD_WRITE_ZEROES => {
            let may_trim = !has(CMD_FLAG_NO_HOLE);
            let zeroing = Zeroing { may_trim, fast: has(CMD_FLAG_FAST_ZERO) };
            (Command::Zero(zeroing, durability), CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO)
        }
        CMD_BLOCK_STATUS if !session.has_context => {
            return Err((Code::Invalid, "no context was agreed on"));
        }
        CMD_BLOCK_STATUS => {
            (Command::Status { one_extent: has(CMD_FLAG_REQ_ONE) }, CMD_FLAG_REQ_ONE)
        }
        _ => return Err((Code::Invalid, "the command is unknown")),
    };
    // FUA may come with each.
    if header.flags & !(flags | CMD_FLAG_FUA) != 0 {
        return Err((Code::Invalid, "a flag does not belong to the command"));
    }
    Ok(command)
}

fn within_bounds(
    header: &Header,
    command: Command,
    export: &Export,
    has_payload: bool,
) -> Result<(), Refusal> {
    let changes = matches!(command, Command::Write(_) | Command::Trim(_) | Command::Zero(..));
    if changes && export.is_read_only {
        return Err((Code::NotPermitted, "the export is read-only"));
    }
    if command == Command::Flush {
        return match (header.offset, header.length) {
            (0, 0) => Ok(()),
            _ => Err((Code::Invalid, "a flush has no range")),
        };
    }
    let end = header.offset.checked_add(header.length);
    if end.is_none_or(|end| end > export.size_bytes) {
        let needs_room = matches!(command, Command::Write(_) | Command::Zero(..));
        let code = if needs_room { Code::NoRoom } else { Code::Invalid };
        return Err((code, "the range ends beyond the device"));
    }
    let is_too_large = header.length > PAYLOAD_BYTES_MAX.into();
    if is_too_large && has_payload {
        return Err((Code::Invalid, "a request carries 32 MiB at most"));
    }
    if is_too_large && matches!(command, Command::Read { .. }) {
        return Err((Code::TooLarge, "a read asks for 32 MiB at most"));
    }
    if header.length == 0 && matches!(command, Command::Status { .. }) {
        return Err((Code::Invalid, "the range is empty"));
    }
    Ok(())
}
