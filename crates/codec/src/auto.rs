//! `auto`: the codec is chosen for each page.
//!
//! | objective | most pages | others | how much smaller they must be |
//! |---|---|---|---|
//! | [`Objective::Speed`] | WKv | LZ4: what repeats, but not by words | 256 bytes |
//! | [`Objective::Density`] | the page LZ, fast | zstd: text that fits no set of its codes | 64 bytes |
//!
//! What neither WKv nor LZ4 can shrink is compressed for density.
//!
//! Trying two codecs on each page would take two to three times as long. So the choice is learned
//! from the pages before, which are mostly of the same region and alike. Pages are classed by the
//! length of the first codec's object, and for each class it is remembered whether the second did
//! better. A second codec that keeps failing is tried less and less often, down to every 64th time.
//! One that does much better several times in a row comes first, and the other is tried every
//! eighth time. While nothing shrinks, a page is given up without a codec if a sample of its bytes
//! looks random.
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
pub enum Objective {
    /// Fast compression and decompression.
    #[default]
    Speed,
    /// A small object, which takes several times as long to make.
    Density,
}

impl Objective {
    /// The objective for which `auto` chooses the codec that writes this encoding; `None` if it
    /// never does.
    pub fn of(encoding: Encoding) -> Option<Objective> {
        match encoding {
            Encoding::Wkv | Encoding::Lz4 => Some(Objective::Speed),
            Encoding::PageLz | Encoding::Zstd => Some(Objective::Density),
            _ => None,
        }
    }
}

/// Bytes that all codecs share but zstd, which keeps a context; the page LZ needs most.
const CODEC_BYTES: usize = page_lz::COMPRESS_SCRATCH_BYTES;

const ZSTD_LEVEL: ZstdLevel = ZstdLevel::FASTEST;

/// Bytes of scratch that [`Auto::new`] needs. Contents do not matter.
pub(crate) fn scratch_bytes() -> usize {
    CODEC_BYTES + PAGE_SIZE + zstd::compress_scratch_bytes(ZSTD_LEVEL)
}

/// Chooses a codec for each page, and compresses with it.
pub struct Auto<'a> {
    codecs: Codecs<'a>,
    /// Where the second codec writes while the first one's object is kept.
    rival: &'a mut Page,
    speed: Duel<'a>,
    density: Duel<'a>,
    /// Whether codecs are tried on pages that look random.
    any: Trial,
}

type Written = Result<(Encoding, usize), DoesNotFit>;

impl<'a> Auto<'a> {
    /// An encoder that works in the first bytes of `scratch`, as many as
    /// [`Choice::scratch_bytes`](crate::Choice::scratch_bytes) of [`Choice::Auto`](crate::Choice).
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

    /// The same with other instructions than the best available.
    pub fn with_backend(self, backend: Backend) -> Self {
        Auto { codecs: Codecs { backend, ..self.codecs }, ..self }
    }

    /// Compresses `page` into the front of `out`: returns the object's encoding and length.
    ///
    /// # Errors
    /// [`DoesNotFit`] when no object is as short as `out`, or when none was tried because the page
    /// looks random and such pages have not shrunk.
    pub fn compress(
        &mut self,
        page: &Page,
        objective: Objective,
        out: &mut [u8],
    ) -> Result<(Encoding, usize), DoesNotFit> {
        if self.any.wait > 0 && looks_random(page) {
            self.any.wait -= 1;
            return Err(DoesNotFit);
        }
        let (codecs, rival) = (&mut self.codecs, &mut *self.rival);
        let written = match objective {
            Objective::Speed if codecs.backend == Backend::SCALAR => codecs.lz4(page, out),
            Objective::Speed => self.speed.fight(codecs, page, rival, out),
            Objective::Density => Err(DoesNotFit),
        };
        let written = written.or_else(|_| self.density.fight(codecs, page, rival, out));
        self.any.note(written.is_ok());
        written
    }
}

/// The codecs to choose from. One works at a time.
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

    /// The part of the scratch that a codec works with.
    fn part<const BYTES: usize>(&mut self) -> Result<&mut [u8; BYTES], DoesNotFit> {
        const { assert!(BYTES <= CODEC_BYTES) };
        self.scratch.first_chunk_mut().ok_or(DoesNotFit)
    }
}

type Attempt<'a> = fn(&mut Codecs<'a>, &Page, &mut [u8]) -> Written;

/// Two codecs, and what was learned about them.
struct Duel<'a> {
    first: Attempt<'a>,
    second: Attempt<'a>,
    /// Bytes that the second must save, since it takes longer to compress and decompress.
    worth: usize,
    /// Whether to try the second, by the length of the first one's object; the last: there is none.
    trials: [Trial; 17],
    lead: Lead,
}

/// The second codec leads after so many pages in a row on which it saved twice what it must.
const CASES: u8 = 4;
/// While it leads, the first is not tried on so many pages in a row.
const LED_MOST: u8 = 7;
/// While it leads, its objects may be longer than usual by so many bytes.
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

/// An attempt that is repeated while it pays, and less and less often while it does not.
#[derive(Clone, Copy, Default)]
struct Trial {
    /// How often it is skipped before it is made again.
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

    /// Whether an object of `len` bytes is as short as usual. If not, the first codec may do
    /// better.
    fn follows(&mut self, len: usize) -> bool {
        let follows = len <= self.len + LED_LONGER;
        if follows {
            self.len = (7 * self.len + len) / 8;
        }
        follows
    }

    /// Notes that the second codec did better, with an object of `len` bytes; `clear`: much better.
    fn note(&mut self, clear: bool, len: usize) {
        if !clear {
            *self = Lead::default();
            return;
        }
        self.len = if self.cases == 0 { len } else { (7 * self.len + len) / 8 };
        self.cases = self.cases.saturating_add(1);
    }
}

/// Whether a sample of the page has as many different bytes as random bytes have. 256 random bytes
/// have 162 on average, and fewer than 144 once in thousands of times; text has fewer than 80. An
/// array of random floating-point numbers, a quarter of whose bytes are alike, has 140.
fn looks_random(page: &Page) -> bool {
    const DIFFERENT: u32 = 144;
    let mut seen = [0u64; 4];
    for &byte in page.chunks(128).flat_map(|chunk| &chunk[..8]) {
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    seen.iter().map(|bits| bits.count_ones()).sum::<u32>() >= DIFFERENT
}
