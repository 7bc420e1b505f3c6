//! `ramfold manual`: manual pages and completions, made of what the command line is parsed by.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap_complete::Shell;

/// Write the manual pages and the shells' completions into a folder, laid out as below /usr/local.
#[derive(clap::Args)]
#[command(after_help = "Example:
  ramfold manual ~/.local")]
pub(crate) struct Arguments {
    /// Where share/man, share/bash-completion and so on are made
    folder: PathBuf,
}

/// # Errors
/// When a file cannot be written.
pub(crate) fn run(command: clap::Command, arguments: &Arguments) -> anyhow::Result<()> {
    let share = arguments.folder.join("share");
    let pages = make(&share.join("man/man1"))?;
    clap_mangen::generate_to(command.clone(), &pages)
        .with_context(|| format!("cannot write manual pages to {}", pages.display()))?;
    for (shell, folder, name) in [
        (Shell::Bash, "bash-completion/completions", "ramfold"),
        (Shell::Zsh, "zsh/site-functions", "_ramfold"),
        (Shell::Fish, "fish/vendor_completions.d", "ramfold.fish"),
    ] {
        let file = make(&share.join(folder))?.join(name);
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), "ramfold", &mut text);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn make(folder: &Path) -> anyhow::Result<PathBuf> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    Ok(folder.to_owned())
}
