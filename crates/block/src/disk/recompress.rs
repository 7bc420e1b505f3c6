//! Pages that were not written for a while are compressed once more, for density; then those that
//! are used in order are compressed together.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ramfold_codec::encodings::RAW;
use ramfold_codec::{Choice, Encoding, Objective, Page, ScratchError};
use ramfold_store::{Denser, Key, OBJECT_BYTES_MAX, Recompressed, Recompression, Together};

use super::clusters::Maker;
use super::workspace::{COMPRESSED_BYTES_MAX, Coder};
use super::{Inner, PAGE};

/// By how many bytes an object must become smaller: it takes longer to load then.
const WORTH_BYTES: usize = 128;

/// Bytes that recompression takes.
pub(super) fn bytes(after: Option<Duration>, has_clusters: bool) -> usize {
    let maker = if has_clusters { Maker::bytes() } else { 0 };
    let second = Coder::bytes(Choice::Auto) + PAGE + OBJECT_BYTES_MAX;
    if after.is_some() { second + maker } else { 0 }
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
    /// Where there are clusters.
    maker: Option<Maker>,
}

impl Recompress {
    pub(super) fn new(after: Duration, has_clusters: bool) -> Result<Recompress, ScratchError> {
        Ok(Recompress {
            walk: Recompression::START,
            after,
            began: None,
            is_over: true,
            with: Second {
                coder: Coder::new(Choice::Auto)?,
                page: Box::new([0; PAGE]),
                object: Box::new([0; OBJECT_BYTES_MAX]),
                maker: has_clusters.then(Maker::new).transpose()?,
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
            match self.walk.step(&inner.store, &mut With { inner, second: &mut self.with }) {
                Recompressed::Stayed => {}
                Recompressed::Replaced { .. } => {
                    inner.recompressed.fetch_add(1, Ordering::Relaxed);
                }
                Recompressed::Round => self.is_over = true,
            }
        }
        if self.is_over { self.after } else { Duration::ZERO }
    }
}

/// Compresses pages a second time for a disk.
struct With<'a> {
    inner: &'a Inner,
    second: &'a mut Second,
}

impl Denser for With<'_> {
    fn applies_to(&self, encoding: u8) -> bool {
        let is_dense = |encoding| Objective::of(encoding) == Some(Objective::Density);
        encoding == RAW || Encoding::try_from(encoding).is_ok_and(|encoding| !is_dense(encoding))
    }

    fn denser(&mut self, encoding: u8, object: &[u8]) -> Option<(u8, &[u8])> {
        let Second { coder, page, object: smaller, .. } = &mut *self.second;
        coder.decompress(encoding, object, page).ok()?;
        let most = object.len().checked_sub(WORTH_BYTES)?.min(COMPRESSED_BYTES_MAX);
        let (encoding, len) = coder.compress(page, Objective::Density, &mut smaller[..most])?;
        Some((encoding, &smaller[..len]))
    }

    fn put_together(&mut self, group: Key) -> Together {
        let Second { coder, maker, .. } = &mut *self.second;
        match maker {
            Some(maker) => maker.make_clusters(self.inner, coder, group),
            None => Together::Nothing,
        }
    }
}
