//! The server with devices that are slow, or fail.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ramfold_block::nbd::{Options, Server};
use ramfold_block::{BlockDevice, DeviceError, Durability, PlainDevice};

#[path = "support/hooked.rs"]
mod hooked;

use hooked::{Access, Hooked};

const DEVICE_BYTES: u64 = 16 << 20;
/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn server_of(
    before_read: impl Fn(u64) -> Result<(), DeviceError> + Send + Sync + 'static,
) -> Server {
    counting_server_of(before_read, Arc::default())
}

fn counting_server_of(
    before_read: impl Fn(u64) -> Result<(), DeviceError> + Send + Sync + 'static,
    prefetches: Arc<AtomicU64>,
) -> Server {
    let plain = PlainDevice::new(DEVICE_BYTES);
    plain.write(0, &vec![7; DEVICE_BYTES as usize], Durability::AtFlush).unwrap();
    let before = move |access, offset, goes_on: &dyn Fn() -> bool| match access {
        Access::Read => before_read(offset),
        Access::Write => Ok(()),
        // Goes on for as long as it may.
        Access::Prefetch => {
            prefetches.fetch_add(1, Ordering::SeqCst);
            wait_until("the prefetch is to end", || !goes_on());
            Ok(())
        }
    };
    let device = Arc::new(Hooked::new(plain, before));
    Server::start(device, &Options::default(), Vec::new()).unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::yield_now();
    }
}

/// A client as the kernel is one: requests from the first byte on, simple replies.
fn connect(server: &Server) -> UnixStream {
    let (client, served) = UnixStream::pair().unwrap();
    server.serve_kernel(served.into()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

fn read_request(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    request(0, cookie, offset, length)
}

fn cache_request(cookie: u64) -> Vec<u8> {
    request(5, cookie, 0, 1 << 20)
}

fn request(command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// The cookie and the error of the next reply.
fn reply(client: &mut UnixStream) -> (u64, u32) {
    let mut head = [0; 16];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
    let error = u32::from_be_bytes(head[4..8].try_into().unwrap());
    (u64::from_be_bytes(head[8..].try_into().unwrap()), error)
}

fn data(client: &mut UnixStream, bytes: usize) {
    let mut data = vec![0; bytes];
    client.read_exact(&mut data).unwrap();
    assert!(data.iter().all(|&byte| byte == 7));
}

#[test]
fn a_server_of_swap_waits_for_a_client_that_reads_late() {
    let server = server_of(|_| Ok(()));
    let (mut client, served) = UnixStream::pair().unwrap();
    server.serve_swap(served.into()).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    for round in 0..3 {
        client.write_all(&read_request(round, 0, 1 << 20)).unwrap();
        // Longer than other threads would wait.
        thread::sleep(Duration::from_millis(60));
        assert_eq!(reply(&mut client), (round, 0));
        data(&mut client, 1 << 20);
    }
}

/// What reads wait for.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        let waited = self.opened.wait_timeout_while(is_open, PATIENCE, |is_open| !*is_open);
        assert!(!waited.unwrap().1.timed_out(), "nobody opened the gate");
    }
}

#[test]
fn replies_come_as_requests_are_done() {
    let gate = Arc::new(Gate::default());
    let closed = Arc::clone(&gate);
    let server = server_of(move |offset| {
        if offset == 0 {
            closed.wait();
        }
        Ok(())
    });
    let mut client = connect(&server);
    // Large enough for another thread.
    client.write_all(&read_request(1, 0, 64 << 10)).unwrap();
    for cookie in 2..100 {
        client.write_all(&read_request(cookie, 1 << 20, 4096)).unwrap();
        assert_eq!(reply(&mut client), (cookie, 0));
        data(&mut client, 4096);
    }
    gate.open();
    assert_eq!(reply(&mut client), (1, 0));
    data(&mut client, 64 << 10);
}

#[test]
fn a_server_that_stops_answers_what_came_before() {
    let gate = Arc::new(Gate::default());
    let closed = Arc::clone(&gate);
    let server = server_of(move |_| {
        closed.wait();
        Ok(())
    });
    let mut client = connect(&server);
    client.write_all(&read_request(1, 0, 64 << 10)).unwrap();
    wait_until("the request is there", || server.statistics().reads > 0);
    let stopping = thread::spawn(move || server.stop());
    gate.open();
    assert_eq!(reply(&mut client), (1, 0));
    data(&mut client, 64 << 10);
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    stopping.join().unwrap();
}

#[test]
fn short_requests_to_a_slow_device_are_done_side_by_side() {
    let (now, most) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let highest = Arc::clone(&most);
    let server = server_of(move |_| {
        highest.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // What is tested is how the server deals with a device that takes time.
        thread::sleep(Duration::from_millis(1));
        now.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    });
    let mut client = connect(&server);
    let requests = (0..200).flat_map(|cookie| read_request(cookie, cookie * 4096, 4096));
    client.write_all(&requests.collect::<Vec<_>>()).unwrap();
    let mut cookies: Vec<u64> = (0..200)
        .map(|_| {
            let (cookie, error) = reply(&mut client);
            assert_eq!(error, 0);
            data(&mut client, 4096);
            cookie
        })
        .collect();
    cookies.sort_unstable();
    assert!(cookies.iter().copied().eq(0..200));
    assert!(most.load(Ordering::Relaxed) > 1, "one at a time");
    assert!(server.statistics().requests_handed_over > 100);
}

#[test]
fn an_error_of_the_device_reaches_the_client() {
    let server = server_of(|offset| match offset {
        0 | 0x20_0000 => Err(DeviceError::Failed("the disk is on fire".into())),
        _ => Ok(()),
    });
    let mut client = connect(&server);
    for length in [512, 4096, 64 << 10, 3 << 20] {
        client.write_all(&read_request(length, 0, length as u32)).unwrap();
        assert_eq!(reply(&mut client), (length, 5));
    }
    client.write_all(&read_request(1, 4096, 4096)).unwrap();
    assert_eq!(reply(&mut client), (1, 0));
    data(&mut client, 4096);
    // The third megabyte of a reply that has begun.
    client.write_all(&read_request(2, 0x10_0000, 3 << 20)).unwrap();
    assert_eq!(reply(&mut client), (2, 0));
    data(&mut client, 1 << 20);
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 0, "the connection ends");
    assert_eq!(server.statistics().requests_failed, 5);
}

#[test]
fn advice_is_followed_one_at_a_time_and_no_longer_than_the_client_is_there() {
    let prefetches = Arc::new(AtomicU64::new(0));
    let server = counting_server_of(|_| Ok(()), Arc::clone(&prefetches));
    let begun = |count| {
        wait_until("a prefetch begins", || prefetches.load(Ordering::SeqCst) == count);
    };
    let mut client = connect(&server);
    client.write_all(&cache_request(1)).unwrap();
    begun(1);
    // The others are answered at once, also another client's.
    let mut other = connect(&server);
    for cookie in 2..100 {
        let client = if cookie % 2 == 0 { &mut client } else { &mut other };
        client.write_all(&cache_request(cookie)).unwrap();
        assert_eq!(reply(client), (cookie, 0));
    }
    begun(1);
    // The first ends as its client goes, and then it is another's turn.
    drop(client);
    wait_until("one client is left", || server.statistics().connections_now == 1);
    other.write_all(&cache_request(100)).unwrap();
    begun(2);
    // A server that stops does not wait for it.
    server.stop();
    assert_eq!(reply(&mut other), (100, 0));
    begun(2);
}
