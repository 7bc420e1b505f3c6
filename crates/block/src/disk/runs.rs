//! Extents of one kind that follow each other are one.

use std::ops::ControlFlow;

use crate::Extent;

/// Joins extents, and hands them on.
pub(super) struct Runs<'a> {
    run: Option<Extent>,
    each: &'a mut dyn FnMut(Extent) -> ControlFlow<()>,
}

impl<'a> Runs<'a> {
    pub(super) fn new(each: &'a mut dyn FnMut(Extent) -> ControlFlow<()>) -> Runs<'a> {
        Runs { run: None, each }
    }

    /// Adds what follows. Hands on what came before, where this is of another kind.
    pub(super) fn add(&mut self, next: Extent) -> ControlFlow<()> {
        let kind = |extent: &Extent| (extent.is_allocated, extent.is_zero);
        match &mut self.run {
            Some(run) if kind(run) == kind(&next) => run.bytes += next.bytes,
            run => {
                if let Some(run) = run.replace(next) {
                    return (self.each)(run);
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Hands on the last one.
    pub(super) fn end(self) -> ControlFlow<()> {
        self.run.map_or(ControlFlow::Continue(()), self.each)
    }
}
