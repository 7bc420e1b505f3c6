//! `ramfold mount`: a directory at another place, through ramfold.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use ramfold_advise::file_trace::FileTrace;
use ramfold_codec::Codec;
use ramfold_codec::cluster::{ClusterCodec, ClusterSize};
use ramfold_filecache::mount::{Mount, Mounted, Options};
use ramfold_filecache::{AccessNotes, COMPRESSED_SHARE_MAX, Config, FileKey, View};
use ramfold_launch::output_file;
use rustix::fs::StatVfsMountFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;

use crate::mount_options::{self, MountOption};
use crate::mount_view::MountView;
use crate::picture;
use crate::say::say;
use crate::size::{Size, memory_bytes};

/// How much of the memory there is the cache may take, where nothing else was asked for.
const MEMORY_SHARE: f64 = 0.5;
/// What a process in the background says when the mount is there.
const READY: &str = "ready";
/// In its environment: it is that process, and says so, or why not, on standard output.
const IN_BACKGROUND: &str = "RAMFOLD_MOUNT_IN_BACKGROUND";

/// Mount a directory at another place: the same files, whose data stays compressed in RAM.
///
/// The kernel keeps what is read again and again as it is, in its page cache over the mount; below
/// that lies what was read, compressed. --memory counts both. What is written is in SOURCE when the
/// program goes on. What is changed in SOURCE behind the mount is seen within a second.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold mount --memory 2G /srv/data /mnt/data          until Ctrl-C or `ramfold umount /mnt/data`
  ramfold mount --live /srv/data /mnt/data               what it does, as it happens
  sudo ramfold mount --daemon /srv/data /mnt/data        for all users, in the background")]
pub(crate) struct Arguments {
    /// What the cache may cost in RAM, both levels together: 512M, 1.5G, 40% (of the machine's RAM)
    /// [default: half of the control group's limit, or of the machine's RAM]
    #[arg(short, long, value_name = "SIZE")]
    memory: Option<Size>,
    /// How pages are compressed: lz4, zstd-1 to zstd-19, or auto: zstd-1 where reads of SOURCE take
    /// long, lz4 where they do not
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = cluster_codec)]
    codec: CodecOption,
    /// How much is compressed as one: 4K, 16K or 64K. For experiments: without it 16K where reads
    /// of SOURCE take long or a file is read in order, else 4K
    #[arg(long, value_name = "SIZE", value_parser = cluster_size)]
    cluster: Option<ClusterSize>,
    /// Keep that part of the memory for compressed pages, 0 to 85%. For experiments: without it,
    /// what serves best
    #[arg(long, value_name = "PERCENT", value_parser = compressed_share)]
    compressed_share: Option<f64>,
    /// Compress on one thread only
    #[arg(long)]
    synchronous: bool,
    /// Write what happened to FILE as JSON when it ends, and whenever this process gets SIGUSR2
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write which pages of which files are read, and when, into FILE, for `ramfold simulate`.
    /// Reads that the kernel answers from its page cache over the mount are not seen, so that cache
    /// has 4 MiB at most meanwhile, and reads take longer. The file has mode 0600
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Show what happens on standard error, anew each second; as a line each second where that is
    /// no terminal
    #[arg(long)]
    live: bool,
    /// Go to the background when the mount is there
    #[arg(long)]
    daemon: bool,
    /// Let other users in, as their permissions are; root's mounts always do. An ordinary user
    /// needs `user_allow_other` in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Options as of mount(8): ro, nosuid, nodev, noexec, noatime, and allow_other and memory=SIZE
    /// instead of those above. As /sbin/mount.fuse.ramfold ramfold mounts what fstab(5) has of type
    /// fuse.ramfold
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<MountOption>,
    /// The directory
    source: PathBuf,
    /// An empty directory that is to show it
    mountpoint: PathBuf,
}

/// Without one: as SOURCE is.
#[derive(Clone, Copy, Debug)]
struct CodecOption(Option<ClusterCodec>);

fn cluster_codec(name: &str) -> Result<CodecOption, String> {
    if name == "auto" {
        return Ok(CodecOption(None));
    }
    const CODECS: &str = "files are compressed by auto, lz4 or zstd-1 to zstd-19";
    let codec: Codec = name.parse().map_err(|_| CODECS)?;
    let codec = codec.try_into();
    let codec = codec.map_err(|codec| format!("{codec} is for pages of programs; {CODECS}"))?;
    Ok(CodecOption(Some(codec)))
}

fn cluster_size(text: &str) -> Result<ClusterSize, String> {
    let bytes = text.parse::<Size>().ok().map(|size| size.bytes(0));
    bytes
        .and_then(|bytes| ClusterSize::of_bytes(bytes as usize))
        .ok_or_else(|| "write 4K, 16K or 64K".to_owned())
}

fn compressed_share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(Size::Fraction(share)) if share <= COMPRESSED_SHARE_MAX => Ok(share),
        _ => Err(format!("write a percentage from 0% to {}%", COMPRESSED_SHARE_MAX * 100.0)),
    }
}

/// # Errors
/// When it cannot be mounted or served.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.live && arguments.daemon {
        bail!(
            "--live shows what happens where this was started, and --daemon goes away from there: \
             leave one of them out, or name a file by --stats, which is written when the process \
             in the background gets SIGUSR2"
        );
    }
    let in_background = std::env::var_os(IN_BACKGROUND).is_some();
    if arguments.daemon && !in_background {
        return start_in_background();
    }
    if !in_background {
        return serve(arguments, |mount| {
            eprintln!(
                "ramfold: {} is mounted on {}; Ctrl-C unmounts it",
                arguments.source.display(),
                mount.mounted().mountpoint.display()
            );
            Ok(())
        });
    }
    // A session of its own: the terminal's signals do not reach it. It fails where that is so
    // already.
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

/// How it is mounted, but for a trace.
fn options(arguments: &Arguments) -> anyhow::Result<Options> {
    let (mut memory, mut allow_other) = (arguments.memory, arguments.allow_other);
    let mut restrictions = StatVfsMountFlags::empty();
    for option in &arguments.options {
        match *option {
            MountOption::Restriction(restriction) => restrictions |= restriction,
            MountOption::AllowOther => allow_other = true,
            MountOption::Memory(size) => memory = Some(size),
            MountOption::Nothing => {}
        }
    }
    // What the kernel's level answers is not in a trace.
    let traced_share = arguments.trace.as_ref().map(|_| COMPRESSED_SHARE_MAX);
    Ok(Options {
        allow_other,
        restrictions,
        threads: None,
        cache: Config {
            memory_bytes: memory_bytes(memory, MEMORY_SHARE)?,
            compressed_share: arguments.compressed_share.or(traced_share),
            codec: arguments.codec.0,
            cluster: arguments.cluster,
            synchronous: arguments.synchronous,
        },
        accesses: None,
    })
}

fn serve(
    arguments: &Arguments,
    when_ready: impl FnOnce(&Mount) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut options = options(arguments)?;
    // It may go to another folder.
    let stats = arguments.stats.as_ref().map(std::path::absolute).transpose()?;
    if let Some(file) = &stats {
        output_file::check(file).with_context(|| format!("--stats {}", file.display()))?;
    }
    let trace = arguments.trace.as_deref().map(ReadTrace::begin).transpose()?;
    options.accesses = trace.as_ref().map(ReadTrace::notes);
    // Before the mount is there, so that none is missed.
    let mut signals =
        Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR2]).context("handling signals")?;
    let mount = Mount::new(&arguments.source, &arguments.mountpoint, &options)?;
    let mounted = mount.mounted().clone();
    let view = mount.view();
    let write_stats = move || match &stats {
        Some(file) => write_statistics(&view, file),
        None => Ok(()),
    };
    let at_a_signal = write_stats.clone();
    thread::spawn(move || answer_signals(&mut signals, &mounted, &at_a_signal));
    when_ready(&mount).context("going to the background")?;
    let begin = || MountView::begin(mount.view());
    let live = arguments.live.then(begin).transpose().context("starting the live view")?;
    let served =
        mount.serve().with_context(|| format!("serving {}", arguments.mountpoint.display()));
    drop(live);
    let traced = trace.map_or(Ok(()), ReadTrace::end);
    served.and(write_stats()).and(traced)
}

/// The trace that `--trace` asks for.
struct ReadTrace {
    path: PathBuf,
    trace: Arc<FileTrace<FileKey>>,
}

impl ReadTrace {
    fn begin(path: &Path) -> anyhow::Result<ReadTrace> {
        let begun = FileTrace::begin(path);
        let trace = begun.with_context(|| format!("cannot write --trace {}", path.display()))?;
        Ok(ReadTrace { path: path.to_owned(), trace: Arc::new(trace) })
    }

    fn notes(&self) -> AccessNotes {
        let trace = Arc::clone(&self.trace);
        AccessNotes(Arc::new(move |file, pages| trace.note(file, pages)))
    }

    fn end(self) -> anyhow::Result<()> {
        let ReadTrace { path, trace } = self;
        let ended = trace.end();
        let lost = ended.with_context(|| format!("cannot write --trace {}", path.display()))?;
        if lost > 0 {
            say(format_args!(
                "--trace {} lacks {lost} accesses: the format has no number for their files or \
                 pages",
                path.display()
            ));
        }
        Ok(())
    }
}

fn write_statistics(view: &View, file: &Path) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec_pretty(&view.statistics())?;
    text.push(b'\n');
    output_file::write(file, &text).with_context(|| format!("writing {}", file.display()))
}

/// The first signal unmounts; what is in use is served on until it is not. The second ends at once.
/// SIGUSR2 asks for what happened.
fn answer_signals(
    signals: &mut Signals,
    mounted: &Mounted,
    write_stats: &dyn Fn() -> anyhow::Result<()>,
) {
    let mut is_asked_to_end = false;
    for signal in signals.forever() {
        if signal == SIGUSR2 {
            if let Err(error) = write_stats() {
                say(format_args!("{error:#}"));
            }
            continue;
        }
        if is_asked_to_end {
            picture::erase(&mut io::stderr().lock());
            std::process::exit(128 + signal);
        }
        is_asked_to_end = true;
        let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
        let mut result = mounted.unmount(false);
        if result.as_ref().is_err_and(is_busy) {
            say(format_args!(
                "{} is in use: unmounted for those who come later, and served until the others are \
                 done",
                mounted.mountpoint.display()
            ));
            result = mounted.unmount(true);
        }
        if let Err(error) = result {
            let why = match error.kind() {
                io::ErrorKind::AlreadyExists => "something else is mounted over it".to_owned(),
                _ => error.to_string(),
            };
            say(format_args!(
                "cannot unmount {}: {why}; the next signal ends without that",
                mounted.mountpoint.display()
            ));
        }
    }
}

fn start_in_background() -> anyhow::Result<()> {
    let this = std::env::current_exe().context("finding this program")?;
    let mut child = Command::new(this)
        .args(&mount_options::arguments()[1..])
        .env(IN_BACKGROUND, "1")
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
