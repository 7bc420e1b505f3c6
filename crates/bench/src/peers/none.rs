//! No cap: the speed everything is compared with, and the need.

use anyhow::Result;

use super::{Account, Active, Budget, NONE, Peer};
use crate::harness::measure::Outcome;
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;

pub(super) struct NoCap;

impl Peer for NoCap {
    fn name(&self) -> &str {
        NONE
    }

    fn about(&self) -> &'static str {
        "no limit and no swap"
    }

    fn needs_root(&self) -> bool {
        false
    }

    fn missing(&self, _host: &Host) -> Option<String> {
        None
    }

    fn budget(&self, _host: &Host) -> Budget {
        Budget::Unlimited
    }

    fn swapping(&self) -> Swapping {
        Swapping::Forbidden
    }

    fn set_up(&self, _host: &Host, _need_bytes: u64, _limit: u64) -> Result<Box<dyn Active>> {
        Ok(Box::new(Nothing))
    }
}

struct Nothing;

impl Active for Nothing {
    fn account(&self, _outcome: &Outcome) -> Result<Account> {
        Ok(Account::default())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
