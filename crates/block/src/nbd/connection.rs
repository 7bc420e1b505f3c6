//! One client's connection: the thread that reads its requests.
//!
//! Requests are read many at a time. Short ones are done at once, straight from the buffer that
//! they came in and into the one that their replies are sent from, as long as the device answers
//! quickly. Others are handed to the pool, so that many are under way. Requests of more than
//! [`LARGE_BYTES_MAX`](super::job::LARGE_BYTES_MAX) are done in pieces.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::buffers::{Input, Output};
use super::execution;
use super::handshake::{Handshake, Session, Step, Style};
use super::job::{Job, Jobs, LARGE_BYTES_MAX, SMALL_BYTES_MAX};
use super::outbox::{Outbox, Sending};
use super::pool;
use super::protocol::{Code, STRING_BYTES_MAX};
use super::reply::{Asked, HEAD_BYTES_MAX, More};
use super::request::{Command, Header, Parsed, Span, Verdict, check, parse};
use super::server::Shared;
use super::statistics::count;
use super::stream::{Patience, Stream};

/// The whole handshake takes no longer.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest reply to a small request but its data.
const REPLY_BYTES_MAX: usize = SMALL_BYTES_MAX + STRING_BYTES_MAX + 2 * HEAD_BYTES_MAX;
/// Most bytes that a device deals with at once where it does not have to read or write them.
const QUICK_BYTES_MAX: u64 = 1 << 20;

/// What the threads that serve a client share.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    stream: Box<dyn Stream>,
    outbox: Outbox,
    jobs: Jobs,
    /// Requests may be left to the pool. Otherwise the thread that reads them does all.
    hands_over: bool,
    /// The client is not done with the handshake.
    shakes_hands: AtomicBool,
    /// No more requests come.
    has_ended: AtomicBool,
}

impl Connection {
    pub(super) fn new(
        shared: Arc<Shared>,
        stream: Box<dyn Stream>,
        hands_over: bool,
    ) -> Connection {
        Connection {
            shared,
            stream,
            outbox: Outbox::default(),
            jobs: Jobs::default(),
            hands_over,
            shakes_hands: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Whether what is under way is the last of it.
    pub(super) fn is_ending(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.shared.is_stopping()
    }

    pub(super) fn shakes_hands(&self) -> bool {
        self.shakes_hands.load(Ordering::Relaxed)
    }

    pub(super) fn stream(&self) -> &dyn Stream {
        &*self.stream
    }

    pub(super) fn sending(&self) -> Sending<'_> {
        let has_drain = self.hands_over;
        Sending { outbox: &self.outbox, stream: &*self.stream, jobs: &self.jobs, has_drain }
    }

    /// Serves the client to its end; without a session it begins by the handshake.
    pub(super) fn serve(self: &Arc<Connection>, session: Option<Session>) {
        let mut input = Input::new();
        let session = match session {
            Some(session) => Ok(session),
            None => self.shake_hands(&mut input),
        };
        self.shakes_hands.store(false, Ordering::Relaxed);
        let ended = match session {
            Ok(session) => self.transmit(session, input),
            Err(ended) => ended,
        };
        if ended == Ended::Dropped {
            count(&self.shared.counters.dropped);
        }
        self.stream.end();
    }

    fn shake_hands(&self, input: &mut Input) -> Result<Session, Ended> {
        self.shakes_hands.store(true, Ordering::Relaxed);
        let patience = Patience::of(HANDSHAKE_TIME_MAX);
        let send = |mut bytes: &[u8]| {
            while !bytes.is_empty() {
                let sent = self.stream.send(&[io::IoSlice::new(bytes)], patience)?;
                bytes = &bytes[sent..];
            }
            Ok(())
        };
        send(&Handshake::greeting()).map_err(Ended::by)?;
        let mut handshake = Handshake::new(&self.shared.export, self.stream.needs_tls());
        let mut out = Vec::new();
        loop {
            let step = handshake.step(input.unread(), &mut out);
            send(&out).map_err(Ended::by)?;
            out.clear();
            match step {
                Step::More => {
                    if !input.receive(&*self.stream, patience).map_err(Ended::by)? {
                        return Err(Ended::Lost);
                    }
                }
                Step::Took(bytes) => _ = input.take(bytes),
                Step::StartTls(bytes) => {
                    input.take(bytes);
                    // Bytes that came unencrypted must not be taken for what the client encrypts.
                    if !input.unread().is_empty() {
                        return Err(Ended::Dropped);
                    }
                    self.stream.start_tls(patience).map_err(Ended::by)?;
                }
                Step::Begin(bytes, session) => {
                    input.take(bytes);
                    return Ok(session);
                }
                Step::End => return Err(Ended::Asked),
                Step::Drop => return Err(Ended::Dropped),
            }
        }
    }

    fn transmit(self: &Arc<Connection>, session: Session, input: Input) -> Ended {
        let output = Output::new();
        let scratch = Job::new(false);
        let mut reader = Reader { connection: self, session, input, output, scratch };
        if !self.hands_over {
            return reader.serve();
        }
        thread::scope(|scope| {
            let sender = thread::Builder::new().name("nbd-send".into());
            if sender.spawn_scoped(scope, || self.sending().drain()).is_err() {
                return Ended::Lost;
            }
            let ended = reader.serve();
            self.outbox.end();
            ended
        })
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// The client said so.
    Asked,
    /// The client closed it.
    Lost,
    /// The client does not keep to the protocol, or takes too long.
    Dropped,
}

impl Ended {
    /// By an error of the stream's.
    fn by(error: io::Error) -> Ended {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::InvalidData => Ended::Dropped,
            _ => Ended::Lost,
        }
    }
}

/// The thread that reads requests, with its buffers.
struct Reader<'a> {
    connection: &'a Arc<Connection>,
    session: Session,
    input: Input,
    output: Output,
    /// For requests without data that are done at once.
    scratch: Job,
}

impl Reader<'_> {
    fn serve(&mut self) -> Ended {
        let ended = loop {
            if let Err(ended) = self.serve_next() {
                break ended;
            }
        };
        self.connection.has_ended.store(true, Ordering::Relaxed);
        // What came before is answered, also to a client that only sends no more.
        let _ = self.flush();
        self.connection.jobs.wait_for_all();
        ended
    }

    fn serve_next(&mut self) -> Result<(), Ended> {
        let header = match parse(self.input.unread(), self.session.style) {
            Parsed::More => return self.receive(),
            Parsed::Malformed => return Err(Ended::Dropped),
            Parsed::Request(bytes, header) => {
                self.input.take(bytes);
                header
            }
        };
        let shared = &self.connection.shared;
        match check(&header, self.session, &shared.export) {
            Verdict::Drop => Err(Ended::Dropped),
            Verdict::Disconnect => Err(Ended::Asked),
            Verdict::Refuse(code, why, payload) => {
                count(&shared.counters.requests_refused);
                self.skip(payload)?;
                self.refuse(self.asked(&header), code, &why)
            }
            Verdict::Run(command, span) => {
                shared.counters.request(command, span.bytes);
                self.run(self.asked(&header), command, span)
            }
        }
    }

    fn asked(&self, header: &Header) -> Asked {
        Asked { style: self.session.style, cookie: header.cookie, offset: header.offset }
    }

    fn run(&mut self, asked: Asked, command: Command, span: Span) -> Result<(), Ended> {
        let bytes = span.bytes as usize;
        if bytes == 0 && command != Command::Flush {
            return self.answer(asked, Ok(()));
        }
        let hands_over = self.connection.hands_over;
        let is_quick = !hands_over || self.connection.shared.pace.is_quick(command);
        match command {
            Command::Read { .. } | Command::Write(_) if bytes > LARGE_BYTES_MAX => {
                self.run_in_pieces(asked, command, span)
            }
            Command::Read { .. } if bytes > SMALL_BYTES_MAX || !is_quick => {
                self.hand_over(asked, command, span, bytes)
            }
            Command::Read { .. } => self.read(asked, span),
            Command::Write(_) if bytes > SMALL_BYTES_MAX => {
                self.hand_over(asked, command, span, bytes)
            }
            Command::Write(durability) => {
                while self.input.unread().len() < bytes {
                    self.receive()?;
                }
                if !is_quick {
                    return self.hand_over(asked, command, span, bytes);
                }
                let shared = &self.connection.shared;
                let started = Instant::now();
                let data = self.input.take(bytes);
                let result = shared.device.write(span.offset, data, durability);
                shared.pace.note(command, started.elapsed());
                self.answer(asked, result)
            }
            // It may wait for a disk.
            Command::Cache => self.hand_over(asked, command, span, 0),
            _ if hands_over && (!is_quick || span.bytes > QUICK_BYTES_MAX) => {
                self.hand_over(asked, command, span, 0)
            }
            _ => self.run_here(asked, command, span),
        }
    }

    /// Reads straight into the output.
    fn read(&mut self, asked: Asked, span: Span) -> Result<(), Ended> {
        let bytes = span.bytes as usize;
        self.make_room(HEAD_BYTES_MAX + bytes)?;
        let shared = &self.connection.shared;
        let head = asked.data(span.offset, bytes as u32, More::None);
        let (before, room) = self.output.room().split_at_mut(head.bytes().len());
        let started = Instant::now();
        let result = shared.device.read(span.offset, &mut room[..bytes]);
        shared.pace.note(Command::Read { in_one_chunk: false }, started.elapsed());
        match result {
            Ok(()) => {
                before.copy_from_slice(head.bytes());
                self.output.add(head.bytes().len() + bytes);
                Ok(())
            }
            Err(_) => self.answer(asked, result),
        }
    }

    /// Does a request without data.
    fn run_here(&mut self, asked: Asked, command: Command, span: Span) -> Result<(), Ended> {
        self.make_room(REPLY_BYTES_MAX)?;
        let shared = &self.connection.shared;
        let job = &mut self.scratch;
        job.ask(asked, command, span);
        let started = Instant::now();
        // Advice is the pool's.
        if !execution::run(&*shared.device, job, &|| false) {
            count(&shared.counters.requests_failed);
        }
        shared.pace.note(command, started.elapsed());
        for part in job.reply_parts() {
            self.output.put(part);
        }
        Ok(())
    }

    /// Leaves a request to the pool, with `bytes` bytes of data.
    fn hand_over(
        &mut self,
        asked: Asked,
        command: Command,
        span: Span,
        bytes: usize,
    ) -> Result<(), Ended> {
        let mut job = self.take_job(bytes)?;
        job.ask(asked, command, span);
        if let Command::Write(_) = command
            && !self.receive_payload(job.room(bytes))
        {
            self.connection.jobs.give_back(job);
            return Err(Ended::Lost);
        }
        if self.connection.hands_over {
            self.connection.shared.pool.submit(self.connection, job);
        } else {
            // Its reply is sent at once, and would come before those to earlier requests.
            self.flush()?;
            pool::do_job(self.connection, job);
        }
        Ok(())
    }

    /// A job for `bytes` bytes. While this waits, no reply does.
    fn take_job(&mut self, bytes: usize) -> Result<Box<Job>, Ended> {
        if let Some(job) = self.connection.jobs.try_take(bytes) {
            return Ok(job);
        }
        self.flush()?;
        Ok(self.connection.jobs.take(bytes))
    }

    /// Reads or writes more than one job may hold, in pieces.
    fn run_in_pieces(&mut self, asked: Asked, command: Command, span: Span) -> Result<(), Ended> {
        let mut job = self.take_job(LARGE_BYTES_MAX)?;
        job.ask(asked, command, span);
        let result = match command {
            Command::Read { in_one_chunk } => self.read_in_pieces(&mut job, in_one_chunk),
            _ => self.write_in_pieces(&mut job),
        };
        self.connection.jobs.give_back(job);
        result
    }

    fn write_in_pieces(&mut self, job: &mut Job) -> Result<(), Ended> {
        let Command::Write(durability) = job.command else { return Ok(()) };
        let shared = &self.connection.shared;
        let mut result = Ok(());
        for piece in pieces(job.span) {
            let data = job.room(piece.bytes as usize);
            if !self.receive_payload(data) {
                return Err(Ended::Lost);
            }
            // The rest of the payload comes all the same.
            if result.is_ok() {
                result = shared.device.write(piece.offset, data, durability);
            }
        }
        self.answer(job.asked, result)
    }

    fn read_in_pieces(&mut self, job: &mut Job, in_one_chunk: bool) -> Result<(), Ended> {
        self.flush()?;
        let (asked, whole) = (job.asked, job.span);
        let device = &*self.connection.shared.device;
        if in_one_chunk {
            return self.read_one_chunk(job);
        }
        let end = whole.offset + whole.bytes;
        for piece in pieces(whole) {
            let more = if piece.offset + piece.bytes == end { More::None } else { More::Follow };
            job.ask(asked, job.command, piece);
            let result = execution::read(device, job, false, more);
            if let Err(error) = &result {
                execution::put_failure(job, error);
                count(&self.connection.shared.counters.requests_failed);
            }
            let is_sent = self.connection.sending().send_alone(|stream| {
                job.reply_parts().try_for_each(|part| super::outbox::send_all(stream, part))
            });
            if !is_sent {
                return Err(Ended::Lost);
            }
            if result.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The head of the reply promises all data, before all is read: a device that fails later
    /// leaves only to fill up the chunk, or, with simple replies, to end the connection.
    fn read_one_chunk(&mut self, job: &mut Job) -> Result<(), Ended> {
        let (asked, whole) = (job.asked, job.span);
        let shared = &self.connection.shared;
        let is_simple = asked.style == Style::Simple;
        let more = if is_simple { More::None } else { More::Follow };
        let head = asked.data(whole.offset, whole.bytes as u32, more);
        let mut failed = None;
        let is_sent = self.connection.sending().send_alone(|stream| {
            for (nth, piece) in pieces(whole).enumerate() {
                let data = job.room(piece.bytes as usize);
                if failed.is_none() {
                    failed = shared.device.read(piece.offset, data).err();
                }
                if failed.is_some() {
                    if nth == 0 {
                        return Ok(());
                    }
                    if is_simple {
                        // Before the client sees that the connection has ended.
                        count(&shared.counters.requests_failed);
                        return Err(io::ErrorKind::Other.into());
                    }
                    data.fill(0);
                }
                if nth == 0 {
                    super::outbox::send_all(stream, head.bytes())?;
                }
                super::outbox::send_all(stream, data)?;
            }
            Ok(())
        });
        if !is_sent {
            return Err(Ended::Lost);
        }
        match failed {
            Some(error) => self.answer(asked, Err(error)),
            None if is_simple => Ok(()),
            None => self.answer(asked, Ok(())),
        }
    }

    /// Answers a request whose reply has no data.
    fn answer(
        &mut self,
        asked: Asked,
        result: Result<(), crate::DeviceError>,
    ) -> Result<(), Ended> {
        match result {
            Ok(()) => {
                self.make_room(HEAD_BYTES_MAX)?;
                self.output.put(asked.done().bytes());
                Ok(())
            }
            Err(error) => {
                count(&self.connection.shared.counters.requests_failed);
                self.refuse(asked, execution::code_of(&error), &error)
            }
        }
    }

    fn refuse(&mut self, asked: Asked, code: Code, why: &dyn Display) -> Result<(), Ended> {
        asked.error(code, why, |reply| {
            self.make_room(reply.len())?;
            self.output.put(reply);
            Ok(())
        })
    }

    /// Sends the output where it has no room for `bytes` more.
    fn make_room(&mut self, bytes: usize) -> Result<(), Ended> {
        if self.output.has_room(bytes) { Ok(()) } else { self.flush() }
    }

    /// Sends what was answered.
    fn flush(&mut self) -> Result<(), Ended> {
        let bytes = self.output.bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let is_sent = self.connection.sending().send_now(bytes);
        self.output.clear();
        if is_sent { Ok(()) } else { Err(Ended::Lost) }
    }

    /// Waits for more of the client's bytes. What was answered is sent before.
    fn receive(&mut self) -> Result<(), Ended> {
        self.flush()?;
        match self.input.receive(self.connection.stream(), Patience::Endless) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Ended::Lost),
            Err(error) => Err(Ended::by(error)),
        }
    }

    /// Fills the buffer with the payload of a request. Returns whether the client sent it all.
    fn receive_payload(&mut self, buffer: &mut [u8]) -> bool {
        let is_here = self.input.unread().len() >= buffer.len();
        if !is_here && self.flush().is_err() {
            return false;
        }
        self.input.receive_into(buffer, self.connection.stream()).unwrap_or(false)
    }

    /// Throws the next bytes of the client away.
    fn skip(&mut self, mut bytes: u64) -> Result<(), Ended> {
        loop {
            let here = bytes.min(self.input.unread().len() as u64);
            self.input.take(here as usize);
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            self.receive()?;
        }
    }
}

/// The span as spans of [`LARGE_BYTES_MAX`] at most.
fn pieces(span: Span) -> impl Iterator<Item = Span> {
    let most = LARGE_BYTES_MAX as u64;
    (0..span.bytes.div_ceil(most)).map(move |nth| Span {
        offset: span.offset + nth * most,
        bytes: most.min(span.bytes - nth * most),
    })
}
