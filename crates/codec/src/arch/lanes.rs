//! What vector code for every processor shares: masks of lanes, and shuffles by them.

/// By a mask of eight: where each wanted element comes from.
pub(super) struct Shuffles {
    /// The elements whose bit is set, side by side.
    pub close: [[u8; 8]; 256],
    /// Elements that lie side by side, each to a bit that is set; `NONE` makes zeros of the others.
    pub open: [[u8; 8]; 256],
}

/// In a shuffle of bytes, a zero. AVX2's shuffles of lanes take it for lane 0.
pub(super) const NONE: u8 = 0x80;

pub(super) static SHUFFLES: Shuffles = {
    let mut table = Shuffles { close: [[NONE; 8]; 256], open: [[NONE; 8]; 256] };
    let mut mask = 0;
    while mask < 256 {
        let (mut bit, mut nth) = (0, 0);
        while bit < 8 {
            if mask >> bit & 1 == 1 {
                table.close[mask][nth] = bit as u8;
                table.open[mask][bit] = nth as u8;
                nth += 1;
            }
            bit += 1;
        }
        mask += 1;
    }
    table
};

/// A bit for each lane below `count`, of up to 64 lanes.
#[inline]
pub(super) fn first_lanes(count: usize) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

#[inline]
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

#[inline]
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
