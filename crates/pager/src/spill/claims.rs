//! Which segments of the session's spill file are this process's.

use core::sync::atomic::Ordering;

use ramfold_store::Claims;

use crate::agent::Agent;

/// The session keeps a set of segments for each process: a segment is free when it is in none of
/// them.
pub(crate) struct SessionClaims(pub(super) &'static Agent);

impl Claims for SessionClaims {
    fn claim(&mut self) -> Option<u32> {
        self.0.session().claim_segment(self.0.process())
    }

    fn release(&mut self, segment: u32) {
        self.0.session().release_segment(self.0.process(), segment);
    }

    fn retain(&mut self, is_used: &mut dyn FnMut(u32) -> bool) {
        let (session, process) = (self.0.session(), self.0.process());
        for segment in session.segments_of(process) {
            if !is_used(segment) {
                session.release_segment(process, segment);
            }
        }
    }

    fn next_sequence(&mut self) -> u64 {
        self.0.session().spill.sequence.fetch_add(1, Ordering::Relaxed)
    }
}
