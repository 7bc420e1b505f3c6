//! Size classes. A span is 64 KiB; above 1 KiB a class is the largest slot (a multiple of 16
//! bytes) of which a given number fits a span, so that a span's tail is never a lost slot:
//! 4096 (16 slots), 3840 (17), 3632 (18) ... 1024 (64). There the next number of slots would be
//! less than 16 bytes smaller, and the classes go on in steps of 16 bytes down to 512 and of
//! 32 bytes down to 32. zsmalloc's classes are 16 bytes apart everywhere, but its spans need up
//! to 8 scattered pages each.

use core::ops::RangeInclusive;

/// Bytes in a span: 16 pages.
pub(crate) const SPAN_BYTES: usize = 64 << 10;
pub(crate) const SPAN_PAGES: usize = SPAN_BYTES / ramfold_sys::PAGE_SIZE;

/// Places in the pool are counted in units of this many bytes; slots are multiples of it.
pub(crate) const UNIT_BYTES: usize = 16;

/// Bytes of the seal that precedes an object in its slot.
pub(crate) const SEAL_BYTES: usize = 4;

const DIVISOR_MIN: usize = 16;
const DIVISOR_MAX: usize = 64;
/// Steps of 16 bytes from here up to the divisor classes, of 32 bytes below.
const FINE_MIN: usize = 512;

pub(crate) const CLASS_COUNT: usize =
    1 + FINE_MIN / 32 - 1 + (1024 - FINE_MIN) / 16 + (DIVISOR_MAX - DIVISOR_MIN + 1);

/// The class of whole-page slots. Its objects fill the slot, so their seals are kept aside; see
/// [`super::page_seals`].
pub(crate) const PAGE_CLASS: usize = CLASS_COUNT - 1;

/// How full a span is, in quarters: objects go to the fullest, so that the others can empty.
pub(crate) const FULLNESS_STEPS: usize = 4;

/// The shape of a class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class {
    pub slot_bytes: u16,
    /// Slots in a span.
    pub slots: u16,
    /// Used slots at which a span is a quarter, half and three quarters full.
    pub quarters: [u16; FULLNESS_STEPS - 1],
}

impl Class {
    pub(crate) const fn of(slot_bytes: usize) -> Class {
        let slots = SPAN_BYTES / slot_bytes;
        Class {
            slot_bytes: slot_bytes as u16,
            slots: slots as u16,
            quarters: [
                slots.div_ceil(4) as u16,
                slots.div_ceil(2) as u16,
                (3 * slots).div_ceil(4) as u16,
            ],
        }
    }

    /// Which of the [`FULLNESS_STEPS`] a span with this many used slots is in.
    #[inline]
    pub(crate) fn fullness(&self, used: u16) -> usize {
        let [a, b, c] = self.quarters;
        usize::from(used >= a) + usize::from(used >= b) + usize::from(used >= c)
    }
}

/// All classes, smallest slots first.
pub(crate) static CLASSES: [Class; CLASS_COUNT] = {
    let mut classes = [Class::of(UNIT_BYTES); CLASS_COUNT];
    let mut class = 1;
    let mut bytes = 32;
    while bytes < 1024 {
        classes[class] = Class::of(bytes);
        bytes += if bytes < FINE_MIN { 32 } else { 16 };
        class += 1;
    }
    let mut slots = DIVISOR_MAX;
    while slots >= DIVISOR_MIN {
        classes[class] = Class::of(SPAN_BYTES / slots / UNIT_BYTES * UNIT_BYTES);
        slots -= 1;
        class += 1;
    }
    assert!(class == CLASS_COUNT);
    classes
};

/// Longest object whose seal fits its slot in a class below [`PAGE_CLASS`].
pub(crate) const SEALED_BYTES_MAX: usize = CLASSES[PAGE_CLASS - 1].slot_bytes as usize - SEAL_BYTES;

/// The smallest class for every need (seal and object), in units.
static CLASS_OF_UNITS: [u8; (SEALED_BYTES_MAX + SEAL_BYTES) / UNIT_BYTES + 1] = {
    let mut of = [0; (SEALED_BYTES_MAX + SEAL_BYTES) / UNIT_BYTES + 1];
    let mut class = 0;
    let mut units = 0;
    while units < of.len() {
        if units * UNIT_BYTES > CLASSES[class].slot_bytes as usize {
            class += 1;
        }
        of[units] = class as u8;
        units += 1;
    }
    of
};

/// The smallest class that takes an object of `len` bytes (at most a page).
#[inline]
pub(crate) fn class_of(len: usize) -> usize {
    let units = (len + SEAL_BYTES).div_ceil(UNIT_BYTES);
    match CLASS_OF_UNITS.get(units) {
        Some(&class) => usize::from(class),
        None => PAGE_CLASS,
    }
}

/// What an object of `len` bytes (at most a page) takes in a full span, its seal included: bytes of
/// memory, to compare codecs by what they save in the end.
pub fn charged_bytes(len: usize) -> usize {
    SPAN_BYTES / usize::from(CLASSES[class_of(len)].slots)
}

/// For each class the last below [`PAGE_CLASS`] whose slots are at most a 1/`part` larger; the
/// class itself if there is none. `part` divides [`UNIT_BYTES`].
const fn last_larger_by(part: u16) -> [u8; CLASS_COUNT] {
    let mut last = [0; CLASS_COUNT];
    let mut class = 0;
    while class < CLASS_COUNT {
        let most = CLASSES[class].slot_bytes / part * (part + 1);
        let mut larger = class;
        while larger + 1 < PAGE_CLASS && CLASSES[larger + 1].slot_bytes <= most {
            larger += 1;
        }
        last[class] = larger as u8;
        class += 1;
    }
    last
}

static LAST_NEAR: [u8; CLASS_COUNT] = last_larger_by(16);
static LAST_HALF_LARGER: [u8; CLASS_COUNT] = last_larger_by(2);

/// The classes, from the smallest that takes the object, whose slots are not much too large for it.
pub(crate) fn near(class: usize) -> RangeInclusive<usize> {
    class..=usize::from(LAST_NEAR[class])
}

/// The same with slots that are at most half as large again.
pub(crate) fn half_larger(class: usize) -> RangeInclusive<usize> {
    class..=usize::from(LAST_HALF_LARGER[class])
}

const _: () = {
    // The relations the rest of the pool leans on.
    let mut class = 0;
    while class < CLASS_COUNT {
        let c = &CLASSES[class];
        assert!((c.slot_bytes as usize).is_multiple_of(UNIT_BYTES));
        assert!(c.slots as usize * c.slot_bytes as usize <= SPAN_BYTES);
        // A slot lies in at most two pages, and its last byte in the last of them.
        assert!(c.slot_bytes as usize <= ramfold_sys::PAGE_SIZE);
        // Free slots are linked by number plus one in 16 bits.
        assert!(c.slots < u16::MAX);
        assert!(class == 0 || CLASSES[class - 1].slot_bytes < c.slot_bytes);
        class += 1;
    }
    assert!(CLASSES[PAGE_CLASS].slot_bytes as usize == crate::OBJECT_BYTES_MAX);
    assert!(CLASS_COUNT <= u8::MAX as usize);
    // The pages of a span are counted by a 16-bit map.
    assert!(SPAN_PAGES == 16);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_the_smallest_class_that_takes_it() {
        for len in 1..=crate::OBJECT_BYTES_MAX {
            let class = class_of(len);
            let slot = usize::from(CLASSES[class].slot_bytes);
            if class == PAGE_CLASS {
                assert!(len > SEALED_BYTES_MAX && len <= slot);
                continue;
            }
            let need = len + SEAL_BYTES;
            assert!(need <= slot, "{len}");
            assert!(class == 0 || need > usize::from(CLASSES[class - 1].slot_bytes), "{len}");
        }
    }

    #[test]
    fn waste_is_bounded() {
        // Rounding up costs less than a step: 32 bytes of small objects, 16 of middling ones, and
        // of large ones 1/k of the slot when k slots fit a span.
        for len in 1..=SEALED_BYTES_MAX {
            let need = len + SEAL_BYTES;
            let waste = usize::from(CLASSES[class_of(len)].slot_bytes) - need;
            let bound = match need {
                0..FINE_MIN => 31,
                FINE_MIN..1024 => 15,
                _ => need / 15,
            };
            assert!(waste <= bound, "{len}: {waste} > {bound}");
        }
        for c in &CLASSES {
            let tail = SPAN_BYTES - usize::from(c.slots) * usize::from(c.slot_bytes);
            assert!(tail < usize::from(c.slot_bytes) && tail * 60 < SPAN_BYTES, "{c:?}: {tail}");
        }
    }

    #[test]
    fn mean_waste_of_realistic_lengths_is_small() {
        let (mut need, mut slots) = (0, 0.0);
        for len in 300..=2600 {
            let c = &CLASSES[class_of(len)];
            need += len;
            slots += SPAN_BYTES as f64 / f64::from(c.slots);
        }
        let ratio = slots / need as f64;
        assert!(ratio < 1.025, "{ratio}");
    }

    #[test]
    fn near_classes_waste_a_sixteenth_at_most() {
        for (class, c) in CLASSES.iter().enumerate() {
            let slot = u32::from(c.slot_bytes);
            for other in near(class) {
                let larger = u32::from(CLASSES[other].slot_bytes);
                assert!(larger == slot || larger * 16 <= slot * 17 && other < PAGE_CLASS);
            }
        }
        assert_eq!(near(class_of(1200)).count(), 4);
        assert_eq!(near(PAGE_CLASS).count(), 1);
    }

    #[test]
    fn fullness_is_the_quarter() {
        for c in &CLASSES {
            for used in 0..c.slots {
                let expected = usize::from(used) * FULLNESS_STEPS / usize::from(c.slots);
                assert_eq!(c.fullness(used), expected, "{used} of {}", c.slots);
            }
        }
    }
}
