//! What /proc says of the program of a simulation.

use ramfold_sys::Errno;
pub(crate) use ramfold_sys::proc::*;

use super::running;

/// Page tables of a small program.
const PAGE_TABLE_BYTES: u64 = 64 << 10;

pub(crate) struct Statm {
    of_machine: Option<ramfold_sys::proc::Statm>,
}

impl Statm {
    pub(crate) fn open() -> Result<Statm, Errno> {
        let of_machine = match running() {
            Some(_) => None,
            None => Some(ramfold_sys::proc::Statm::open()?),
        };
        Ok(Statm { of_machine })
    }

    pub(crate) fn read(&self) -> Result<Memory, Errno> {
        match (&self.of_machine, running()) {
            (Some(statm), _) => statm.read(),
            (None, Some(model)) => Ok(model.memory()),
            (None, None) => Err(Errno::NOENT),
        }
    }
}

pub(crate) struct Proportional {
    pub anonymous: u64,
    pub shared: u64,
}

impl Proportional {
    /// What is shared many have.
    pub(crate) fn of_this_process() -> Result<Proportional, Errno> {
        let model = running().ok_or(Errno::NOENT)?;
        let shared = model.state().shared_bytes();
        Ok(Proportional {
            anonymous: model.memory().anonymous_bytes.saturating_sub(shared / 8 * 7),
            shared: 0,
        })
    }
}

pub(crate) fn resident_shared_bytes() -> Result<u64, Errno> {
    Ok(0)
}

pub(crate) fn page_table_bytes() -> Result<u64, Errno> {
    Ok(PAGE_TABLE_BYTES)
}

/// The program has none.
pub(crate) fn arguments() -> Result<core::ops::Range<usize>, Errno> {
    Ok(0..0)
}
