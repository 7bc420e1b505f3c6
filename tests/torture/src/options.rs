//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::operations;
use crate::table::THREADS_MAX;

pub(crate) const USAGE: &str = "\
Usage: ramfold-torture [OPTION]...
Checks every byte of its memory while it does to that memory whatever programs do.

      --seconds N        run for N seconds (default 10)
      --operations N     run N operations instead; the last line is then the same for the same
                         seed, threads, megabytes and operations
      --seed S           everything that happens follows from S (default: chosen, and printed)
      --threads N        threads that torture, 1 to 64 (default 4)
      --megabytes N      memory to torture in MiB, at least 16 (default 128)
      --incompressible N share of pages with random bytes, in percent (default 10)
      --only NAME,...    these operations only
      --skip NAME,...    all but these operations
      --list             list the operations
      --children N       forked children alive at once (default 4)
      --directory DIR    where to put files (default: the directory for temporary files)
      --close-descriptors
                         close all descriptors from 3 on, at the start and between rounds
      --allow-split      do not mind when mremap is refused because a mapping that the program
                         made in one piece has become several
      --hang-seconds N   a thread that makes no progress for N seconds hangs (default 60)
      --verbose          say on stderr how often each operation was done
      --help             this text

Example: ramfold run --memory 64M -- ramfold-torture --megabytes 128 --seconds 60

Exit status: 0 all bytes were right, 1 something was wrong, 2 no progress, 3 bad usage or the
program could not start.
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Flips one bit of one page.
    Flip,
    /// Zeroes a page.
    Zero,
    /// Puts back what a page held before its last write.
    Stale,
    /// Exchanges the bytes of two pages.
    Swap,
    /// Takes one addition back from a counter.
    Counter,
    /// Flips a bit of a page that is never written.
    Fixed,
    /// Flips a bit in a forked child.
    Child,
    /// Flips a bit in memory shared beside the regions.
    Beside,
    /// Stops making progress.
    Hang,
}

const SABOTAGES: [(&str, Sabotage); 9] = [
    ("flip", Sabotage::Flip),
    ("zero", Sabotage::Zero),
    ("stale", Sabotage::Stale),
    ("swap", Sabotage::Swap),
    ("counter", Sabotage::Counter),
    ("fixed", Sabotage::Fixed),
    ("child", Sabotage::Child),
    ("beside", Sabotage::Beside),
    ("hang", Sabotage::Hang),
];

/// What a run takes over from the one that replaced itself by exec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resume {
    /// How many times the program has replaced itself.
    pub generation: u64,
    pub operations: u64,
    pub hash: u64,
    pub elapsed_ms: u64,
}

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Milliseconds(u64),
    Operations(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub extent: Extent,
    pub seed: u64,
    pub threads: usize,
    pub megabytes: usize,
    pub incompressible_percent: u8,
    pub only: Vec<String>,
    pub skip: Vec<String>,
    pub children: usize,
    pub directory: PathBuf,
    pub close_descriptors: bool,
    pub allow_split: bool,
    pub hang_seconds: u64,
    pub verbose: bool,
    pub sabotage: Option<Sabotage>,
    pub resume: Resume,
}

#[derive(Debug)]
pub(crate) enum Command {
    Run(Box<Options>),
    List,
    Help,
    /// Run by the program itself: watches over a process by its table.
    Watchdog {
        pid: i32,
        descriptor: i32,
        hang_seconds: u64,
    },
    /// Run by the program itself: a small program with a known answer.
    Probe {
        kind: String,
        seed: u64,
    },
}

/// Reads the arguments; `fallback_seed` is used when they name none.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    fallback_seed: u64,
) -> Result<Command, String> {
    let mut options = Options {
        extent: Extent::Milliseconds(10_000),
        seed: fallback_seed,
        threads: 4,
        megabytes: 128,
        incompressible_percent: 10,
        only: Vec::new(),
        skip: Vec::new(),
        children: 4,
        directory: std::env::temp_dir(),
        close_descriptors: false,
        allow_split: false,
        hang_seconds: 60,
        verbose: false,
        sabotage: None,
        resume: Resume::default(),
    };
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let name = text(&argument, "option")?;
        match name.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            "--close-descriptors" => options.close_descriptors = true,
            "--allow-split" => options.allow_split = true,
            "--verbose" => options.verbose = true,
            _ => {
                let value = arguments.next().ok_or_else(|| {
                    if name.starts_with("--") {
                        format!("option {name} is unknown or lacks its value")
                    } else {
                        format!("argument {name} is not understood")
                    }
                })?;
                match name.as_str() {
                    "--watchdog" => return watchdog(&value),
                    "--probe" => return probe(&value),
                    _ => options.set(&name, value)?,
                }
            }
        }
    }
    Ok(Command::Run(Box::new(options)))
}

impl Options {
    /// Sets an option that has a value.
    fn set(&mut self, name: &str, value: OsString) -> Result<(), String> {
        match name {
            "--seconds" => {
                let seconds = number(name, &value, 1, 10_000_000)?;
                self.extent = Extent::Milliseconds(seconds * 1000);
            }
            "--operations" => {
                self.extent = Extent::Operations(number(name, &value, 1, u64::MAX)?);
            }
            "--seed" => self.seed = number(name, &value, 0, u64::MAX)?,
            "--threads" => {
                self.threads = number(name, &value, 1, THREADS_MAX as u64 - 1)? as usize;
            }
            "--megabytes" => self.megabytes = number(name, &value, 16, 1 << 16)? as usize,
            "--incompressible" => {
                self.incompressible_percent = number(name, &value, 0, 100)? as u8;
            }
            "--only" => self.only = names(&value)?,
            "--skip" => self.skip = names(&value)?,
            "--children" => self.children = number(name, &value, 1, 1000)? as usize,
            "--directory" => self.directory = value.into(),
            "--hang-seconds" => self.hang_seconds = number(name, &value, 1, 1_000_000)?,
            "--sabotage" => self.sabotage = Some(sabotage(&value)?),
            "--resume" => self.resume = resume(&value)?,
            _ => return Err(format!("option {name} is unknown")),
        }
        Ok(())
    }
}

/// The arguments less what one image of the program adds for the next.
pub(crate) fn without_resume(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments = arguments;
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        if argument == "--seed" || argument == "--resume" {
            arguments.next();
        } else {
            kept.push(argument);
        }
    }
    kept
}

fn text(argument: &OsString, what: &str) -> Result<String, String> {
    argument.to_str().map(str::to_owned).ok_or_else(|| format!("{what} {argument:?} is not text"))
}

fn number(name: &str, value: &OsString, low: u64, high: u64) -> Result<u64, String> {
    let value = text(value, name)?;
    match value.parse() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("{name} {value}: wanted is a number from {low} to {high}")),
    }
}

fn names(value: &OsString) -> Result<Vec<String>, String> {
    let names: Vec<String> = text(value, "list of names")?.split(',').map(str::to_owned).collect();
    match names.iter().find(|name| operations::index_of(name).is_none()) {
        Some(stranger) => Err(format!("no operation is named {stranger:?}; --list names them")),
        None => Ok(names),
    }
}

fn sabotage(value: &OsString) -> Result<Sabotage, String> {
    let value = text(value, "--sabotage")?;
    let found = SABOTAGES.iter().find(|(name, _)| *name == value);
    found.map(|&(_, sabotage)| sabotage).ok_or_else(|| {
        let names: Vec<&str> = SABOTAGES.iter().map(|&(name, _)| name).collect();
        format!("--sabotage {value}: wanted is one of {}", names.join(", "))
    })
}

fn numbers<const N: usize>(name: &str, value: &str) -> Result<[u64; N], String> {
    let numbers: Result<Vec<u64>, _> = value.split(',').map(str::parse).collect();
    numbers
        .ok()
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| format!("{name} {value}: wanted are {N} numbers"))
}

fn resume(value: &OsString) -> Result<Resume, String> {
    let [generation, operations, hash, elapsed_ms] =
        numbers("--resume", &text(value, "--resume")?)?;
    Ok(Resume { generation, operations, hash, elapsed_ms })
}

impl Resume {
    /// The value of `--resume`.
    pub(crate) fn argument(&self) -> String {
        format!("{},{},{},{}", self.generation, self.operations, self.hash, self.elapsed_ms)
    }
}

fn watchdog(value: &OsString) -> Result<Command, String> {
    let [pid, descriptor, hang_seconds] = numbers("--watchdog", &text(value, "--watchdog")?)?;
    Ok(Command::Watchdog { pid: pid as i32, descriptor: descriptor as i32, hang_seconds })
}

fn probe(value: &OsString) -> Result<Command, String> {
    let value = text(value, "--probe")?;
    let parts = value.split_once(',').and_then(|(kind, seed)| {
        Some(Command::Probe { kind: kind.to_owned(), seed: seed.parse().ok()? })
    });
    parts.ok_or_else(|| format!("--probe {value}: wanted are a kind and a seed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str]) -> Result<Command, String> {
        parse(words.iter().map(OsString::from), 99)
    }

    fn run(words: &[&str]) -> Options {
        match parse_words(words) {
            Ok(Command::Run(options)) => *options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
        let options = run(&[]);
        assert_eq!((options.threads, options.megabytes, options.seed), (4, 128, 99));
        assert_eq!(options.extent, Extent::Milliseconds(10_000));
        assert_eq!(options.sabotage, None);
    }

    #[test]
    fn values() {
        let options = run(&[
            "--seed",
            "7",
            "--threads",
            "2",
            "--megabytes",
            "16",
            "--operations",
            "5",
            "--only",
            "write-full,mlock",
            "--sabotage",
            "swap",
            "--close-descriptors",
        ]);
        assert_eq!(options.seed, 7);
        assert_eq!(options.threads, 2);
        assert_eq!(options.extent, Extent::Operations(5));
        assert_eq!(options.only, ["write-full", "mlock"]);
        assert_eq!(options.sabotage, Some(Sabotage::Swap));
        assert!(options.close_descriptors);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for words in [
            &["--seconds"][..],
            &["--seconds", "0"],
            &["--seconds", "x"],
            &["--threads", "65"],
            &["--megabytes", "15"],
            &["--incompressible", "101"],
            &["--only", "nothing-like-this"],
            &["--only", ""],
            &["--sabotage", "x"],
            &["--resume", "1,2"],
            &["--probe", "x"],
            &["--watchdog", "1"],
            &["--unknown"],
            &["--unknown", "1"],
            &["stray"],
        ] {
            assert!(parse_words(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn resume_is_replaced_not_added() {
        let words = ["--seed", "1", "--verbose", "--resume", "1,2,3,4", "--threads", "2"];
        let kept = without_resume(words.iter().map(OsString::from));
        assert_eq!(kept, ["--verbose", "--threads", "2"]);
    }

    #[test]
    fn resume_survives_its_argument() {
        let resume = Resume { generation: 1, operations: 2, hash: u64::MAX, elapsed_ms: 3 };
        assert_eq!(run(&["--resume", &resume.argument()]).resume, resume);
    }
}
