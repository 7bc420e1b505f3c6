//! Whether agents can look after memory here: what they need of userfaultfd(2).

use ramfold_pager::NEEDED_FEATURES;
use ramfold_sys::Errno;
use ramfold_sys::uffd::{OpenError, Uffd, feature};

/// Why agents cannot look after memory here.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UserfaultfdProblem {
    /// This user may not use it, or the kernel has none.
    #[error(
        "userfaultfd is not permitted (/dev/userfaultfd: {}; system call: {})",
        .0.device,
        .0.system_call
    )]
    NotPermitted(OpenError),
    /// The kernel does not tell what it can do.
    #[error("cannot be asked for: {0}")]
    Unknown(Errno),
    /// The kernel cannot do all that is needed. Linux 6.8 can on x86-64, 6.10 on arm64.
    #[error("the kernel's userfaultfd lacks {}", names(*.0))]
    Lacks(u64),
}

/// What stands in the way of looking after memory here; `None` where nothing does.
pub fn userfaultfd_problem() -> Option<UserfaultfdProblem> {
    match Uffd::open() {
        Ok(_) => features_problem(),
        Err(error) => Some(UserfaultfdProblem::NotPermitted(error)),
    }
}

/// The same of what userfaultfd can do, where it is permitted.
pub fn features_problem() -> Option<UserfaultfdProblem> {
    match Uffd::supported_features() {
        Ok(offered) if offered & NEEDED_FEATURES == NEEDED_FEATURES => None,
        Ok(offered) => Some(UserfaultfdProblem::Lacks(NEEDED_FEATURES & !offered)),
        Err(error) => Some(UserfaultfdProblem::Unknown(error.system_call)),
    }
}

fn names(features: u64) -> String {
    let names = [
        (feature::EVENT_REMAP, "EVENT_REMAP"),
        (feature::EVENT_REMOVE, "EVENT_REMOVE"),
        (feature::EVENT_UNMAP, "EVENT_UNMAP"),
        (feature::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
        (feature::THREAD_ID, "THREAD_ID"),
        (feature::MOVE, "MOVE"),
    ];
    let missing: Vec<_> =
        names.iter().filter(|(bit, _)| features & bit != 0).map(|(_, name)| *name).collect();
    missing.join(", ")
}
