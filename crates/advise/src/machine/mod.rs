//! What things cost on this machine: measured once, and kept.
//!
//! A small workload runs under the agent, with a cap and without in turns, and what it takes longer
//! by is what its faults cost ([`workload`], `calibrate`). Codecs and a disk are measured beside
//! (`codecs`, `disk`). That takes a few seconds, so it is kept in the user's cache folder
//! (`kept`) for as long as the kernel, the number of processors and the version of ramfold are the
//! same.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::thread;

use serde::{Deserialize, Serialize};

mod calibrate;
mod codecs;
mod disk;
mod kept;
pub mod workload;

pub use calibrate::{Error, Starter};
pub use kept::usual_file;
use workload::Kind;

use crate::contents::CodecTimes;
use crate::measure::kernel_release;
use crate::progress::Progress;

/// Times that each kind of fault is measured with a cap and without.
const TURNS: usize = 3;

/// A figure that was measured several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The middle.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The greatest.
    pub high: f64,
}

impl Spread {
    /// Of what was measured, at least once.
    pub fn of(mut measured: Vec<f64>) -> Spread {
        measured.sort_by(f64::total_cmp);
        let at = |nth: usize| measured.get(nth).copied().unwrap_or_default();
        let last = measured.len().saturating_sub(1);
        // Of an even number the mean of both in the middle.
        let median = (at(last / 2) + at(measured.len() / 2)) / 2.0;
        Spread { median, low: at(0), high: at(last) }
    }

    fn is_sound(&self) -> bool {
        let numbers = [self.low, self.median, self.high];
        numbers.iter().all(|number| number.is_finite() && *number > 0.0) && numbers.is_sorted()
    }
}

/// What a page costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageCost {
    /// Seconds that the program takes longer.
    pub wall_s: Spread,
    /// Seconds of processors, the agent's and the program's together.
    pub processor_s: Spread,
}

/// How long a disk takes for a page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disk {
    /// A folder on it.
    pub folder: PathBuf,
    /// Seconds for a read of 4 KiB, one at a time.
    pub read_s: Spread,
    /// Seconds for a page of 4 KiB among many that are written together.
    pub write_s: f64,
}

/// What things cost on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Whether it was measured here: otherwise these are figures of another machine.
    pub is_measured: bool,
    /// A fault by itself, under a cap: the page comes back and another is compressed for it.
    pub fault: PageCost,
    /// A page of a stream, read ahead or not; another is compressed for it.
    pub stream: PageCost,
    /// A page that the program grows by above the cap: another is compressed for it.
    pub growth: PageCost,
    /// By the name of the codec.
    pub codecs: BTreeMap<String, CodecTimes>,
    /// A disk, where one could be read past the page cache.
    pub disk: Option<Disk>,
}

impl Costs {
    /// Figures of a usual machine (a server of 2023 with two processors), for where nothing can be
    /// measured.
    pub fn usual() -> Costs {
        let cost = |wall_us: f64, processor_us: f64| {
            let spread = |us: f64| Spread { median: us / 1e6, low: us / 2e6, high: us / 5e5 };
            PageCost { wall_s: spread(wall_us), processor_s: spread(processor_us) }
        };
        Costs {
            is_measured: false,
            fault: cost(14.0, 16.0),
            stream: cost(5.0, 7.0),
            growth: cost(4.0, 5.0),
            codecs: codecs::measure(),
            disk: None,
        }
    }

    fn are_sound(&self) -> bool {
        let spreads = [self.fault, self.stream, self.growth];
        let mut spreads: Vec<Spread> =
            spreads.iter().flat_map(|cost| [cost.wall_s, cost.processor_s]).collect();
        spreads.extend(self.disk.as_ref().map(|disk| disk.read_s));
        let are_times = |times: &CodecTimes| {
            [times.compress_ns, times.decompress_ns].iter().all(|ns| ns.is_finite() && *ns > 0.0)
        };
        spreads.iter().all(Spread::is_sound) && self.codecs.values().all(are_times)
    }
}

/// What costs are kept by: they are measured again where one of these is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The kernel's release.
    pub kernel: String,
    /// Processors that this process may use, so a container's.
    pub processors: usize,
    /// Of ramfold.
    pub version: String,
}

impl Key {
    /// Here and now.
    pub fn of_this_machine() -> Key {
        Key {
            kernel: kernel_release().unwrap_or_default(),
            processors: thread::available_parallelism().map_or(1, usize::from),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// How costs are come by.
pub struct Request<'a> {
    /// What starts [`workload::run`] in a process of its own.
    pub starter: Starter<'a>,
    /// The file that they are kept in.
    pub file: Option<&'a Path>,
    /// Whether they are measured again, even where kept ones are there.
    pub again: bool,
    /// A folder on the disk that swap or a spill file would be on.
    pub disk_folder: &'a Path,
    /// Is told how far it is.
    pub progress: &'a Progress,
}

/// What things cost here: kept, or measured now and kept from then on. Where they cannot be kept,
/// they are measured each time.
///
/// # Errors
/// When the workload cannot run under the agent.
pub fn costs(request: Request<'_>) -> Result<Costs, Error> {
    let key = Key::of_this_machine();
    let kept = request.file.filter(|_| !request.again).and_then(|file| kept::load(file, &key));
    let is_new = kept.is_none();
    let mut costs = match kept {
        Some(costs) => costs,
        None => measure(request.starter, request.progress)?,
    };
    let is_other = costs.disk.as_ref().is_none_or(|disk| disk.folder != request.disk_folder);
    if is_other {
        // What cannot be read is in RAM or on another machine, and nothing is said of it.
        costs.disk = disk::measure(request.disk_folder).ok();
    }
    if let Some(file) = request.file.filter(|_| is_new || is_other) {
        // It takes longer the next time, no more.
        let _ = kept::save(file, &key, &costs);
    }
    Ok(costs)
}

/// What is kept, for what no times are predicted of; else figures of a usual machine.
pub fn kept_or_usual(file: Option<&Path>) -> Costs {
    let kept = file.and_then(|file| kept::load(file, &Key::of_this_machine()));
    kept.unwrap_or_else(Costs::usual)
}

fn measure(starter: Starter<'_>, progress: &Progress) -> Result<Costs, Error> {
    progress.set_all((Kind::ALL.len() * TURNS * 2) as u64);
    let of = |kind| calibrate::measure(starter, kind, TURNS, progress);
    let (fault, stream, growth) = (of(Kind::Faults)?, of(Kind::Stream)?, of(Kind::Growth)?);
    let codecs = codecs::measure();
    Ok(Costs { is_measured: true, fault, stream, growth, codecs, disk: None })
}

/// A folder of ramfold's by the XDG base directory specification: below the folder that a variable
/// names, or below one in the home.
pub(crate) fn folder_of(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(in_home)));
    base.map(|base| base.join("ramfold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_middle() {
        let spread = |measured: &[f64]| {
            let Spread { median, low, high } = Spread::of(measured.to_vec());
            (low, median, high)
        };
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(spread(&[4.0, 1.0]), (1.0, 2.5, 4.0));
        assert_eq!(spread(&[5.0]), (5.0, 5.0, 5.0));
    }

    #[test]
    fn usual_costs_are_sound() {
        assert!(Costs::usual().are_sound());
    }

    #[test]
    fn what_cannot_start_is_an_error() {
        let starter = Starter { program: Path::new("/no/such/program"), arguments: &[] };
        let request = Request {
            starter,
            file: None,
            again: false,
            disk_folder: Path::new("/"),
            progress: &Progress::default(),
        };
        let error = costs(request).unwrap_err();
        assert!(matches!(error, Error::Start(_)), "{error}");
    }
}
