//! Numbers that look like chance and are the same each time, for tests.

/// Marsaglia's 64-bit xorshift.
pub(crate) struct Numbers(pub u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit
    }
}
