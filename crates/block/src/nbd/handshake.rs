//! The handshake: bytes of a client in, bytes of the server out, no input or output of its own.

use super::export::Export;
use super::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED,
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, IHAVEOPT, INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_EXPORT,
    INFO_NAME, NBDMAGIC, OPT_ABORT, OPT_EXPORT_NAME, OPT_EXTENDED_HEADERS, OPT_GO, OPT_INFO,
    OPT_LIST, OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT, OPT_STARTTLS, OPT_STRUCTURED_REPLY,
    OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, REP_ACK, REP_ERR_EXT_HEADER_REQD, REP_ERR_INVALID,
    REP_ERR_POLICY, REP_ERR_TLS_REQD, REP_ERR_TOO_BIG, REP_ERR_UNKNOWN, REP_ERR_UNSUP, REP_INFO,
    REP_META_CONTEXT, REP_SERVER, STRING_BYTES_MAX,
};

/// The data of an option that is looked at; longer data is skipped.
pub(super) const OPTION_BYTES_MAX: usize = 64 << 10;
/// A client that sends a longer option than this is dropped.
const SKIPPED_BYTES_MAX: usize = 1 << 20;
/// A client that sends more options is dropped.
const OPTIONS_MAX: u32 = 1024;
const OPTION_HEADER_BYTES: usize = 16;

/// What was agreed on, for the requests that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) style: Style,
    /// The client may ask for `base:allocation`.
    pub(super) has_context: bool,
}

/// How requests and replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Simple,
    Structured,
    Extended,
}

/// What became of the client's next bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More are needed.
    More,
    /// This number of bytes is dealt with.
    Took(usize),
    /// The same, and the client's part of the handshake of TLS follows.
    StartTls(usize),
    /// The same, and requests follow.
    Begin(usize, Session),
    /// The connection ends once the output is sent: the client asked for it.
    End,
    /// The connection ends: the client does not keep to the protocol.
    Drop,
}

/// Whether what comes is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encryption {
    Unavailable,
    /// The client has to ask for it.
    Needed,
    Active,
}

/// One client's handshake.
#[derive(Debug)]
pub(super) struct Handshake<'a> {
    export: &'a Export,
    encryption: Encryption,
    has_client_flags: bool,
    has_no_zeroes: bool,
    style: Style,
    has_context: bool,
    /// Bytes of an option that are thrown away.
    skipped: usize,
    options: u32,
}

impl<'a> Handshake<'a> {
    pub(super) fn new(export: &'a Export, needs_tls: bool) -> Handshake<'a> {
        Handshake {
            export,
            encryption: if needs_tls { Encryption::Needed } else { Encryption::Unavailable },
            has_client_flags: false,
            has_no_zeroes: false,
            style: Style::Simple,
            has_context: false,
            skipped: 0,
            options: 0,
        }
    }

    /// What the server says first.
    pub(super) fn greeting() -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        out.extend(NBDMAGIC.to_be_bytes());
        out.extend(IHAVEOPT.to_be_bytes());
        out.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        out
    }

    /// Deals with the next message of the client, whose bytes these begin with.
    pub(super) fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Step {
        if self.skipped > 0 {
            let took = self.skipped.min(bytes.len());
            self.skipped -= took;
            return if took == 0 { Step::More } else { Step::Took(took) };
        }
        let mut fields = Fields(bytes);
        if !self.has_client_flags {
            let Some(flags) = fields.u32() else { return Step::More };
            if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
                return Step::Drop;
            }
            self.has_client_flags = true;
            self.has_no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
            return Step::Took(4);
        }
        let (Some(magic), Some(option), Some(length)) = (fields.u64(), fields.u32(), fields.u32())
        else {
            return Step::More;
        };
        let length = length as usize;
        if magic != IHAVEOPT || length > SKIPPED_BYTES_MAX || self.options == OPTIONS_MAX {
            return Step::Drop;
        }
        if length > OPTION_BYTES_MAX {
            if option == OPT_EXPORT_NAME {
                return Step::Drop;
            }
            self.options += 1;
            self.skipped = length;
            reply(option, REP_ERR_TOO_BIG, b"the option is too long", out);
            return Step::Took(OPTION_HEADER_BYTES);
        }
        let Some(data) = fields.bytes(length) else { return Step::More };
        self.options += 1;
        let took = OPTION_HEADER_BYTES + length;
        match self.answer(option, data, out) {
            Answered::Replied => Step::Took(took),
            Answered::StartTls => Step::StartTls(took),
            Answered::Begin => {
                Step::Begin(took, Session { style: self.style, has_context: self.has_context })
            }
            Answered::End => Step::End,
            Answered::Drop => Step::Drop,
        }
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Answered {
        let is_early = !matches!(option, OPT_ABORT | OPT_STARTTLS);
        if is_early && self.encryption == Encryption::Needed {
            // An error cannot be told in reply to this one.
            if option == OPT_EXPORT_NAME {
                return Answered::Drop;
            }
            reply(option, REP_ERR_TLS_REQD, b"this server needs TLS", out);
            return Answered::Replied;
        }
        match option {
            OPT_EXPORT_NAME => return self.export_name(data, out),
            OPT_ABORT => {
                reply(option, REP_ACK, &[], out);
                return Answered::End;
            }
            OPT_INFO | OPT_GO => return self.info(option, data, out),
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => self.contexts(option, data, out),
            OPT_LIST | OPT_STARTTLS | OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS
                if !data.is_empty() =>
            {
                reply(option, REP_ERR_INVALID, b"the option has no data", out);
            }
            OPT_LIST => {
                let name = self.export.name.as_bytes();
                let mut server = (name.len() as u32).to_be_bytes().to_vec();
                server.extend(name);
                server.extend(self.export.description.as_bytes());
                reply(option, REP_SERVER, &server, out);
                reply(option, REP_ACK, &[], out);
            }
            OPT_STARTTLS => match self.encryption {
                Encryption::Unavailable => {
                    reply(option, REP_ERR_POLICY, b"this server has no TLS", out);
                }
                Encryption::Active => {
                    reply(option, REP_ERR_INVALID, b"TLS has begun already", out);
                }
                Encryption::Needed => {
                    reply(option, REP_ACK, &[], out);
                    // What was agreed on before counts no more: anybody may have said it.
                    (self.style, self.has_context) = (Style::Simple, false);
                    self.encryption = Encryption::Active;
                    return Answered::StartTls;
                }
            },
            OPT_STRUCTURED_REPLY if self.style == Style::Extended => {
                reply(option, REP_ERR_EXT_HEADER_REQD, b"headers are extended already", out);
            }
            OPT_EXTENDED_HEADERS if self.style == Style::Extended => {
                reply(option, REP_ERR_INVALID, b"headers are extended already", out);
            }
            OPT_STRUCTURED_REPLY | OPT_EXTENDED_HEADERS => {
                let is_extended = option == OPT_EXTENDED_HEADERS;
                self.style = if is_extended { Style::Extended } else { Style::Structured };
                reply(option, REP_ACK, &[], out);
            }
            _ => reply(option, REP_ERR_UNSUP, b"the option is unknown", out),
        }
        Answered::Replied
    }

    fn export_name(&self, name: &[u8], out: &mut Vec<u8>) -> Answered {
        // Errors cannot be told here.
        if self.style == Style::Extended || !self.export.is_named(name) {
            return Answered::Drop;
        }
        out.extend(self.export.size_bytes.to_be_bytes());
        out.extend(self.export.flags(self.style != Style::Simple).to_be_bytes());
        if !self.has_no_zeroes {
            out.extend([0; 124]);
        }
        Answered::Begin
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Answered {
        let mut fields = Fields(data);
        let asked = (|| {
            let name = fields.string()?;
            let count = usize::from(fields.u16()?);
            let asked = fields.bytes(count * 2)?;
            fields.0.is_empty().then_some((name, asked))
        })();
        let Some((name, asked)) = asked else {
            reply(option, REP_ERR_INVALID, b"the option's lengths are wrong", out);
            return Answered::Replied;
        };
        if !self.export.is_named(name) {
            reply(option, REP_ERR_UNKNOWN, b"there is no export of that name", out);
            return Answered::Replied;
        }
        let is_asked = |info: u16| asked.chunks_exact(2).any(|asked| asked == info.to_be_bytes());
        let mut info = |kind: u16, parts: &[&[u8]]| {
            let data = [&[&kind.to_be_bytes()[..]], parts].concat().concat();
            reply(option, REP_INFO, &data, out);
        };
        let flags = self.export.flags(self.style != Style::Simple);
        info(INFO_EXPORT, &[&self.export.size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
        if is_asked(INFO_NAME) {
            info(INFO_NAME, &[self.export.name.as_bytes()]);
        }
        if is_asked(INFO_DESCRIPTION) {
            info(INFO_DESCRIPTION, &[self.export.description.as_bytes()]);
        }
        if is_asked(INFO_BLOCK_SIZE) {
            let sizes = [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX];
            info(INFO_BLOCK_SIZE, &[&sizes.map(u32::to_be_bytes).concat()]);
        }
        reply(option, REP_ACK, &[], out);
        if option == OPT_GO { Answered::Begin } else { Answered::Replied }
    }

    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let is_set = option == OPT_SET_META_CONTEXT;
        if is_set {
            // Also where this option fails.
            self.has_context = false;
            if self.style == Style::Simple {
                reply(option, REP_ERR_INVALID, b"structured replies come first", out);
                return;
            }
        }
        let mut fields = Fields(data);
        let asked = (|| {
            let name = fields.string()?;
            let count = fields.u32()?;
            // None asks a list for all that there is.
            let mut is_asked = count == 0 && !is_set;
            for _ in 0..count {
                let query = fields.string()?;
                is_asked |= query == BASE_ALLOCATION || (!is_set && query == b"base:");
            }
            fields.0.is_empty().then_some((name, is_asked))
        })();
        let Some((name, is_asked)) = asked else {
            reply(option, REP_ERR_INVALID, b"the option's lengths are wrong", out);
            return;
        };
        if !self.export.is_named(name) {
            reply(option, REP_ERR_UNKNOWN, b"there is no export of that name", out);
            return;
        }
        if is_asked {
            let id = if is_set { BASE_ALLOCATION_ID } else { 0 };
            let context = [&id.to_be_bytes(), BASE_ALLOCATION].concat();
            reply(option, REP_META_CONTEXT, &context, out);
            self.has_context |= is_set;
        }
        reply(option, REP_ACK, &[], out);
    }
}

/// What becomes of the connection after an option.
enum Answered {
    Replied,
    StartTls,
    Begin,
    End,
    Drop,
}

fn reply(option: u32, kind: u32, data: &[u8], out: &mut Vec<u8>) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

/// What is left of a message. Each call takes a field off its front, or finds it too short.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes with their count in front.
    fn string(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()? as usize;
        if count > STRING_BYTES_MAX { None } else { self.bytes(count) }
    }
}
