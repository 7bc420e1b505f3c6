//! `auto`: the codec is chosen for each page.
//!
//! | aim | most pages | others | how much smaller they must be |
//! |---|---|---|---|
//! | [`Aim::Speed`] | WKv | LZ4: what repeats, but not by words | 256 bytes |
//! | [`Aim::Density`] | the page LZ, fast | zstd: text that none of its sets of codes is for | 64 bytes |
//!
//! What neither WKv nor LZ4 can shrink is compressed for density.
//!
//! To try two codecs on each page would take two to three times as long. So which does better is
//! learned from the pages before, which are mostly of the same region and alike: the length of the
//! first codec's object says what manner of page it is, and of each such length it is remembered
//! whether the second did better; what keeps failing is tried ever more seldom, up to every 64th time.
//! Where the second does much better time after time it comes first, and the other is asked every
//! eighth time. Where nothing shrinks, a page whose bytes look random is given up for a sample of them.
//!
//! Without vector instructions WKv is slower than LZ4, which then takes its place.

use crate::backend::Backend;
use crate::codec::ZstdLevel;
use crate::encodings::Encoding;
use crate::error::{DoesNotFit, ScratchError};
use crate::page_lz::Effort;
use crate::wkv::Prediction;
use crate::{PAGE_SIZE, Page, lz4, page_lz, wkv, zstd};

/// What a page is compressed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Aim {
    /// Soon done, and soon made again.
    #[default]
    Speed,
    /// Small, at several times the time.
    Density,
}

impl Aim {
    /// What the codec that writes this encoding is chosen for, if it is one of those that are.
    pub fn of(encoding: Encoding) -> Option<Aim> {
        match encoding {
            Encoding::Wkv | Encoding::Lz4 => Some(Aim::Speed),
            Encoding::PageLz | Encoding::Zstd => Some(Aim::Density),
            _ => None,
        }
    }
}

/// Shared by all but zstd, which keeps a context; the page LZ needs most.
const CODEC_BYTES: usize = page_lz::COMPRESS_SCRATCH_BYTES;

const ZSTD_LEVEL: ZstdLevel = ZstdLevel::FASTEST;

/// Bytes of working memory that [`Auto::new`] needs. Contents do not matter.
pub(crate) fn scratch_bytes() -> usize {
    CODEC_BYTES + PAGE_SIZE + zstd::compress_scratch_bytes(ZSTD_LEVEL)
}

/// Chooses a codec for each page, and compresses with it.
pub struct Auto<'a> {
    codecs: Codecs<'a>,
    /// Where the second codec tries while the first one's object waits.
    rival: &'a mut Page,
    speed: Duel<'a>,
    density: Duel<'a>,
    /// Whether any codec shrinks what looks random.
    any: Trial,
}

type Written = Result<(Encoding, usize), DoesNotFit>;

impl<'a> Auto<'a> {
    /// One that works in the first [`scratch_bytes`] of `scratch`.
    ///
    /// # Errors
    /// [`ScratchError::TooSmall`] if `scratch` is shorter than that.
    pub fn new(scratch: &'a mut [u8]) -> Result<Self, ScratchError> {
        let too_small =
            ScratchError::TooSmall { needed_bytes: scratch_bytes(), given_bytes: scratch.len() };
        if scratch.len() < scratch_bytes() {
            return Err(too_small);
        }
        let (scratch, rest) = scratch.split_first_chunk_mut().ok_or(too_small)?;
        let (rival, rest) = rest.split_first_chunk_mut().ok_or(too_small)?;
        let zstd = zstd::Encoder::new(ZSTD_LEVEL, rest)?;
        let codecs = Codecs { backend: Backend::best(), scratch, zstd };
        let speed = Duel::new(Codecs::wkv, Codecs::lz4, 256);
        let density = Duel::new(Codecs::page_lz, Codecs::zstd, 64);
        Ok(Auto { codecs, rival, speed, density, any: Trial::default() })
    }

    /// The same, with these instructions instead of the best there are.
    pub fn with_backend(self, backend: Backend) -> Self {
        Auto { codecs: Codecs { backend, ..self.codecs }, ..self }
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
        if self.any.wait > 0 && looks_random(page) {
            self.any.wait -= 1;
            return Err(DoesNotFit);
        }
        let (codecs, rival) = (&mut self.codecs, &mut *self.rival);
        let written = match aim {
            Aim::Speed if codecs.backend == Backend::SCALAR => codecs.lz4(page, out),
            Aim::Speed => self.speed.fight(codecs, page, rival, out),
            Aim::Density => Err(DoesNotFit),
        };
        let written = written.or_else(|_| self.density.fight(codecs, page, rival, out));
        self.any.note(written.is_ok());
        written
    }
}

/// The codecs that are chosen from, one at work at a time.
struct Codecs<'a> {
    backend: Backend,
    scratch: &'a mut [u8; CODEC_BYTES],
    zstd: zstd::Encoder<'a>,
}

impl Codecs<'_> {
    fn wkv(&mut self, page: &Page, out: &mut [u8]) -> Written {
        let backend = self.backend;
        let len = wkv::compress(page, Prediction::Strides, backend, self.part()?, out)?;
        Ok((Encoding::Wkv, len))
    }

    fn lz4(&mut self, page: &Page, out: &mut [u8]) -> Written {
        Ok((Encoding::Lz4, lz4::compress(page, self.part()?, out)?))
    }

    fn page_lz(&mut self, page: &Page, out: &mut [u8]) -> Written {
        let backend = self.backend;
        let len = page_lz::compress(page, Effort::Fast, backend, self.part()?, out)?;
        Ok((Encoding::PageLz, len))
    }

    fn zstd(&mut self, page: &Page, out: &mut [u8]) -> Written {
        Ok((Encoding::Zstd, self.zstd.compress(page, out)?))
    }

    /// As much of the scratch as a codec works with.
    fn part<const BYTES: usize>(&mut self) -> Result<&mut [u8; BYTES], DoesNotFit> {
        const { assert!(BYTES <= CODEC_BYTES) };
        self.scratch.first_chunk_mut().ok_or(DoesNotFit)
    }
}

type Attempt<'a> = fn(&mut Codecs<'a>, &Page, &mut [u8]) -> Written;

/// Two codecs, and what came of the pages before.
struct Duel<'a> {
    first: Attempt<'a>,
    second: Attempt<'a>,
    /// Bytes that the second must save, since it takes longer to compress and decompress.
    worth: usize,
    /// Of the second, by the length of the first one's object; the last: it had none.
    trials: [Trial; 17],
    lead: Lead,
}

/// The second leads after so many cases in a row in which it was worth it twice over.
const CASES: u8 = 4;
/// While it leads, so many pages in a row are not tried with the first.
const LED_MOST: u8 = 7;
/// And its objects may be so much longer than they were.
const LED_LONGER: usize = 256;

impl<'a> Duel<'a> {
    fn new(first: Attempt<'a>, second: Attempt<'a>, worth: usize) -> Duel<'a> {
        Duel { first, second, worth, trials: [Trial::default(); 17], lead: Lead::default() }
    }

    /// Compresses with the first codec or the second.
    fn fight(
        &mut self,
        codecs: &mut Codecs<'a>,
        page: &Page,
        rival: &mut Page,
        out: &mut [u8],
    ) -> Written {
        if self.lead.is_taken()
            && let Ok((encoding, len)) = (self.second)(codecs, page, out)
            && self.lead.follows(len)
        {
            return Ok((encoding, len));
        }
        let written = (self.first)(codecs, page, out);
        let len = written.map_or(PAGE_SIZE, |(_, len)| len);
        let last = self.trials.len() - 1;
        let trial = &mut self.trials[(len * last / PAGE_SIZE).min(last)];
        if len <= self.worth || !trial.is_due() {
            self.lead = Lead::default();
            return written;
        }
        let room = out.len().min(len - self.worth);
        let better = (self.second)(codecs, page, &mut rival[..room]);
        trial.note(better.is_ok());
        match better {
            Ok((encoding, better_len)) => {
                self.lead.note(len - better_len > 2 * self.worth, better_len);
                out[..better_len].copy_from_slice(&rival[..better_len]);
                Ok((encoding, better_len))
            }
            Err(DoesNotFit) => {
                self.lead = Lead::default();
                written
            }
        }
    }
}

/// Something that is tried while it pays, and else ever more seldom.
#[derive(Clone, Copy, Default)]
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

/// Whether the second codec comes first.
#[derive(Default)]
struct Lead {
    /// Clear cases in a row.
    cases: u8,
    /// Pages since the first codec was tried.
    led: u8,
    /// The usual length of the second one's objects in clear cases.
    len: usize,
}

impl Lead {
    fn is_taken(&mut self) -> bool {
        let taken = self.cases >= CASES && self.led < LED_MOST;
        self.led = if taken { self.led + 1 } else { 0 };
        taken
    }

    /// Is an object of `len` bytes as good as they were? It may be that the first codec's is better.
    fn follows(&mut self, len: usize) -> bool {
        let follows = len <= self.len + LED_LONGER;
        if follows {
            self.len = (7 * self.len + len) / 8;
        }
        follows
    }

    /// It was better, with so many bytes.
    fn note(&mut self, clear: bool, len: usize) {
        if !clear {
            *self = Lead::default();
            return;
        }
        self.len = if self.cases == 0 { len } else { (7 * self.len + len) / 8 };
        self.cases = self.cases.saturating_add(1);
    }
}

/// Has a sample of the page as many different bytes as random ones have? 256 random bytes have 162 on
/// average, fewer than 144 once in thousands of times; text has fewer than 80, and an array of random
/// floating-point numbers, of which a quarter of the bytes are alike, 140.
fn looks_random(page: &Page) -> bool {
    const DIFFERENT: u32 = 144;
    let mut seen = [0u64; 4];
    for &byte in page.chunks(128).flat_map(|chunk| &chunk[..8]) {
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    seen.iter().map(|bits| bits.count_ones()).sum::<u32>() >= DIFFERENT
}
