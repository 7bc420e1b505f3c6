//! The agent's threads may do what the program may, and no more.
//!
//! A server that is started by root may become an ordinary user. Whoever takes such a server over
//! can write to its memory, the agent's stacks included, and must not find a thread there that is
//! root still. So the agent's threads follow the program's first thread.

use ramfold_sys::credentials::{self, Credentials};
use ramfold_sys::{Errno, proc};

use crate::agent::Agent;
use crate::session::Once;

/// What a forked child has its session from is its parent's agent, which must not be permitted more
/// than the child is. So the agent follows before the fork.
pub(crate) fn follow_before_fork(agent: &Agent) {
    let is_first = proc::own_thread() == agent.pid();
    if !is_first || !agent.listens() {
        return;
    }
    let own = credentials::digest_of_this_thread();
    for _ in 0..FORK_LOOKS {
        if agent.privileges.digest().is_none_or(|followed| followed == own) {
            return;
        }
        agent.privileges.ask();
        agent.process().wake_agent();
        agent.pause_briefly();
    }
}

/// How often a fork looks whether the agent has followed, some milliseconds apart.
const FORK_LOOKS: u32 = 12;
/// Between two looks: they cost some 30 us.
const LOOK_NS: u64 = 1_000_000_000;

/// What one of the agent's threads knows of the first.
#[derive(Default)]
pub(crate) struct Privileges {
    looked_ns: u64,
    followed: Option<Credentials>,
}

impl Privileges {
    /// The same for the first thread of the agent's process, as which others see it: also when the
    /// program waits for it to.
    pub(crate) fn follow_first(&mut self, agent: &Agent, now_ns: u64) {
        if agent.privileges.take_ask() {
            self.looked_ns = 0;
        }
        self.follow(agent, now_ns);
        if let Some(followed) = &self.followed {
            agent.privileges.note(followed.digest());
        }
    }

    /// Looks, when it is time to, whether the first thread's credentials have changed, and takes
    /// them on.
    pub(crate) fn follow(&mut self, agent: &Agent, now_ns: u64) {
        if now_ns - self.looked_ns < LOOK_NS {
            return;
        }
        self.looked_ns = now_ns;
        // Where /proc cannot be read (any more) nothing can be followed.
        let Ok(first) = Credentials::of_process(agent.pid()) else { return };
        if self.followed.as_ref() == Some(&first) {
            return;
        }
        match first.take_on() {
            Ok(()) => {}
            // Where /proc has gone meanwhile it is tried again.
            Err(errno) if errno != Errno::PERM => return,
            Err(_) => agent.session().say(
                Once::Privileges,
                format_args!(
                    "pid {}: the program changed its user, groups or capabilities, and its agent's process could not: that can do what the program could before",
                    agent.pid()
                ),
            ),
        }
        self.followed = Some(first);
    }
}
