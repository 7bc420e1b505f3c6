//! Subcommands, and the program's main function.
//!
//! A subcommand is a struct of arguments that implements [`Command`], and one line in a list: that
//! of the experiments, or [`INTERNAL`].

use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgMatches, Args};

use crate::machine::enter_cgroup;
use crate::machine::interrupt::Interrupted;
use crate::machine::say;
use crate::{experiments, workloads};

/// The arguments of a subcommand, and what it does.
pub(crate) trait Command: Args {
    /// What is typed to run it.
    const NAME: &'static str;
    /// Commands that the harness runs itself, or developers do, are not in the help.
    const IS_HIDDEN: bool = false;

    /// # Errors
    /// When it cannot do what it was asked for; the error is printed.
    fn execute(self) -> Result<ExitCode>;
}

/// What the harness starts itself, beside the experiments.
const INTERNAL: &[Entry] = &[entry::<workloads::Options>(), entry::<enter_cgroup::Options>()];

/// Every subcommand, in the order of the help.
fn all() -> impl Iterator<Item = &'static Entry> {
    experiments::ALL.iter().chain(INTERNAL)
}

/// A [`Command`] without its type.
pub(crate) struct Entry {
    name: &'static str,
    declare: fn() -> clap::Command,
    execute: fn(&ArgMatches) -> Result<ExitCode>,
}

/// The entry of a command in a list.
pub(crate) const fn entry<C: Command>() -> Entry {
    Entry { name: C::NAME, declare: declare::<C>, execute: execute::<C> }
}

fn declare<C: Command>() -> clap::Command {
    C::augment_args(clap::Command::new(C::NAME)).hide(C::IS_HIDDEN)
}

fn execute<C: Command>(matches: &ArgMatches) -> Result<ExitCode> {
    C::from_arg_matches(matches)
        .unwrap_or_else(|error| error.format(&mut program()).exit())
        .execute()
}

fn program() -> clap::Command {
    clap::Command::new("ramfold-bench")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measure ramfold and what a Linux machine has beside it, in the same run")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(all().map(|entry| (entry.declare)()))
}

/// Runs the subcommand that the arguments of this process name, and reports its error.
pub fn main() -> ExitCode {
    let matches = program().get_matches();
    let (name, matches) = matches.subcommand().expect("clap requires a subcommand");
    let entry = all().find(|entry| entry.name == name).expect("clap knows those of the list");
    match (entry.execute)(matches) {
        Ok(code) => code,
        Err(error) => {
            if let Some(interrupted) = error.downcast_ref::<Interrupted>() {
                say(&format!("ramfold-bench: {interrupted}"));
                return interrupted.exit_code();
            }
            say(&format!("ramfold-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_accepts_the_arguments_of_every_command() {
        program().debug_assert();
    }

    #[test]
    fn every_command_has_a_name_of_its_own() {
        let mut names: Vec<&str> = all().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }
}
