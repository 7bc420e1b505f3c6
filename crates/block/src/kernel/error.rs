//! What goes wrong with devices of the kernel.

use std::fmt::{self, Display};
use std::io;

/// What was tried with the kernel, on what, why it failed, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot {tried}: {why}{}", Advice(*advice))]
pub struct KernelError {
    tried: String,
    #[source]
    why: io::Error,
    advice: Option<&'static str>,
}

struct Advice(Option<&'static str>);

impl Display for Advice {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(advice) => write!(to, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl KernelError {
    pub(super) fn new(tried: impl Into<String>, why: impl Into<io::Error>) -> KernelError {
        KernelError { tried: tried.into(), why: why.into(), advice: None }
    }

    pub(super) fn advise(self, advice: &'static str) -> KernelError {
        KernelError { advice: Some(advice), ..self }
    }

    /// The kernel's reason.
    pub fn kind(&self) -> io::ErrorKind {
        self.why.kind()
    }

    /// The kernel's reason, as the system numbers it.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.why.raw_os_error()
    }
}

/// Adds to an error of the system what was tried.
pub(super) trait Tried<T> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, KernelError>;
}

impl<T, E: Into<io::Error>> Tried<T> for Result<T, E> {
    fn tried(self, what: impl FnOnce() -> String) -> Result<T, KernelError> {
        self.map_err(|why| KernelError::new(what(), why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_tried_why_it_failed_and_what_to_do() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = KernelError::new("attach /dev/nbd0", denied);
        assert_eq!(error.to_string(), "cannot attach /dev/nbd0: permission denied");
        let error = error.advise("it needs root");
        assert_eq!(error.to_string(), "cannot attach /dev/nbd0: permission denied; it needs root");
    }
}
