//! FUSE_NOTIFY_PRUNE, which fuser 0.18 does not have.

use std::io;
use std::os::fd::OwnedFd;

use crate::fs::Pruner;

/// In the place of an error, in a message that answers no request.
const FUSE_NOTIFY_PRUNE: u32 = 9;

/// The connection to the kernel.
pub(super) struct Device(pub OwnedFd);

impl Pruner for Device {
    fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        let message = message(nodes);
        // The kernel takes all of it or nothing.
        rustix::io::write(&self.0, &message)?;
        Ok(())
    }
}

/// `struct fuse_out_header`, `struct fuse_notify_prune_out`, and the numbers.
fn message(nodes: &[u64]) -> Vec<u8> {
    const HEADERS: usize = 32;
    let length = HEADERS + size_of_val(nodes);
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(FUSE_NOTIFY_PRUNE.to_ne_bytes());
    message.extend(0_u64.to_ne_bytes());
    message.extend((nodes.len() as u32).to_ne_bytes());
    message.extend([0; 12]);
    message.extend(nodes.iter().flat_map(|node| node.to_ne_bytes()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_as_long_as_it_says() {
        for nodes in [&[][..], &[1], &[7; 512]] {
            let message = message(nodes);
            assert_eq!(message[..4], (message.len() as u32).to_ne_bytes());
            assert_eq!(message[16..20], (nodes.len() as u32).to_ne_bytes());
            assert_eq!(message.len(), 32 + 8 * nodes.len());
        }
    }
}
