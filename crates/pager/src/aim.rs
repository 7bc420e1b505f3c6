//! What pages are compressed for: to be soon done, or to be small.
//!
//! Smaller objects leave room for more resident pages, so that there are fewer faults; each of those
//! takes longer. Of `pages` in all, as many stay resident as the cap holds beside the objects of the
//! others:
//!
//! ```text
//! cap = resident + share * (pages - resident)
//! faults ~ pages - resident = (pages - cap) / (1 - share)
//! ```
//!
//! for a program that wanders about at random. (One whose pages come round in turn gains more.) So it
//! is the bytes that compression spares that count, not those that are left, and whatever the cap is:
//! now and then a page is compressed for both, and density pays where it spares so much more.

use ramfold_codec::Aim;
use ramfold_sys::PAGE_SIZE;

/// One page in so many is compressed for both until enough were, then one in so many: it takes ten
/// times as long for density.
const TRIED_FIRST: u32 = 16;
const TRIED: u32 = 128;
/// The latest so many of these count, up to twice as many.
const COUNTED: u32 = 64;
/// And so many at least.
const ENOUGH: u32 = 8;
/// Density pays where it spares this many bytes for those in [`SPEED_SPARES`] that speed spares. A
/// fault takes 13 % longer with it (`sort` of 32 MB in half of its memory, on two processors: 31 us
/// instead of 27), more where there is no processor to compress on.
const DENSITY_SPARES: u64 = 6;
const SPEED_SPARES: u64 = 5;

/// What came of the pages that were compressed for both. All zero is none.
#[derive(Default)]
pub struct Aims {
    pages: u32,
    tried: u32,
    spared_by_speed: u64,
    spared_by_density: u64,
}

impl Aims {
    /// What to compress for.
    pub fn best(&self) -> Aim {
        let by_speed = self.spared_by_speed * DENSITY_SPARES;
        let by_density = self.spared_by_density * SPEED_SPARES;
        if self.tried >= ENOUGH && by_density > by_speed { Aim::Density } else { Aim::Speed }
    }

    /// Is the next page to be compressed for both?
    pub fn is_trial(&mut self) -> bool {
        self.pages = self.pages.wrapping_add(1);
        self.pages.is_multiple_of(if self.tried < COUNTED { TRIED_FIRST } else { TRIED })
    }

    /// A page was: into so many bytes for each.
    pub fn note(&mut self, speed_bytes: usize, density_bytes: usize) {
        if self.tried == 2 * COUNTED {
            self.tried /= 2;
            self.spared_by_speed /= 2;
            self.spared_by_density /= 2;
        }
        self.tried += 1;
        self.spared_by_speed += (PAGE_SIZE - speed_bytes) as u64;
        self.spared_by_density += (PAGE_SIZE - density_bytes) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pages: u32, speed_bytes: usize, density_bytes: usize, aims: &mut Aims) -> Aim {
        for _ in 0..pages {
            aims.note(speed_bytes, density_bytes);
        }
        aims.best()
    }

    #[test]
    fn density_pays_where_it_spares_a_fifth_more() {
        let mut aims = Aims::default();
        assert_eq!(aims.best(), Aim::Speed);
        assert_eq!(after(ENOUGH - 1, 2000, 1000, &mut aims), Aim::Speed);
        assert_eq!(after(1, 2000, 1000, &mut aims), Aim::Density);
        // 3,096 and 3,496 bytes spared.
        assert_eq!(after(1000, 1000, 600, &mut aims), Aim::Speed);
        assert_eq!(after(2 * COUNTED, 2000, 1500, &mut aims), Aim::Density);
        assert_eq!(after(1000, PAGE_SIZE, PAGE_SIZE, &mut aims), Aim::Speed);
    }

    #[test]
    fn many_pages_are_tried_at_first_and_few_later() {
        let mut aims = Aims::default();
        let mut tried_of = |pages: u32| {
            let tried = (0..pages).filter(|_| {
                let trial = aims.is_trial();
                if trial {
                    aims.note(2000, 1000);
                }
                trial
            });
            tried.count() as u32
        };
        assert_eq!(tried_of(COUNTED * TRIED_FIRST), COUNTED);
        assert_eq!(tried_of(100 * TRIED), 100);
    }
}
