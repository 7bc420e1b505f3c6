//! io_uring: the kernel reads and writes tortured memory on its own time.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Release, fence};

use super::direct::set_direct;
use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::{Mapping, PAGE, Span};
use crate::{current, fail, files};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("io-uring", 4, "io_uring reads into pages and writes from them", plain),
    operation("io-uring-fixed", 4, "the same with buffers registered beforehand", fixed),
    operation("io-uring-polled", 2, "the same by a thread of the kernel that polls", polled),
];

const ENTRIES: u32 = 16;
const SETUP_SQPOLL: u32 = 1 << 1;
const FEAT_SINGLE_MMAP: u32 = 1;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_SQ_WAKEUP: u32 = 2;
const SQ_NEED_WAKEUP: u32 = 1;
const REGISTER_BUFFERS: u32 = 0;
const UNREGISTER_BUFFERS: u32 = 1;
const OFF_SQES: i64 = 0x1000_0000;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const READ: u8 = 22;
const WRITE: u8 = 23;

#[repr(C)]
#[derive(Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    user_address: u64,
}

#[repr(C)]
#[derive(Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    ring_mask: u32,
    ring_entries: u32,
    overflow: u32,
    entries: u32,
    flags: u32,
    reserved: u32,
    user_address: u64,
}

#[repr(C)]
#[derive(Default)]
struct Parameters {
    submission_entries: u32,
    completion_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle_ms: u32,
    features: u32,
    workers: u32,
    reserved: [u32; 3],
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
}

#[repr(C)]
#[derive(Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    priority: u16,
    descriptor: i32,
    offset: u64,
    address: u64,
    bytes: u32,
    call_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    splice: i32,
    padding: [u64; 2],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Completion {
    user_data: u64,
    result: i32,
    flags: u32,
}

struct Ring {
    descriptor: OwnedFd,
    parameters: Parameters,
    rings: Mapping,
    entries: Mapping,
}

impl Ring {
    fn new(flags: u32) -> Result<Self, Skip> {
        let mut parameters = Parameters { flags, thread_idle_ms: 50, ..Parameters::default() };
        // SAFETY: the structure is laid out as the kernel's and outlives the call.
        let raw = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, &mut parameters) };
        if raw < 0 {
            return Err(Skip::errno("io_uring_setup", Errno::last()));
        }
        // SAFETY: the descriptor was made just now and belongs to nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw as i32) };
        if parameters.features & FEAT_SINGLE_MMAP == 0 {
            return Err(Skip::note("an io_uring of before Linux 5.4"));
        }
        let ring_bytes = (parameters.submission.array as usize
            + parameters.submission_entries as usize * size_of::<u32>())
        .max(
            parameters.completion.entries as usize
                + parameters.completion_entries as usize * size_of::<Completion>(),
        );
        let entry_bytes = parameters.submission_entries as usize * size_of::<Submission>();
        let rings = map_ring(&descriptor, ring_bytes, 0)?;
        let entries = map_ring(&descriptor, entry_bytes, OFF_SQES)?;
        Ok(Self { descriptor, parameters, rings, entries })
    }

    /// A word of the rings that the kernel shares.
    fn word(&self, offset: u32) -> &AtomicU32 {
        let word = self.rings.span().part(offset as usize, 4);
        // SAFETY: the kernel lays these words out aligned, and both sides use them atomically.
        unsafe { AtomicU32::from_ptr(word.pointer().cast()) }
    }

    /// Does the requests, at most `ENTRIES` of them, and returns their results in order.
    fn run(&self, requests: Vec<Submission>) -> Vec<i32> {
        let count = requests.len();
        assert!(count <= ENTRIES as usize);
        let offsets = &self.parameters.submission;
        let mask = self.word(offsets.ring_mask).load(Acquire);
        let mut tail = self.word(offsets.tail).load(Acquire);
        for (number, mut request) in requests.into_iter().enumerate() {
            request.user_data = number as u64;
            let index = tail & mask;
            let place = self
                .entries
                .span()
                .part(index as usize * size_of::<Submission>(), size_of::<Submission>());
            // SAFETY: the place is one entry of the shared array, which the kernel does not look
            // at before the tail has passed it.
            unsafe { place.pointer().cast::<Submission>().write(request) };
            self.word(offsets.array + 4 * index).store(index, Release);
            tail = tail.wrapping_add(1);
        }
        self.word(offsets.tail).store(tail, Release);
        fence(SeqCst);
        self.enter(count as u32);
        self.collect(count)
    }

    fn enter(&self, submit: u32) {
        let polled = self.parameters.flags & SETUP_SQPOLL != 0;
        let mut flags = ENTER_GETEVENTS;
        if polled && self.word(self.parameters.submission.flags).load(Acquire) & SQ_NEED_WAKEUP != 0
        {
            flags |= ENTER_SQ_WAKEUP;
        }
        let mut left = submit;
        loop {
            // SAFETY: no pointers are passed.
            let result = unsafe {
                let descriptor = self.descriptor.as_raw_fd();
                let signals = std::ptr::null::<libc::c_void>();
                libc::syscall(libc::SYS_io_uring_enter, descriptor, left, 1, flags, signals, 0)
            };
            current::beat();
            match result {
                _ if polled && result >= 0 => return,
                0.. => {
                    left -= (result as u32).min(left);
                    if left == 0 {
                        return;
                    }
                }
                _ => match Errno::last() {
                    Errno(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
                    errno => fail!("io_uring_enter gave {errno}"),
                },
            }
        }
    }

    fn collect(&self, count: usize) -> Vec<i32> {
        let offsets = &self.parameters.completion;
        let mask = self.word(offsets.ring_mask).load(Acquire);
        let mut results = vec![None; count];
        let mut found = 0;
        while found < count {
            let head = self.word(offsets.head).load(Acquire);
            if head == self.word(offsets.tail).load(Acquire) {
                self.enter(0);
                continue;
            }
            let place = self.rings.span().part(
                offsets.entries as usize + (head & mask) as usize * size_of::<Completion>(),
                size_of::<Completion>(),
            );
            // SAFETY: the kernel has filled this entry in before it moved the tail.
            let completion = unsafe { place.pointer().cast::<Completion>().read() };
            self.word(offsets.head).store(head.wrapping_add(1), Release);
            match results.get_mut(completion.user_data as usize) {
                Some(slot @ None) => *slot = Some(completion.result),
                _ => fail!(
                    "io_uring completed request {} twice or out of nowhere",
                    completion.user_data
                ),
            }
            found += 1;
        }
        results.into_iter().flatten().collect()
    }

    fn register(&self, span: Span<'_>) -> Outcome {
        let vector = span.iovec();
        // SAFETY: the vector outlives the call; the span is held until `unregister`.
        let result = unsafe {
            let descriptor = self.descriptor.as_raw_fd();
            libc::syscall(libc::SYS_io_uring_register, descriptor, REGISTER_BUFFERS, &vector, 1)
        };
        if result == 0 {
            return Ok(());
        }
        match Errno::last() {
            // The limit on locked memory.
            errno @ Errno(libc::ENOMEM | libc::EPERM) => {
                Err(Skip::errno("io_uring_register of buffers", errno))
            }
            errno => fail!("io_uring_register of {} pages gave {errno}", span.pages()),
        }
    }

    fn unregister(&self) {
        // SAFETY: no pointers are passed.
        let result = unsafe {
            let descriptor = self.descriptor.as_raw_fd();
            let none = std::ptr::null::<libc::c_void>();
            libc::syscall(libc::SYS_io_uring_register, descriptor, UNREGISTER_BUFFERS, none, 0)
        };
        if result != 0 {
            fail!("io_uring_register to take buffers back gave {}", Errno::last());
        }
    }

    /// Moves a span to or from the start of a file, in several requests at once.
    fn transfer(&self, file: &File, span: Span<'_>, opcode: u8) -> Outcome {
        let mut at = 0;
        while at < span.bytes() {
            let mut requests = Vec::new();
            let mut lengths = Vec::new();
            while at < span.bytes() && requests.len() < ENTRIES as usize {
                let bytes = (8 * PAGE).min(span.bytes() - at);
                requests.push(Submission {
                    opcode,
                    descriptor: file.as_raw_fd(),
                    offset: at as u64,
                    address: span.part(at, bytes).address() as u64,
                    bytes: bytes as u32,
                    ..Submission::default()
                });
                lengths.push((at, bytes));
                at += bytes;
            }
            for (result, (from, bytes)) in self.run(requests).into_iter().zip(lengths) {
                self.finish(file, span.part(from, bytes), from, opcode, result)?;
            }
        }
        Ok(())
    }

    /// Looks at one result; what was left undone is done by further requests.
    fn finish(
        &self,
        file: &File,
        span: Span<'_>,
        offset: usize,
        opcode: u8,
        mut result: i32,
    ) -> Outcome {
        let mut done = 0;
        loop {
            match result {
                1.. => done += result as usize,
                0 => fail!("io_uring request {opcode} did nothing at {offset}"),
                _ => match Errno(-result) {
                    // The kernel cancels a request when signals kept it from starting a worker.
                    Errno(libc::EINTR | libc::EAGAIN | libc::ECANCELED) => {}
                    errno @ Errno(libc::EINVAL) if done == 0 => {
                        return Err(Skip::errno("an io_uring request", errno));
                    }
                    errno => fail!("io_uring request {opcode} gave {errno}"),
                },
            }
            if done == span.bytes() {
                return Ok(());
            }
            let rest = span.part(done, span.bytes() - done);
            let request = Submission {
                opcode,
                descriptor: file.as_raw_fd(),
                offset: (offset + done) as u64,
                address: rest.address() as u64,
                bytes: rest.bytes() as u32,
                ..Submission::default()
            };
            result = self.run(vec![request])[0];
        }
    }
}

fn map_ring(descriptor: &OwnedFd, bytes: usize, offset: i64) -> Result<Mapping, Skip> {
    // SAFETY: a new mapping of a ring's descriptor, disturbing nobody.
    let found = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let none = std::ptr::null_mut();
        libc::mmap(none, bytes, protection, flags, descriptor.as_raw_fd(), offset)
    };
    if found == libc::MAP_FAILED {
        return Err(Skip::errno("mmap of an io_uring", Errno::last()));
    }
    // SAFETY: the mapping was made just now.
    Ok(unsafe { Mapping::adopt(found.expose_provenance(), bytes) })
}

fn open(turn: &Turn<'_>, direct: bool) -> Result<File, Skip> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    files::temporary(&turn.world.options.directory, flags)
        .map_err(|error| Skip::errno("making a file", error.into()))
}

fn prepare(file: &File, bytes: &[u8], direct: bool) -> Outcome {
    set_direct(file, false)?;
    file.write_all_at(bytes, 0).map_err(|error| Skip::errno("write", error.into()))?;
    if direct {
        file.sync_data().map_err(|error| Skip::errno("fdatasync", error.into()))?;
    }
    set_direct(file, direct)
}

fn fetch(file: &File, bytes: &mut [u8]) -> Outcome {
    set_direct(file, false)?;
    file.read_exact_at(bytes, 0).map_err(|error| Skip::errno("read", error.into()))
}

fn plain(turn: &mut Turn<'_>) -> Outcome {
    with_ring(turn, 0)
}

fn polled(turn: &mut Turn<'_>) -> Outcome {
    with_ring(turn, SETUP_SQPOLL)
}

fn with_ring(turn: &mut Turn<'_>, flags: u32) -> Outcome {
    let direct = turn.rng.percent(30);
    let world = turn.world;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 160);
    let file = open(turn, direct)?;
    region.rewrite_by(first, pages, |span, bytes| {
        let ring = Ring::new(flags)?;
        prepare(&file, bytes, direct)?;
        let _pinning = world.pins.pinning();
        ring.transfer(&file, span, READ)
    })?;
    region.export_by(first, pages, "by an io_uring write", |span, bytes| {
        let ring = Ring::new(flags)?;
        set_direct(&file, direct)?;
        {
            let _pinning = world.pins.pinning();
            ring.transfer(&file, span, WRITE)?;
        }
        fetch(&file, bytes)
    })
}

/// Registered pages belong to the kernel as well until they are taken back: what it reads into
/// them must be seen here, and what is stored here must be what it writes, however long after.
fn fixed(turn: &mut Turn<'_>) -> Outcome {
    let direct = turn.rng.percent(30);
    let world = turn.world;
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 100);
    let ring = Ring::new(0)?;
    let file = open(turn, direct)?;
    let _pinning = world.pins.pinning();
    ring.register(region.span(first, pages))?;
    let mut outcome = Ok(());
    for _ in 0..turn.rng.between(1, 4) {
        idle(turn);
        outcome = region.rewrite_by(first, pages, |span, bytes| {
            prepare(&file, bytes, direct)?;
            ring.transfer(&file, span, READ_FIXED)
        });
        if outcome.is_err() {
            break;
        }
        idle(turn);
        for _ in 0..pages {
            region.write_partial(first + turn.rng.below(pages));
        }
        idle(turn);
        outcome = region.export_by(first, pages, "by a fixed io_uring write", |span, bytes| {
            set_direct(&file, direct)?;
            ring.transfer(&file, span, WRITE_FIXED)?;
            fetch(&file, bytes)
        });
        if outcome.is_err() {
            break;
        }
    }
    ring.unregister();
    region.check(first, pages);
    outcome
}

/// Uses other memory, or none, for a while.
fn idle(turn: &mut Turn<'_>) {
    if turn.rng.percent(40) {
        std::thread::sleep(std::time::Duration::from_millis(turn.rng.between(1, 20) as u64));
    }
    let world = turn.world;
    for _ in 0..turn.rng.between(1, 200) {
        world.check_lockless(world.fixed_region, turn.rng.below(world.pages(world.fixed_region)));
    }
}
