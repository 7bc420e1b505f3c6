//! Dividing the working memory that a caller owns.

/// Takes one buffer after another from the front.
pub(crate) struct Carver<'a>(pub(crate) &'a mut [u8]);

impl<'a> Carver<'a> {
    pub(crate) fn bytes<const COUNT: usize>(&mut self) -> Option<&'a mut [u8; COUNT]> {
        let (taken, rest) = core::mem::take(&mut self.0).split_first_chunk_mut()?;
        self.0 = rest;
        Some(taken)
    }

    /// `COUNT` numbers of `WIDTH` bytes each.
    pub(crate) fn numbers<const WIDTH: usize, const COUNT: usize>(
        &mut self,
    ) -> Option<&'a mut [[u8; WIDTH]; COUNT]> {
        let (taken, rest) = core::mem::take(&mut self.0).split_at_mut_checked(WIDTH * COUNT)?;
        self.0 = rest;
        taken.as_chunks_mut().0.first_chunk_mut()
    }
}
