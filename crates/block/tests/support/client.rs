//! A client of NBD that makes any bytes, right or wrong, and takes the server's apart.

use std::collections::HashMap;

/// What replies look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Simple,
    Structured,
    Extended,
}

/// The bytes that a client sends.
pub(crate) struct Client {
    shape: Shape,
    pub bytes: Vec<u8>,
    requests: HashMap<u64, Request>,
    next_cookie: u64,
}

struct Request {
    kind: u16,
    offset: u64,
    length: u64,
    /// Bytes of a read that were told.
    told: u64,
    has_failed: bool,
    is_answered: bool,
}

/// What a server said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Done { cookie: u64 },
    Error { cookie: u64, code: u32 },
    Data { offset: u64, bytes: Vec<u8> },
    Hole { offset: u64, bytes: u32 },
    Extents { extents: Vec<(u64, u64)> },
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const STATUS: u16 = 7;
const PAYLOAD_LEN: u16 = 32;

impl Client {
    pub(crate) fn new(shape: Shape) -> Client {
        Client { shape, bytes: Vec::new(), requests: HashMap::new(), next_cookie: 0x5a5a_0000 }
    }

    pub(crate) fn flags(&mut self, flags: u32) {
        self.bytes.extend(flags.to_be_bytes());
    }

    pub(crate) fn option(&mut self, option: u32, data: &[u8]) {
        self.bytes.extend(b"IHAVEOPT");
        self.bytes.extend(option.to_be_bytes());
        self.bytes.extend((data.len() as u32).to_be_bytes());
        self.bytes.extend(data);
    }

    /// Agrees on the shape and, where replies have chunks, on the context; and begins.
    pub(crate) fn agree(&mut self, export: &str) {
        let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes()].concat();
        match self.shape {
            Shape::Simple => {}
            Shape::Structured => self.option(8, &[]),
            Shape::Extended => self.option(11, &[]),
        }
        if self.shape != Shape::Simple {
            let query = b"base:allocation";
            let queries = [&1u32.to_be_bytes()[..], &(query.len() as u32).to_be_bytes(), query];
            self.option(10, &[&name[..], &queries.concat()].concat());
        }
        self.option(7, &[&name[..], &[0, 1, 0, 3]].concat());
    }

    /// Adds a request, with `payload` bytes of data where it has any. Returns its cookie.
    pub(crate) fn request(
        &mut self,
        flags: u16,
        kind: u16,
        offset: u64,
        length: u64,
        payload: usize,
    ) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let is_extended = self.shape == Shape::Extended;
        let flags = match kind {
            WRITE if is_extended => flags | PAYLOAD_LEN,
            _ => flags & !PAYLOAD_LEN,
        };
        self.bytes.extend(if is_extended { 0x21e4_1c71_u32 } else { 0x2560_9513 }.to_be_bytes());
        self.bytes.extend(flags.to_be_bytes());
        self.bytes.extend(kind.to_be_bytes());
        self.bytes.extend(cookie.to_be_bytes());
        self.bytes.extend(offset.to_be_bytes());
        if is_extended {
            self.bytes.extend(length.to_be_bytes());
        } else {
            self.bytes.extend((length as u32).to_be_bytes());
        }
        self.bytes.extend((0..payload).map(|at| (at % 255) as u8));
        let (told, has_failed, is_answered) = (0, false, false);
        let request = Request { kind, offset, length, told, has_failed, is_answered };
        self.requests.insert(cookie, request);
        cookie
    }

    /// Takes apart all that a server sent, and checks that it answers what was asked.
    pub(crate) fn parse(&mut self, output: &[u8]) -> Result<Vec<Reply>, String> {
        let mut rest = Bytes(output);
        if rest.u64()? != 0x4e42_444d_4147_4943 || rest.u64()? != 0x4948_4156_454f_5054 {
            return Err("no greeting".into());
        }
        rest.u16()?;
        loop {
            if rest.u64()? != 0x0003_e889_0455_65a9 {
                return Err("no reply to an option".into());
            }
            let (option, kind, length) = (rest.u32()?, rest.u32()?, rest.u32()?);
            rest.bytes(length as usize)?;
            if (option, kind) == (7, 1) {
                break;
            }
        }
        let mut replies = Vec::new();
        while !rest.0.is_empty() {
            let reply = match self.shape {
                Shape::Simple => self.simple(&mut rest)?,
                _ => self.chunk(&mut rest)?,
            };
            replies.push(reply);
        }
        Ok(replies)
    }

    fn simple(&mut self, rest: &mut Bytes<'_>) -> Result<Reply, String> {
        if rest.u32()? != 0x6744_6698 {
            return Err("no simple reply".into());
        }
        let (code, cookie) = (rest.u32()?, rest.u64()?);
        let request = asked(&mut self.requests, cookie)?;
        request.is_answered = true;
        match code {
            0 if request.kind == READ => {
                let bytes = rest.bytes(request.length as usize)?.to_vec();
                Ok(Reply::Data { offset: request.offset, bytes })
            }
            0 => Ok(Reply::Done { cookie }),
            code => Ok(Reply::Error { cookie, code }),
        }
    }

    fn chunk(&mut self, rest: &mut Bytes<'_>) -> Result<Reply, String> {
        let is_extended = self.shape == Shape::Extended;
        if rest.u32()? != if is_extended { 0x6e8a_278c } else { 0x668e_33ef } {
            return Err("no chunk".into());
        }
        let (flags, kind, cookie) = (rest.u16()?, rest.u16()?, rest.u64()?);
        let request = asked(&mut self.requests, cookie)?;
        if is_extended && rest.u64()? != request.offset {
            return Err("the offset is not the request's".into());
        }
        let length = if is_extended { rest.u64()? } else { rest.u32()?.into() };
        let mut payload = Bytes(rest.bytes(length as usize)?);
        let end = request.offset.saturating_add(request.length);
        let reply = match kind {
            0 => Reply::Done { cookie },
            1 | 2 => {
                let offset = payload.u64()?;
                let reply = match kind {
                    1 => Reply::Data { offset, bytes: payload.take_all() },
                    _ => Reply::Hole { offset, bytes: payload.u32()? },
                };
                let bytes = match &reply {
                    Reply::Data { bytes, .. } => bytes.len() as u64,
                    Reply::Hole { bytes, .. } => (*bytes).into(),
                    _ => 0,
                };
                request.told += bytes;
                if request.kind != READ || offset < request.offset || offset + bytes > end {
                    return Err("data that nobody asked for".into());
                }
                reply
            }
            5 | 6 if request.kind == STATUS => {
                payload.u32()?;
                if is_extended {
                    let count = u64::from(payload.u32()?);
                    if count * 16 + 8 != length {
                        return Err("the count of extents is wrong".into());
                    }
                }
                let mut extents = Vec::new();
                while !payload.0.is_empty() {
                    extents.push(match kind {
                        6 => (payload.u64()?, payload.u64()?),
                        _ => (payload.u32()?.into(), payload.u32()?.into()),
                    });
                }
                let told: u64 = extents.iter().map(|extent| extent.0).sum();
                if extents.iter().any(|extent| extent.0 == 0) || told > request.length {
                    return Err("extents of a wrong length".into());
                }
                Reply::Extents { extents }
            }
            0x8001 => {
                let code = payload.u32()?;
                let length = payload.u16()?;
                String::from_utf8(payload.bytes(length.into())?.to_vec())
                    .map_err(|error| error.to_string())?;
                request.has_failed = true;
                Reply::Error { cookie, code }
            }
            kind => return Err(format!("chunk of type {kind}")),
        };
        if !payload.0.is_empty() {
            return Err("bytes behind a chunk".into());
        }
        if flags & 1 != 0 {
            request.is_answered = true;
            if request.kind == READ && !request.has_failed && request.told != request.length {
                return Err(format!("{} of {} bytes read", request.told, request.length));
            }
        }
        Ok(reply)
    }
}

fn asked(requests: &mut HashMap<u64, Request>, cookie: u64) -> Result<&mut Request, String> {
    let request = requests.get_mut(&cookie).ok_or("a cookie that nobody sent")?;
    if request.is_answered { Err("answered twice".into()) } else { Ok(request) }
}

/// What is left of a server's bytes.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or("the server's bytes end early")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn take_all(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0).to_vec()
    }

    fn u16(&mut self) -> Result<u16, String> {
        Ok(u16::from_be_bytes(self.bytes(2)?.try_into().unwrap()))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_be_bytes(self.bytes(4)?.try_into().unwrap()))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_be_bytes(self.bytes(8)?.try_into().unwrap()))
    }
}
