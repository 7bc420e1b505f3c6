//! Lines that agents leave for the user, which the launcher shows.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::thread::futex;

use crate::layout::Session;

pub(crate) const MESSAGES_MAX: usize = 16;
const MESSAGE_BYTES: usize = 400;

/// States of a message.
const FREE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const COMPLETE: u32 = 2;
const SHOWN: u32 = 3;

/// One line.
#[repr(C)]
pub(crate) struct Message {
    state: AtomicU32,
    length: AtomicU32,
    text: [AtomicU64; MESSAGE_BYTES / 8],
}

/// What is said at most once in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Once {
    /// The cap cannot be held.
    CapNotHeld = 1 << 0,
    /// There is no userfaultfd, or not one that does what is needed.
    NoUserfaultfd = 1 << 1,
    /// There are more processes than places in the session.
    TooManyProcesses = 1 << 2,
    /// A process has more mappings than an agent can keep up with.
    TooManyMappings = 1 << 3,
    /// The agent's tables found no address space.
    NoAddressSpace = 1 << 4,
    /// The cap is smaller than what an agent itself takes.
    CapTooSmall = 1 << 5,
    /// An agent could not follow the privileges of its program.
    Privileges = 1 << 6,
    /// The spill file is full.
    SpillFull = 1 << 7,
    /// The spill file could not be opened, read or written.
    SpillFailed = 1 << 8,
    /// A program was executed that the agent cannot be loaded into.
    NotAlong = 1 << 9,
    /// Anything else.
    Other = 1 << 10,
    /// Much of the cap is taken by shared memory, which is not compressed.
    SharedMemory = 1 << 11,
}

impl Session {
    /// Leaves a line for the launcher to show, unless one of this kind was left before. A line that
    /// there is no room for is dropped; one that is too long is cut.
    pub fn say(&self, once: Once, text: fmt::Arguments<'_>) {
        if self.said.fetch_or(once as u32, Ordering::Relaxed) & once as u32 != 0 {
            return;
        }
        let Some(message) = self.messages.iter().find(|message| {
            let taken = message.state.compare_exchange(
                FREE,
                BEING_WRITTEN,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            taken.is_ok()
        }) else {
            return;
        };
        let mut line = Line { bytes: [0; MESSAGE_BYTES], length: 0 };
        // An error says that the line was cut; there is nobody to tell.
        let _ = line.write_fmt(text);
        let (words, _) = line.bytes.as_chunks::<8>();
        for (to, word) in message.text.iter().zip(words) {
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        message.length.store(line.length as u32, Ordering::Relaxed);
        message.state.store(COMPLETE, Ordering::Release);
        self.wake_messenger();
    }

    /// Was something of this kind said?
    pub fn has_said(&self, once: Once) -> bool {
        self.said.load(Ordering::Relaxed) & once as u32 != 0
    }

    /// Something of this kind was said in another way, and is not to be said again.
    pub fn note_said(&self, once: Once) {
        self.said.fetch_or(once as u32, Ordering::Relaxed);
    }

    /// How many messages there were, for [`Session::wait_for_message`].
    pub fn message_count(&self) -> u32 {
        self.message_count.load(Ordering::Acquire)
    }

    /// Sleeps until there were more messages than `seen`, or for no reason: the caller looks again.
    pub fn wait_for_message(&self, seen: u32) {
        // Woken or interrupted: the caller looks again.
        let _ = futex::wait(&self.message_count, futex::Flags::empty(), seen, None);
    }

    /// Wakes who waits for messages, as if there were one.
    pub fn wake_messenger(&self) {
        self.message_count.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.message_count, futex::Flags::empty(), u32::MAX);
    }

    /// Hands every message that was not shown yet to `show`.
    pub fn take_messages(&self, mut show: impl FnMut(&[u8])) {
        for message in &self.messages {
            let taken = message.state.compare_exchange(
                COMPLETE,
                SHOWN,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if taken.is_err() {
                continue;
            }
            let mut bytes = [0; MESSAGE_BYTES];
            let (words, _) = bytes.as_chunks_mut::<8>();
            for (to, word) in words.iter_mut().zip(&message.text) {
                *to = word.load(Ordering::Relaxed).to_ne_bytes();
            }
            let length = message.length.load(Ordering::Relaxed) as usize;
            show(&bytes[..length.min(MESSAGE_BYTES)]);
        }
    }
}

/// Text in a fixed place.
struct Line {
    bytes: [u8; MESSAGE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.length += fits;
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::owned::tests::session;

    #[test]
    fn a_message_of_a_kind_is_shown_once() {
        let session = session();
        session.say(Once::CapNotHeld, format_args!("over by {} MiB", 3));
        session.say(Once::CapNotHeld, format_args!("again"));
        session.say(Once::Other, format_args!("{}", "x".repeat(2 * MESSAGE_BYTES)));
        let mut seen = Vec::new();
        session.take_messages(|m| seen.push(String::from_utf8_lossy(m).into_owned()));
        assert_eq!(seen[0], "over by 3 MiB");
        assert_eq!(seen[1].len(), MESSAGE_BYTES);
        assert_eq!(seen.len(), 2);
        session.take_messages(|_| panic!("nothing is left"));
    }
}
