//! Pages as numbers, for tables in which each page has one place.

/// A page of an owner, as a number that hardly any other page has.
#[derive(Clone, Copy, Debug)]
pub struct PageName(u64);

impl PageName {
    /// Of a page, by its number, of the owner with this id.
    pub fn new(owner_id: u64, page: u64) -> PageName {
        let mixed = (owner_id ^ page.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ page;
        PageName((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9))
    }

    /// The page's place in a table of this length, a power of two.
    pub fn place_among(self, places: usize) -> usize {
        self.0 as usize & (places - 1)
    }

    /// The upper half, to tell pages of the same place apart.
    pub fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
