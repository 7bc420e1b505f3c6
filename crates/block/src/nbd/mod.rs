//! A server of the Network Block Device protocol for any [`BlockDevice`](crate::BlockDevice).
//!
//! | module | what it holds |
//! |---|---|
//! | `protocol` | numbers of the protocol |
//! | `export`, `handshake`, `request`, `reply` | bytes to messages and back, without any input or output |
//! | `stream`, `listener` | sockets |
//! | `tls` | connections that are encrypted |
//! | `server`, `connection` | who is connected; the thread that reads a client's requests |
//! | `buffers`, `job`, `pool`, `outbox` | bytes received; requests under way; threads that do them; replies |
//! | `execution`, `pace` | requests made of the device; how long it takes |
//! | `statistics` | what happened |

mod buffers;
mod connection;
mod execution;
mod export;
mod handshake;
mod job;
mod listener;
mod outbox;
mod pace;
mod pool;
pub(crate) mod protocol;
mod reply;
mod request;
mod server;
mod statistics;
mod stream;
mod tls;

pub use listener::{ListenError, Listener};
pub use server::{Options, Server, answers};
pub use statistics::Statistics;
pub use tls::{Clients, Tls, TlsError};
