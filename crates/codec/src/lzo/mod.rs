//! LZO1X (Markus Oberhumer), the stream that liblzo2 and Linux read and write: the reference is the
//! kernel's Documentation/staging/lzo.rst. The code is written from that description.
//!
//! A stream is a row of instructions: a literal run, or a copy. The two lowest bits of a copy's
//! last byte but one (of the first byte, for the shortest) say how many literals, up to three,
//! follow it directly. What the smallest opcodes mean depends on the literals before them, the
//! *state*: 0 after a copy without literals, 1 to 3 after a copy with so many, 4 after a run.
//!
//! | first byte | then | state | meaning |
//! |---|---|---|---|
//! | `0000LLLL` | | 0 | literal run of 3 + L |
//! | `0000DDSS` | H | 1 to 3 | copy 2 bytes from H * 4 + D + 1 back |
//! | `0000DDSS` | H | 4 | copy 3 bytes from H * 4 + D + 2,049 back |
//! | `0001HLLL` | D * 4 + S, 16 bits | any | copy L + 2 from 16,384 or more back; or the end |
//! | `001LLLLL` | D * 4 + S, 16 bits | any | copy L + 2 from D + 1 back |
//! | `01LDDDSS` | H | any | copy 3 + L from H * 8 + D + 1 back |
//! | `1LLDDDSS` | H | any | copy 5 + L, same distance |
//!
//! With L = 0 a length goes on in the bytes that follow. The first byte of a stream may also be 18
//! or more: a literal run of that less 17. A page is shorter than 16,384 bytes, so the fourth line
//! only ends streams here.

mod decode;
mod encode;

pub(crate) use decode::decompress;
pub(crate) use encode::{SCRATCH_BYTES, compress};

/// What the first byte of a stream is above the length of a literal run.
const FIRST_RUN: usize = 17;
/// The longest run that the first byte can hold.
const FIRST_RUN_MAX: usize = 255 - FIRST_RUN;
/// Literals in a run are at least so many.
const RUN_MIN: usize = 4;
/// Literals that fit the bits of the copy before them.
const CARRIED_MAX: usize = 3;

/// Opcode of a copy by two bytes of distance, and its length field.
const COPY_NEAR: usize = 0b0010_0000;
const COPY_NEAR_LENGTH: usize = 0b0001_1111;
/// Opcode of a copy from far away, which ends streams.
const COPY_FAR: usize = 0b0001_0000;
/// From here on an opcode is a short copy by one byte of distance.
const COPY_SHORT: usize = 0b0100_0000;

/// A copy within a page never reaches as far back as [`COPY_FAR`] does, so that opcode only ends
/// streams.
const _: () = assert!(crate::PAGE_SIZE < 16_384);

/// The end of each stream: a copy from 16,384 back.
const END: [u8; 3] = [0x11, 0, 0];
