//! `ramfold mount`: a directory at another place, through ramfold.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, bail};
use ramfold_filecache::mount::{self, Mount, Options};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What a process in the background says when the mount is there.
const READY: &str = "ready";

/// Mount a directory at another place: the same files, with the same owners and permissions, through ramfold.
///
/// What is written is in SOURCE when the program goes on. What is changed in SOURCE behind the mount is seen
/// within a second.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold mount /srv/data /mnt/data                      until Ctrl-C or `ramfold umount /mnt/data`
  sudo ramfold mount --daemon /srv/data /mnt/data        for all users, in the background")]
pub struct Arguments {
    /// Go to the background when the mount is there
    #[arg(long)]
    daemon: bool,
    /// Let other users in, as their permissions are; root's mounts always do. An ordinary user needs
    /// `user_allow_other` in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Says on standard output when the mount is there, or why not: the process in the background
    #[arg(long, hide = true)]
    in_background: bool,
    /// The directory
    source: PathBuf,
    /// An empty directory that is to show it
    mountpoint: PathBuf,
}

/// # Errors
/// When it cannot be mounted or served.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.daemon {
        return start_in_background(arguments);
    }
    if !arguments.in_background {
        return serve(arguments, |mount| {
            eprintln!(
                "ramfold: {} is mounted on {}; Ctrl-C unmounts it",
                arguments.source.display(),
                mount.mountpoint().display()
            );
            Ok(())
        });
    }
    // A session of its own: the terminal's signals do not reach it. It fails where that is so already.
    let _ = rustix::process::setsid();
    let result = serve(arguments, |_| {
        println!("{READY}");
        io::stdout().flush()?;
        // Nobody listens from now on, and the directory this was started in can be unmounted.
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        rustix::process::chdir("/")?;
        Ok(())
    });
    if let Err(error) = &result {
        // To whoever started this.
        let _ = writeln!(io::stdout(), "{error:#}");
    }
    result
}

fn serve(
    arguments: &Arguments,
    when_ready: impl FnOnce(&Mount) -> io::Result<()>,
) -> anyhow::Result<()> {
    let options = Options { allow_other: arguments.allow_other, ..Options::default() };
    // Before the mount is there, so that none is missed.
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("handling signals")?;
    let mount = Mount::new(&arguments.source, &arguments.mountpoint, &options)?;
    let mountpoint = mount.mountpoint().to_owned();
    thread::spawn(move || end_at_a_signal(&mut signals, &mountpoint));
    when_ready(&mount).context("going to the background")?;
    mount.serve().with_context(|| format!("serving {}", arguments.mountpoint.display()))
}

/// The first signal unmounts; what is in use is served on until it is not. The second ends at once.
fn end_at_a_signal(signals: &mut Signals, mountpoint: &Path) {
    let mut is_unmounted = false;
    for signal in signals.forever() {
        if is_unmounted {
            std::process::exit(128 + signal);
        }
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        match mount::unmount(mountpoint, false) {
            Err(error) if is_busy(&error) => {
                say(&format!(
                    "{} is in use: unmounted for those who come later, and served until the others are done",
                    mountpoint.display()
                ));
                is_unmounted = mount::unmount(mountpoint, true).is_ok();
            }
            Err(error) => say(&format!("cannot unmount {}: {error}", mountpoint.display())),
            Ok(()) => is_unmounted = true,
        }
    }
}

fn start_in_background(arguments: &Arguments) -> anyhow::Result<()> {
    let this = std::env::current_exe().context("finding this program")?;
    let mut words = vec![OsString::from("mount"), "--in-background".into()];
    if arguments.allow_other {
        words.push("--allow-other".into());
    }
    words.extend([
        "--".into(),
        arguments.source.clone().into(),
        arguments.mountpoint.clone().into(),
    ]);
    let mut child = Command::new(this)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("starting it in the background")?;
    let mut said = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // It closes it when it is ready, and when it ends.
        stdout.read_to_string(&mut said).context("waiting for the mount")?;
    }
    match said.trim() {
        READY => Ok(()),
        "" => bail!("it ended in the background with {}", child.wait()?),
        reason => bail!("{reason}"),
    }
}

fn say(text: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "ramfold: {text}");
}
