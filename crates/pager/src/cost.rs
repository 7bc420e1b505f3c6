//! What memory costs and when it must shrink.
//!
//! `cost` is the anonymous memory of the process in RAM as the kernel counts it, so it includes
//! the pool, staging and every table of ramfold. With several processes in a session each keeps
//! its last count in its account, and the sum is held under the cap.

use core::ptr;
use core::sync::atomic::Ordering;

use ramfold_policy::memory::watermarks::Watermarks;

use crate::agent::Agent;
use crate::session::{Process, Session};

/// The watermarks that hold now.
pub(crate) fn watermarks(session: &Session) -> Watermarks {
    if session.brings_back.load(Ordering::Relaxed) {
        return Watermarks::without_cap();
    }
    Watermarks::for_cap(session.target_bytes.load(Ordering::Relaxed))
}

/// The same for this process alone, with its cost as estimated: what others cost and what is kept
/// for pools is taken off.
pub(crate) fn own_watermarks(agent: &Agent) -> Watermarks {
    let session = agent.session();
    let others_bytes = others_cost(agent) + session.unused_pool_bytes();
    watermarks(session).beside(others_bytes, agent.hints.outruns())
}

/// What the other processes of the session cost.
pub(crate) fn others_cost(agent: &Agent) -> u64 {
    agent.others().map(|process| process.cost_bytes.load(Ordering::Relaxed)).sum()
}

/// What all processes of the session cost.
pub(crate) fn total(agent: &Agent) -> u64 {
    others_cost(agent) + agent.cost()
}

/// What the other processes of the session cost, or could come to without asking.
pub(crate) fn others_claim(agent: &Agent) -> u64 {
    let others = |process: &&Process| !ptr::eq(*process, agent.process());
    let claim = |process: &Process| {
        let cost = process.cost_bytes.load(Ordering::Relaxed);
        cost.max(process.claim_bytes.load(Ordering::Relaxed))
    };
    agent.session().used_processes().filter(others).map(claim).sum()
}
