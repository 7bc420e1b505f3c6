//! What a thread reclaims with: made in the agent's memory, and given back when there is nothing
//! to do for long.

use ramfold_codec::{Chosen, Decompressor, ScratchError};

use super::{By, ReclaimBuffers, Reclaimer};
use crate::agent::{Agent, CompressScratch};

impl Reclaimer {
    /// What the calling thread reclaims with, in the agent's memory. The program is ended where it
    /// cannot be made.
    ///
    /// # Safety
    /// The caller is the thread that `by` names, and has none yet.
    pub(crate) unsafe fn make(agent: &'static Agent, by: By) -> Reclaimer {
        // SAFETY: these parts are the thread's own.
        let (buffers, scratch) =
            unsafe { (&mut *Self::buffers(agent, by), Self::scratch(agent, by)) };
        match Reclaimer::new(agent, by, buffers, scratch) {
            Ok(reclaimer) => reclaimer,
            Err(error) => agent.fail(format_args!("no memory to compress with: {error}")),
        }
    }

    /// # Errors
    /// When the scratch memory is too small for the codec.
    fn new(
        agent: &'static Agent,
        by: By,
        buffers: &'static mut ReclaimBuffers,
        scratch: CompressScratch,
    ) -> Result<Reclaimer, ScratchError> {
        let codec = Chosen::new(agent.session().codec(), scratch.compress)?;
        let decompressor = match by {
            By::Monitor if codec.has_objectives() => Some(Decompressor::new(scratch.decompress)?),
            _ => None,
        };
        Ok(Reclaimer {
            agent,
            by,
            buffers,
            codec,
            claimed: None,
            decompressor,
            faults_seen: 0,
            dense: false,
            last: None,
        })
    }

    fn buffers(agent: &Agent, by: By) -> *mut ReclaimBuffers {
        match by {
            By::Monitor => agent.monitor_buffers.get(),
            By::Handler => agent.direct_buffers.get(),
        }
    }

    /// # Safety
    /// As of [`Agent::codec_scratch`].
    unsafe fn scratch(agent: &Agent, by: By) -> CompressScratch {
        // SAFETY: by the caller's word.
        let scratch = unsafe { agent.codec_scratch() };
        match by {
            By::Monitor => scratch.monitor,
            By::Handler => scratch.direct,
        }
    }

    /// Gives back the memory that all this takes, unless a chunk is half done.
    pub(crate) fn rest(self) -> Option<Reclaimer> {
        if self.claimed.is_some() {
            return Some(self);
        }
        let Reclaimer { agent, by, .. } = self;
        // SAFETY: nobody has these parts any more.
        let scratch = unsafe { Self::scratch(agent, by) };
        let start = Self::buffers(agent, by) as usize;
        agent.give_back(start..start + size_of::<ReclaimBuffers>());
        for part in [scratch.compress, scratch.decompress] {
            let start = part.as_ptr() as usize;
            agent.give_back(start..start + part.len());
        }
        None
    }
}
