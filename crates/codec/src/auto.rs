//! `auto`: the codec is chosen for each page.
//!
//! | page | codec |
//! |---|---|
//! | most | WKv |
//! | what repeats, but not by words: records at any byte | LZ4, where it saves 256 bytes over WKv |
//! | what neither shrinks: text, often | page LZ |
//! | all, when memory is tight ([`Aim::Density`]) | page LZ |
//!
//! To try every codec on each page would take three times as long. So it is learned from the pages
//! before, which are mostly of the same region and alike: the length of WKv's object says what
//! manner of page it is, and of each such length it is remembered whether LZ4 did better; what keeps
//! failing is tried ever more seldom, up to every 64th time. Where LZ4 does much better time after
//! time it comes first, and WKv is asked every eighth time. Where nothing shrinks, a page whose bytes
//! look random is given up unread but for a sample. Over ten programs' pages this comes within 0.6 %
//! of the sizes that trying both on every page gives.
//!
//! Without vector instructions LZ4 takes WKv's place, which is slower then.

use crate::backend::Backend;
use crate::codec::Encoding;
use crate::error::{DoesNotFit, ScratchError};
use crate::scratch::Carver;
use crate::wkv::Prediction;
use crate::{PAGE_SIZE, Page, lz4, page_lz, wkv};

/// What a page is compressed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Aim {
    /// Soon done, and soon made again.
    #[default]
    Speed,
    /// Small, at several times the time.
    Density,
}

const CODEC_BYTES: usize = {
    let bytes = [wkv::COMPRESS_SCRATCH_BYTES, lz4::SCRATCH_BYTES, page_lz::COMPRESS_SCRATCH_BYTES];
    let mut most = 0;
    let mut nth = 0;
    while nth < bytes.len() {
        most = if bytes[nth] > most { bytes[nth] } else { most };
        nth += 1;
    }
    most
};

/// Bytes of working memory that [`Auto::new`] needs. Contents do not matter.
pub const SCRATCH_BYTES: usize = CODEC_BYTES + PAGE_SIZE;

/// Chooses a codec for each page, and compresses with it.
pub struct Auto<'a> {
    backend: Backend,
    scratch: &'a mut [u8; CODEC_BYTES],
    /// Where LZ4 tries while WKv's object waits.
    rival: &'a mut [u8; PAGE_SIZE],
    history: History,
}

impl<'a> Auto<'a> {
    /// One that works in the first [`SCRATCH_BYTES`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter than that.
    pub fn new(scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let too_small =
            ScratchError::TooSmall { needed_bytes: SCRATCH_BYTES, given_bytes: scratch.len() };
        let mut carver = Carver(scratch);
        let (Some(scratch), Some(rival)) = (carver.bytes(), carver.bytes()) else {
            return Err(too_small);
        };
        Ok(Auto { backend: Backend::best(), scratch, rival, history: History::default() })
    }

    /// The same, with these instructions instead of the best there are.
    pub fn with_backend(self, backend: Backend) -> Self {
        Auto { backend, ..self }
    }

    /// Compresses `page` into the front of `out`: returns the object's encoding and length.
    ///
    /// # Errors
    /// [`DoesNotFit`] when no object is as short as `out`, or that is expected.
    pub fn compress(
        &mut self,
        page: &Page,
        aim: Aim,
        out: &mut [u8],
    ) -> Result<(Encoding, usize), DoesNotFit> {
        if self.history.gives_up(page) {
            return Err(DoesNotFit);
        }
        let written = match aim {
            Aim::Speed => self.fast(page, out).or_else(|_| {
                if !self.history.dense.is_due() {
                    return Err(DoesNotFit);
                }
                let written = self.dense(page, out);
                self.history.dense.note(written.is_ok());
                written
            }),
            Aim::Density => self.dense(page, out).or_else(|_| self.fast(page, out)),
        };
        self.history.any.note(written.is_ok());
        written
    }

    fn fast(&mut self, page: &Page, out: &mut [u8]) -> Result<(Encoding, usize), DoesNotFit> {
        if self.backend == Backend::SCALAR {
            return self.lz4(page, out);
        }
        if self.history.lead.is_taken()
            && let Ok((encoding, len)) = self.lz4(page, out)
            && self.history.lead.follows(len)
        {
            return Ok((encoding, len));
        }
        let scratch = part(self.scratch)?;
        let words = wkv::compress(page, Prediction::Strides, self.backend, scratch, out);
        let len = words.unwrap_or(PAGE_SIZE);
        let trial = self.history.trial(len);
        if !trial.is_due() {
            self.history.lead = Lead::default();
            return words.map(|len| (Encoding::Wkv, len));
        }
        let room = out.len().min(len.saturating_sub(WORTH));
        let rival = lz4::compress(page, part(self.scratch)?, &mut self.rival[..room]);
        trial.note(rival.is_ok());
        self.history.lead.note(len, rival.unwrap_or(len));
        match rival {
            Ok(len) => {
                out[..len].copy_from_slice(&self.rival[..len]);
                Ok((Encoding::Lz4, len))
            }
            Err(DoesNotFit) => words.map(|len| (Encoding::Wkv, len)),
        }
    }

    fn lz4(&mut self, page: &Page, out: &mut [u8]) -> Result<(Encoding, usize), DoesNotFit> {
        lz4::compress(page, part(self.scratch)?, out).map(|len| (Encoding::Lz4, len))
    }

    fn dense(&mut self, page: &Page, out: &mut [u8]) -> Result<(Encoding, usize), DoesNotFit> {
        page_lz::compress(page, part(self.scratch)?, out).map(|len| (Encoding::PageLz, len))
    }
}

/// As much of the scratch as a codec works with.
fn part<const BYTES: usize>(
    scratch: &mut [u8; CODEC_BYTES],
) -> Result<&mut [u8; BYTES], DoesNotFit> {
    const { assert!(BYTES <= CODEC_BYTES) };
    scratch.first_chunk_mut().ok_or(DoesNotFit)
}

/// Bytes that LZ4 must save over WKv, since compressing and decompressing take it twice the time.
const WORTH: usize = 256;
/// Bytes that it must save to lead: then the time for WKv's attempt can be saved most often.
const CLEAR: usize = 512;
/// So many clear cases in a row make it lead.
const CLEAR_CASES: u8 = 4;
/// While LZ4 leads, so many pages in a row are not tried with WKv.
const LED_MOST: u8 = 7;
/// And its objects may be so much longer than they were.
const LED_LONGER: usize = 256;

/// What came of the pages before.
#[derive(Default)]
struct History {
    /// Of LZ4 against WKv, by the length of WKv's object; the last: it had none.
    trials: [Trial; 17],
    lead: Lead,
    /// Of the page LZ, on what neither can shrink.
    dense: Trial,
    /// Of all codecs.
    any: Trial,
}

impl History {
    fn trial(&mut self, len: usize) -> &mut Trial {
        let last = self.trials.len() - 1;
        &mut self.trials[(len * last / PAGE_SIZE).min(last)]
    }

    /// Is it not worth trying?
    fn gives_up(&mut self, page: &Page) -> bool {
        self.any.wait > 0 && looks_random(page) && !self.any.is_due()
    }
}

/// Something that is tried while it pays, and else ever more seldom.
#[derive(Default)]
struct Trial {
    /// How often it is passed by before it is tried again.
    wait: u8,
    /// The next wait, as a power of two.
    backoff: u8,
}

impl Trial {
    const BACKOFF_MAX: u8 = 6;

    fn is_due(&mut self) -> bool {
        let due = self.wait == 0;
        self.wait = self.wait.saturating_sub(1);
        due
    }

    fn note(&mut self, paid: bool) {
        let less = self.backoff.saturating_sub(2);
        self.backoff = if paid { less } else { (self.backoff + 1).min(Trial::BACKOFF_MAX) };
        self.wait = (1 << self.backoff) - 1;
    }
}

/// Whether LZ4 comes first.
#[derive(Default)]
struct Lead {
    /// Clear cases in a row.
    cases: u8,
    /// Pages since the last trial of WKv.
    led: u8,
    /// The usual length of LZ4's objects in clear cases.
    len: usize,
}

impl Lead {
    fn is_taken(&mut self) -> bool {
        let taken = self.cases >= CLEAR_CASES && self.led < LED_MOST;
        self.led = if taken { self.led + 1 } else { 0 };
        taken
    }

    /// Is an object of `len` bytes as good as they were? It may be that WKv is better for the page.
    fn follows(&mut self, len: usize) -> bool {
        let follows = len <= self.len + LED_LONGER;
        if follows {
            self.len = (7 * self.len + len) / 8;
        }
        follows
    }

    /// WKv and LZ4 gave objects of these lengths.
    fn note(&mut self, words: usize, lz: usize) {
        if lz + CLEAR > words {
            *self = Lead::default();
            return;
        }
        self.len = if self.cases == 0 { lz } else { (7 * self.len + lz) / 8 };
        self.cases = self.cases.saturating_add(1);
    }
}

/// Has a sample of the page as many different bytes as random ones have? 256 random bytes have 162 on
/// average, fewer than 144 once in a thousand times; text has fewer than 80, and an array of random
/// floating-point numbers, of which a quarter of the bytes are alike, 140.
fn looks_random(page: &Page) -> bool {
    const DIFFERENT: u32 = 144;
    let mut seen = [0u64; 4];
    for &byte in page.chunks(128).flat_map(|chunk| &chunk[..8]) {
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    seen.iter().map(|bits| bits.count_ones()).sum::<u32>() >= DIFFERENT
}
