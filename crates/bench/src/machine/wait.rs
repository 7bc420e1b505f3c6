//! Waiting for what cannot be waited for but by trying again.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};

/// The first pause; each is twice as long as the one before.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Tries until an attempt succeeds.
///
/// # Errors
/// The error of the last attempt when `limit` has passed; or, at once, the outer one of an attempt
/// after which it makes no sense to try again.
pub(crate) fn until<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Result<T, Error>>,
) -> Result<T> {
    let start = Instant::now();
    let mut pause = PAUSE_FIRST;
    loop {
        match attempt()? {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > limit => return Err(error),
            Err(_) => sleep(pause),
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// As [`until`], for an attempt that has no result and never makes it senseless to go on.
pub(crate) fn until_done(limit: Duration, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    until(limit, || Ok(attempt()))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_last_error_is_told_and_some_end_it_at_once() {
        let mut attempts = 0;
        let succeeds = until(Duration::MAX, || {
            attempts += 1;
            Ok(if attempts < 3 { Err(anyhow!("not yet")) } else { Ok(attempts) })
        });
        assert_eq!(succeeds.unwrap(), 3);
        let late = until_done(Duration::ZERO, || Err(anyhow!("not yet")));
        assert_eq!(late.unwrap_err().to_string(), "not yet");
        let senseless = until::<()>(Duration::MAX, || Err(anyhow!("it has ended")));
        assert_eq!(senseless.unwrap_err().to_string(), "it has ended");
    }
}
