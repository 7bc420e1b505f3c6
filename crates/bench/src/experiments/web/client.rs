//! A client that gets files from a web server: the part of HTTP/1.1 that this takes.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::site::Item;

/// Bytes read at once; an answer's head has to fit.
const BUFFER_BYTES: usize = 32 << 10;
/// How often a client that waits for bytes checks whether to go on.
const LOOK: Duration = Duration::from_millis(200);
/// A server that sends nothing for this time has failed.
const SILENCE: Duration = Duration::from_secs(60);

/// A connection that is kept.
pub(super) struct Client {
    stream: UnixStream,
    buffer: Box<[u8]>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Whole,
    /// It was left before its end.
    Left,
}

impl Client {
    pub(super) fn connect(socket: &Path) -> Result<Client> {
        let stream = UnixStream::connect(socket).context("cannot connect to the web server")?;
        stream.set_read_timeout(Some(LOOK)).context("cannot limit the time of a read")?;
        Ok(Client { stream, buffer: vec![0; BUFFER_BYTES].into() })
    }

    /// Gets a file, whose bytes are handed on as they come.
    ///
    /// # Errors
    /// When the server has anything else to say.
    pub(super) fn get(
        &mut self,
        item: &Item,
        go_on: impl Fn() -> bool,
        mut take: impl FnMut(&[u8]),
    ) -> Result<Answer> {
        let request = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", item.path);
        self.stream.write_all(request.as_bytes()).context("cannot ask the web server")?;
        let mut have = 0;
        let head_bytes = loop {
            ensure!(have < BUFFER_BYTES, "{}: the answer's head does not end", item.path);
            let Some(more) = self.read(have, &go_on)? else { return Ok(Answer::Left) };
            have += more;
            if let Some(end) = end_of_head(&self.buffer[..have]) {
                break end;
            }
        };
        let length = content_length(&self.buffer[..head_bytes])
            .with_context(|| format!("the web server's answer to {}", item.path))?;
        ensure!(
            length == item.bytes,
            "{} has {} bytes, and the web server says {length}",
            item.path,
            item.bytes
        );
        let mut left = length;
        let mut part = head_bytes..have;
        loop {
            let bytes = part.len() as u64;
            ensure!(bytes <= left, "{}: the web server sends more than it says", item.path);
            take(&self.buffer[part]);
            left -= bytes;
            if left == 0 {
                return Ok(Answer::Whole);
            }
            let Some(more) = self.read(0, &go_on)? else { return Ok(Answer::Left) };
            part = 0..more;
        }
    }

    /// Reads into the buffer from a place on; `None` when it is not to go on.
    fn read(&mut self, place: usize, go_on: impl Fn() -> bool) -> Result<Option<usize>> {
        let started = Instant::now();
        loop {
            if !go_on() {
                return Ok(None);
            }
            match self.stream.read(&mut self.buffer[place..]) {
                Ok(0) => bail!("the web server has closed a connection"),
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => ensure!(
                    started.elapsed() < SILENCE,
                    "the web server has sent nothing for {} s",
                    SILENCE.as_secs()
                ),
                Err(error) => return Err(error).context("cannot read from the web server"),
            }
        }
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|place| place + 4)
}

/// Of an answer with a file.
fn content_length(head: &[u8]) -> Result<u64> {
    let head = std::str::from_utf8(head).context("its head is no text")?;
    let mut lines = head.lines();
    let status = lines.next().unwrap_or_default();
    ensure!(status.starts_with("HTTP/1.1 200"), "it says {status}");
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim())
    });
    let length = length.context("it has no Content-Length")?;
    length.parse().with_context(|| format!("its Content-Length is '{length}'"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What the client makes of an answer that is sent in parts of some length.
    fn answered(answer: &'static [u8], part_bytes: usize) -> Result<(Answer, Vec<u8>)> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 100];
            let read = stream.read(&mut request).unwrap();
            assert_eq!(&request[..read], b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
            for part in answer.chunks(part_bytes) {
                stream.write_all(part).unwrap();
            }
        });
        let mut body = Vec::new();
        let item = Item { path: "a".to_owned(), bytes: 10, download: false };
        let mut client = Client::connect(&socket)?;
        let answer = client.get(&item, || true, |bytes| body.extend_from_slice(bytes));
        server.join().unwrap();
        Ok((answer?, body))
    }

    #[test]
    fn a_file_comes_in_parts() {
        let (answer, body) =
            answered(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n0123456789", 7).unwrap();
        assert_eq!((answer, body.as_slice()), (Answer::Whole, b"0123456789".as_slice()));
    }

    #[test]
    fn anything_else_is_an_error() {
        let answers: [(&[u8], &str); 5] = [
            (b"HTTP/1.1 404 Not StepFigures\r\nContent-Length: 10\r\n\r\n0123456789", "404"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n012345678", "10 bytes"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234", "closed"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789more", "more than it says"),
            (b"HTTP/1.1 200 OK\r\n\r\n0123456789", "no Content-Length"),
        ];
        for (answer, expected) in answers {
            let error = format!("{:#}", answered(answer, answer.len()).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
