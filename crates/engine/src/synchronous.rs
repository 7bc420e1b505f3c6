//! The engine without queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use ramfold_codec::Choice;

use crate::coder::{Coder, EngineError};
use crate::mailbox::Mailbox;
use crate::{Depths, Engine, Job};

/// Does jobs on the thread that submits them.
pub struct Synchronous {
    choice: Choice,
    /// Coders that no thread uses now: as many as have been in use at once.
    coders: Mutex<Vec<Coder>>,
}

impl Synchronous {
    /// An engine that compresses pages as `choice` says.
    ///
    /// # Errors
    /// [`EngineError::Codec`].
    pub fn new(choice: Choice) -> Result<Synchronous, EngineError> {
        Ok(Synchronous { choice, coders: Mutex::new(vec![Coder::new(choice)?]) })
    }

    fn coders(&self) -> std::sync::MutexGuard<'_, Vec<Coder>> {
        self.coders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Synchronous {
    fn name(&self) -> &'static str {
        "sync"
    }

    fn submit(&self, jobs: &mut VecDeque<Job>, mailbox: &Arc<Mailbox>) -> usize {
        let spare = self.coders().pop();
        // The first was made in the same way.
        let Some(mut coder) = spare.or_else(|| Coder::new(self.choice).ok()) else { return 0 };
        mailbox.expect(jobs.len());
        let done: Vec<_> = jobs.drain(..).map(|job| coder.run(job)).collect();
        let count = done.len();
        mailbox.deliver(done);
        self.coders().push(coder);
        count
    }

    fn depths(&self) -> Depths {
        Depths::default()
    }
}
