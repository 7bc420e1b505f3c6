//! Random bytes.

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes of the system's, fit for keys.
///
/// # Errors
/// What getrandom(2) says.
pub(super) fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    let mut drawn = 0;
    while drawn < N {
        drawn += getrandom(&mut bytes[drawn..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
