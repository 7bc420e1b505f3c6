//! What was measured of memory: of a program that ran, of a process or a group of them, of a dump
//! or of files. Whatever measures makes one of these, and advice needs nothing else but the costs
//! of the machine.

mod check;
pub mod file;
mod rounds;

use ramfold_model::rounds::Round;
use ramfold_trace::recorded::Event;
use serde::{Deserialize, Serialize};

/// Pages that are sampled together: neighbours are alike, and streams go through them.
pub use ramfold_model::BLOCK_PAGES;

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A program from its start on: name and arguments.
    Program(Vec<String>),
    /// A running process.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
        /// The program and its arguments, as far as the process shows them.
        #[serde(default)]
        arguments: Vec<String>,
    },
    /// A control group, by its path.
    Group(String),
    /// A file of pages.
    Pages(String),
    /// A directory of files.
    Files(String),
}

/// The machine on which it was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processors that the program could use.
    pub processors: u32,
    /// Bytes of RAM, or the limit of the control group.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

/// A program that ran to its end while it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WholeRun {
    /// How long it took, observation included. Seconds.
    pub wall_s: f64,
    /// Processor time of the program, and of what it started. Seconds.
    pub processor_s: f64,
    /// Of the wall time: what observation took. Seconds.
    pub observation_s: f64,
}

/// How much memory there was at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Size {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Anonymous memory of all processes, or bytes of files.
    pub bytes: u64,
}

/// A window of time and the pages touched in it, all processes together: for what is not traced.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// Pages touched.
    pub pages: f64,
}

/// Neighbouring pages whose content was compressed to see how small it becomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// Its first page: address by 4,096; of files, any number.
    pub first_page: u64,
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Of each page that was there, in the order of [`Contents::codecs`]: bytes that the store
    /// charges for its object. 0: the page is one repeated word, which costs no object. 4,096: it
    /// does not compress by a quarter, and stays as it is.
    pub charged_bytes: Vec<Vec<u16>>,
}

/// How small pages become.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contents {
    /// Names of codecs, as `--codec` takes them. `auto` is what it compresses with at first, and
    /// `auto-dense` what it makes of that when the page stays out.
    pub codecs: Vec<String>,
    /// The sample.
    pub blocks: Vec<Block>,
}

/// A run of the program under a cap, after it was observed. One with the need or more is a run with
/// all memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The cap.
    pub memory_bytes: u64,
    /// The codec, by its name.
    pub codec: String,
    /// How long it took. Seconds.
    pub wall_s: f64,
    /// Whether it was ended then, and would have taken longer: all figures are what there was by
    /// then.
    pub at_least: bool,
    /// Processor time of the program, of what it started, and of agents. Seconds.
    pub processor_s: f64,
    /// The greatest size of the pool.
    pub pool_bytes: u64,
    /// Faults on pages that had left.
    pub faults: u64,
    /// Processors that others took meanwhile, where none was left.
    #[serde(default)]
    pub others: Option<f64>,
    /// Why it does not count, where it does not.
    pub failed: Option<String>,
}

/// All that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// What of.
    pub subject: Subject,
    /// Where.
    pub machine: Machine,
    /// When it was begun: seconds since 1970.
    pub began_s: u64,
    /// How long it took. 0 for what does not run.
    pub seconds: f64,
    /// Of a program that ran to its end.
    pub run: Option<WholeRun>,
    /// Greatest size that was seen.
    pub need_bytes: u64,
    /// Sizes in the order of time.
    pub sizes: Vec<Size>,
    /// How small pages become.
    pub contents: Contents,
    /// Pages touched in windows of time.
    pub windows: Vec<Window>,
    /// Looks at all pages while some of them were watched, in the order of time. Older records have
    /// none.
    #[serde(default, with = "rounds", skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<Round>,
    /// One page in this many is in the trace: blocks of [`BLOCK_PAGES`], one of each group of so
    /// many blocks.
    pub one_in: u32,
    /// Runs of the program in this order, not observed. Older records have none.
    #[serde(default)]
    pub trials: Vec<Trial>,
    /// What is not in here and should be known of, each a sentence.
    pub not_seen: Vec<String>,
    /// The trace of the sampled pages, in the order of time; empty where there is none.
    #[serde(skip)]
    pub events: Vec<Event>,
}
