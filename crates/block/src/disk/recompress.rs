//! Pages that were not written for a while are compressed once more, for density.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramfold_codec::encodings::RAW;
use ramfold_codec::{Choice, Encoding, Objective, Page, ScratchError};
use ramfold_store::{Denser, OBJECT_BYTES_MAX, Recompressed, Recompression};

use super::workspace::{COMPRESSED_BYTES_MAX, Coder};
use super::{Inner, PAGE};

/// By how many bytes an object must become smaller: it takes longer to load then.
const WORTH_BYTES: usize = 128;
/// Objects between two looks at the time.
const OBJECTS_AT_ONCE: usize = 16;

/// Bytes that recompression takes.
pub(super) fn bytes(after: Option<Duration>) -> usize {
    if after.is_some() { Coder::bytes(Choice::Auto) + PAGE + OBJECT_BYTES_MAX } else { 0 }
}

pub(super) struct Recompress {
    walk: Recompression,
    after: Duration,
    began: Option<Instant>,
    is_over: bool,
    with: Second,
}

/// Compresses pages a second time.
struct Second {
    coder: Coder,
    page: Box<Page>,
    object: Box<[u8; OBJECT_BYTES_MAX]>,
}

impl Recompress {
    pub(super) fn new(after: Duration) -> Result<Recompress, ScratchError> {
        Ok(Recompress {
            walk: Recompression::START,
            after,
            began: None,
            is_over: true,
            with: Second {
                coder: Coder::new(Choice::Auto)?,
                page: Box::new([0; PAGE]),
                object: Box::new([0; OBJECT_BYTES_MAX]),
            },
        })
    }

    /// Goes on for `patience`. Returns after which time there will be something to do.
    pub(super) fn go_on(&mut self, inner: &Inner, patience: Duration) -> Duration {
        let now = Instant::now();
        if self.is_over {
            if let Some(left) =
                self.began.and_then(|began| self.after.checked_sub(now.duration_since(began)))
                && !left.is_zero()
            {
                return left;
            }
            // What was stored before the last round began is due in this one.
            self.walk.begin_round(&inner.store);
            self.began = Some(now);
            self.is_over = false;
        }
        while !self.is_over && now.elapsed() < patience {
            for _ in 0..OBJECTS_AT_ONCE {
                match self.walk.step(&inner.store, &mut self.with) {
                    Recompressed::Stayed => {}
                    Recompressed::Replaced { .. } => {
                        inner.recompressed.fetch_add(1, Ordering::Relaxed);
                    }
                    Recompressed::Round => {
                        self.is_over = true;
                        break;
                    }
                }
            }
        }
        if self.is_over { self.after } else { Duration::ZERO }
    }
}

impl Denser for Second {
    fn applies_to(&self, encoding: u8) -> bool {
        let is_dense = |encoding| Objective::of(encoding) == Some(Objective::Density);
        encoding == RAW || Encoding::try_from(encoding).is_ok_and(|encoding| !is_dense(encoding))
    }

    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
        self.coder.decompress(encoding, object, &mut self.page).ok()?;
        let most = object.len().checked_sub(WORTH_BYTES)?.min(COMPRESSED_BYTES_MAX);
        let (encoding, len) =
            self.coder.compress(&self.page, Objective::Density, &mut self.object[..most])?;
        Some((encoding, &self.object[..len]))
    }
}
