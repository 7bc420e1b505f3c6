//! The program under `ramfold run`.

mod statistics;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use ramfold_codec::Choice;

pub(crate) use statistics::Statistics;

use super::{Account, Active, Budget, Peer};
use crate::harness::measure::Outcome;
use crate::machine::cgroup::Swapping;
use crate::machine::host::Host;
use crate::machine::program::{Program, found_in_path, is_executable};

const RAMFOLD: &str = "ramfold";
/// Exit status of `ramfold run` for its own failures.
const OWN_FAILURE: i32 = 125;

/// The peer, with the place of the binary if that was given, and an option of `ramfold run`.
#[derive(Clone, Debug)]
pub(crate) struct Ramfold {
    given: Option<PathBuf>,
    setting: Option<Setting>,
    name: String,
}

/// How `ramfold run` is to differ from its defaults.
#[derive(Clone, Debug, PartialEq)]
enum Setting {
    /// An option and its value.
    Option(&'static str, String),
    /// A spill file in the scratch folder, of a size if one is given.
    Spill(Option<String>),
}

impl FromStr for Setting {
    type Err = anyhow::Error;

    /// What a name like `ramfold:lz4`, `ramfold:pool=30%` or `ramfold:spill` ends in.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once('=') {
            Some(("pool", size)) => Ok(Setting::Option("--pool", size.to_owned())),
            Some(("reserve", size)) => Ok(Setting::Option("--reserve", size.to_owned())),
            Some(("recompress", after)) => {
                Ok(Setting::Option("--recompress-after", after.to_owned()))
            }
            Some(("spill", size)) => Ok(Setting::Spill(Some(size.to_owned()))),
            Some((other, _)) => bail!(
                "no setting '{other}' in '{RAMFOLD}:{text}' (there are pool, reserve, recompress \
                 and spill)"
            ),
            None if text == "spill" => Ok(Setting::Spill(None)),
            None => text
                .parse()
                .map(|codec: Choice| Setting::Option("--codec", codec.name().to_owned()))
                .with_context(|| {
                    let names: Vec<_> = Choice::names().collect();
                    format!(
                        "no codec '{text}' in '{RAMFOLD}:{text}' (there are {})",
                        names.join(", ")
                    )
                }),
        }
    }
}

impl Ramfold {
    /// As it is.
    pub(crate) fn new(given: Option<PathBuf>) -> Self {
        Self { given, setting: None, name: RAMFOLD.to_owned() }
    }

    /// The binary: as given, beside this one, or in PATH.
    pub(crate) fn find(&self, own_program: &Path) -> Result<PathBuf> {
        if let Some(given) = &self.given {
            if !is_executable(given) {
                bail!("{} is no executable file (--ramfold)", given.display());
            }
            return std::path::absolute(given)
                .with_context(|| format!("cannot resolve {}", given.display()));
        }
        let beside = own_program.with_file_name(RAMFOLD);
        if is_executable(&beside) {
            return Ok(beside);
        }
        found_in_path(RAMFOLD).with_context(|| {
            format!(
                "the program ramfold is neither at {} nor in PATH (build it, or name it with \
                 --ramfold PATH, or choose other peers with --peer)",
                beside.display()
            )
        })
    }
}

impl Peer for Ramfold {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> &'static str {
        "ramfold run --memory TOTAL, in a cgroup limited to TOTAL + 10 % without swap; \
         ramfold:CODEC adds --codec CODEC, ramfold:pool=SIZE --pool SIZE, \
         ramfold:reserve=SIZE --reserve SIZE, ramfold:recompress=TIME --recompress-after TIME, \
         ramfold:spill[=SIZE] --spill"
    }

    fn needs_root(&self) -> bool {
        false
    }

    /// It is what the others are compared with.
    fn is_indispensable(&self) -> bool {
        true
    }

    fn variant(&self, setting: &str) -> Option<Result<Box<dyn Peer>>> {
        let name = format!("{RAMFOLD}:{setting}");
        let given = self.given.clone();
        Some(
            setting.parse().map(|setting| {
                Box::new(Self { given, setting: Some(setting), name }) as Box<dyn Peer>
            }),
        )
    }

    fn missing(&self, host: &Host) -> Option<String> {
        self.find(&host.own_program).err().map(|error| format!("{error:#}"))
    }

    fn budget(&self, _host: &Host) -> Budget {
        Budget::Cap
    }

    fn swapping(&self) -> Swapping {
        Swapping::Forbidden
    }

    fn set_up(&self, host: &Host, _need_bytes: u64, limit_bytes: u64) -> Result<Box<dyn Active>> {
        let statistics = host.scratch.join("ramfold-stats.json");
        match fs::remove_file(&statistics) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("cannot remove {}", statistics.display()));
            }
            _ => {}
        }
        let binary = self.find(&host.own_program)?;
        let option = self.setting.as_ref().map(|setting| match setting {
            Setting::Option(name, value) => [name.into(), value.into()],
            Setting::Spill(size) => {
                let mut place = host.scratch.clone().into_os_string();
                size.iter().for_each(|size| place.push(format!(":{size}")));
                ["--spill".into(), place]
            }
        });
        Ok(Box::new(ActiveRamfold { binary, limit_bytes, option, statistics }))
    }
}

struct ActiveRamfold {
    binary: PathBuf,
    limit_bytes: u64,
    option: Option<[OsString; 2]>,
    statistics: PathBuf,
}

impl Active for ActiveRamfold {
    fn wrap(&self, program: &Program) -> Program {
        let kilobytes = format!("{}K", self.limit_bytes / 1024);
        let mut command = vec![self.binary.clone().into(), "run".into()];
        command.extend(["--memory".into(), kilobytes.into()]);
        command.extend(["--stats".into(), self.statistics.clone().into()]);
        command.extend(self.option.iter().flatten().cloned());
        command.push("--".into());
        command.extend(program.command.iter().cloned());
        Program { command, environment: program.environment.clone() }
    }

    fn account(&self, outcome: &Outcome) -> Result<Account> {
        if outcome.status.code() == Some(OWN_FAILURE) {
            bail!("{} run failed: {}", self.binary.display(), outcome.errors.trim());
        }
        let text = match fs::read_to_string(&self.statistics) {
            // The program's own failure says more than the missing file.
            Err(_) if !outcome.status.success() => return Ok(Account::default()),
            read => read.with_context(|| {
                let said = match outcome.errors.trim() {
                    "" => String::new(),
                    said => format!(" (it said: {said})"),
                };
                format!("{} run wrote no statistics{said}", self.binary.display())
            })?,
        };
        let statistics: Statistics = serde_json::from_str(&text)
            .with_context(|| format!("{} run wrote bad statistics", self.binary.display()))?;
        Ok(Account {
            pool_bytes_peak: statistics.pool_bytes_max.unwrap_or(0),
            swap_in_pages: statistics.pages_swapped_in,
            swap_out_pages: statistics.pages_swapped_out,
            codec: statistics.codec.clone(),
            statistics: Some(statistics),
        })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_binary_is_named() {
        let given = Ramfold::new(Some(PathBuf::from("/nonexistent/ramfold")));
        let error = given.find(Path::new("/nonexistent/ramfold-bench")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/ramfold"), "{error}");
    }

    #[test]
    fn a_name_may_end_in_an_option() {
        let ramfold = Ramfold::new(None);
        assert_eq!(ramfold.variant("wkv").unwrap().unwrap().name(), "ramfold:wkv");
        let option = |name, value: &str| Setting::Option(name, value.to_owned());
        let parsed = |text: &str| text.parse::<Setting>().map_err(|error| error.to_string());
        assert_eq!(parsed("wkv"), Ok(option("--codec", "wkv")));
        assert_eq!(parsed("pool=30%"), Ok(option("--pool", "30%")));
        assert_eq!(parsed("spill=2G"), Ok(Setting::Spill(Some("2G".to_owned()))));
        assert_eq!(parsed("spill"), Ok(Setting::Spill(None)));
        let error = parsed("pol=30%").unwrap_err();
        assert!(error.contains("'pol' in 'ramfold:pol=30%' (there are pool, reserve"), "{error}");
        let error = parsed("best").unwrap_err();
        assert!(error.contains("'ramfold:best'") && error.contains("wkv"), "{error}");
    }
}
