//! What clients send to the NBD server.

use std::sync::{Arc, OnceLock};

use ramfold_block::nbd::{Options, answers};
use ramfold_block::{BlockDevice, PlainDevice};

/// It panics where a request that is made of it does not lie within it.
fn device() -> Arc<dyn BlockDevice> {
    static DEVICE: OnceLock<Arc<PlainDevice>> = OnceLock::new();
    Arc::clone(DEVICE.get_or_init(|| Arc::new(PlainDevice::new(1 << 20)))) as _
}

fn served(input: Vec<u8>, bytes_at_a_time: usize) -> Vec<u8> {
    let options = Options { export: "disk".into(), ..Options::default() };
    let output = answers(device(), &options, input, bytes_at_a_time);
    assert!(output.starts_with(b"NBDMAGICIHAVEOPT"), "the server did not greet");
    output
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length, data].concat()
}

/// A client sends these bytes from the beginning.
pub fn handshake(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let bytes_at_a_time = if cut == 0 { usize::MAX } else { cut.into() };
    // The client's flags, which have few right values.
    served([&[0, 0, 0, 3], data].concat(), bytes_at_a_time);
}

/// A client sends these bytes after a right handshake: simple, structured and extended.
pub fn requests(data: &[u8]) {
    let Some((&shape, data)) = data.split_first() else { return };
    let context = [&[0; 7][..], &[1, 0, 0, 0, 15], b"base:allocation"].concat();
    let agreed = match shape % 3 {
        0 => Vec::new(),
        1 => [option(8, &[]), option(10, &context)].concat(),
        _ => [option(11, &[]), option(10, &context)].concat(),
    };
    let bytes_at_a_time = if shape < 128 { usize::MAX } else { usize::from(shape) };
    let hello = [&[0, 0, 0, 3], &agreed[..], &option(7, &[0; 6])].concat();
    served([hello, data.to_vec()].concat(), bytes_at_a_time);
}
