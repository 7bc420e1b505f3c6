//! `ramfold umount`: takes a mount of `ramfold mount` away.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, bail};
use ramfold_filecache::mount;

/// Unmount what `ramfold mount` has mounted, as `fusermount3 -u` or `umount` do.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Unmount it though it is in use: it goes away for those who come later
    #[arg(long, short)]
    lazy: bool,
    /// Where it is mounted
    mountpoint: PathBuf,
}

/// # Errors
/// When it is not one of ramfold's, or is in use.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let name = arguments.mountpoint.display();
    let mountpoint =
        mount::place_of(&arguments.mountpoint).with_context(|| format!("cannot unmount {name}"))?;
    if !mount::is_ours(&mountpoint) {
        bail!("{name} is not a mount of ramfold; for others there is umount");
    }
    mount::unmount(&mountpoint, arguments.lazy).map_err(|error| match error.kind() {
        io::ErrorKind::ResourceBusy => anyhow::anyhow!(
            "cannot unmount {name}: somebody uses it (`fuser -vm {name}` says who); \
             --lazy takes it away all the same"
        ),
        _ => anyhow::Error::from(error).context(format!("cannot unmount {name}")),
    })
}
