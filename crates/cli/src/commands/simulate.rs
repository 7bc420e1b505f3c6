//! `ramfold simulate`: replacement policies over a trace of page accesses.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueEnum;
use ramfold_advise::simulation::{self, Outcome, PolicyName, Report, Request};
use ramfold_plot::Panel;
use ramfold_trace::Format;

use crate::progress_line;
use crate::size::Size;
use crate::table::{align_figures, table};

const PAGE_SIZE: u64 = ramfold_trace::PAGE_SIZE;
const MIB: f64 = (1 << 20) as f64;

/// Run replacement policies over a trace of page accesses, at several sizes of memory.
///
/// The policies of `ramfold run` and `ramfold mount` are the code that those run. The trace is read
/// twice. A trace of more than a million pages is simulated in miniature: over a sample of its
/// pages, with memory in proportion.
///
/// Formats: ramfold's own (--save), libCacheSim's oracleGeneral, CSV (time, page[, size in bytes]),
/// and the output of valgrind's lackey (--trace-mem=yes). Any of them may be compressed with zstd.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  ramfold simulate accesses.csv
  ramfold simulate --policy lru --policy ramfold-run --ratio 3 --plot curve.svg ls.lackey
  valgrind --tool=lackey --trace-mem=yes ls 2> ls.lackey
  ramfold simulate --one-in 16 --save large.pages large.oracleGeneral.zst")]
pub(crate) struct Arguments {
    /// The trace
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The trace's format, where its first bytes or its name do not tell it
    #[arg(long, value_enum)]
    format: Option<FormatArgument>,
    /// A policy; may be given several times [default: all]
    #[arg(long = "policy", value_enum, value_name = "POLICY")]
    policies: Vec<PolicyArgument>,
    /// A size of memory, or a part of the trace's pages (40%); may be given several times
    /// [default: 5% to 100% in steps of 5%]
    #[arg(long, value_name = "SIZE")]
    memory: Vec<Size>,
    /// Compression ratio of pages that have left: their objects take memory too. Without it the
    /// policies are compared by resident pages alone
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    ratio: Option<f64>,
    /// Simulate one page in this many, with memory in proportion
    /// [default: 1 up to a million pages]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    one_in: Option<u64>,
    /// Write the trace in ramfold's own format, which takes about three bytes for an access; with
    /// --one-in only those pages (made anew, mode 0600)
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the curves as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Print for machines
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatArgument {
    Ramfold,
    OracleGeneral,
    Csv,
    Lackey,
}

#[derive(Clone, Copy, ValueEnum)]
enum PolicyArgument {
    /// Evicts the least recently used page
    Lru,
    /// S3-FIFO, a modern policy
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// The policy of `ramfold run`
    RamfoldRun,
    /// The policy of `ramfold mount`
    RamfoldMount,
}

impl PolicyArgument {
    fn name(self) -> PolicyName {
        match self {
            PolicyArgument::Lru => PolicyName::Lru,
            PolicyArgument::S3Fifo => PolicyName::S3Fifo,
            PolicyArgument::RamfoldRun => PolicyName::RamfoldRun,
            PolicyArgument::RamfoldMount => PolicyName::RamfoldMount,
        }
    }
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if ratio.is_finite() && ratio > 1.0 {
        Ok(ratio)
    } else {
        Err("a page is larger than its object: a ratio is above 1".to_owned())
    }
}

/// Simulates and prints.
///
/// # Errors
/// When the trace cannot be read, a size cannot be simulated, or the plot cannot be written.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let named = arguments.trace.file_name().and_then(|name| name.to_str());
    let format = match arguments.format {
        Some(FormatArgument::Ramfold) => Some(Format::Recorded),
        Some(FormatArgument::OracleGeneral) => Some(Format::OracleGeneral),
        Some(FormatArgument::Csv) => Some(Format::Csv),
        Some(FormatArgument::Lackey) => Some(Format::Lackey),
        None => named.and_then(Format::of_name),
    };
    let request = Request {
        path: arguments.trace.clone(),
        format,
        policies: match &arguments.policies[..] {
            [] => PolicyName::ALL.to_vec(),
            some => some.iter().map(|policy| policy.name()).collect(),
        },
        memory: arguments.memory.clone(),
        object_bytes: arguments.ratio.map_or(0, |ratio| (PAGE_SIZE as f64 / ratio) as u64),
        one_in: arguments.one_in,
        save: arguments.save.clone(),
    };
    let report = progress_line::shown("simulated", |progress| simulation::run(&request, progress))?;
    if let Some(path) = &arguments.plot {
        fs::write(path, plot(&report))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print(&report);
    }
    Ok(())
}

fn print(report: &Report) {
    let Report { format, accesses, pages, one_in, recorded_one_in, object_bytes, rows } = report;
    println!(
        "{format} trace: {accesses} accesses to {pages} pages ({:.1} MiB)",
        (pages * PAGE_SIZE) as f64 / MIB
    );
    if *recorded_one_in > 1 {
        println!("one page in {recorded_one_in} is in the trace: figures are scaled up");
    }
    if *one_in > 1 {
        println!("simulated in miniature: one page in {one_in}");
    }
    if *object_bytes > 0 {
        println!("pages that have left take {object_bytes} bytes of the memory each");
    }
    println!("miss ratio: accesses that find no page in memory, first ones included");
    if rows.iter().flat_map(|row| &row.policies).any(|outcome| reads_ahead(outcome.policy)) {
        println!("with ahead: pages that come, those that are read ahead too, for each access");
    }
    println!();
    let names = rows.first().map_or(&[][..], |row| &row.policies[..]);
    let mut headings = vec!["memory MiB".to_owned(), "of pages".to_owned()];
    for outcome in names {
        headings.push(outcome.policy.name().to_owned());
        if reads_ahead(outcome.policy) {
            headings.push("with ahead".to_owned());
        }
    }
    headings.push("lru by sample".to_owned());
    let mut table = table(headings);
    for row in rows {
        let part = row.memory_bytes as f64 / (pages * PAGE_SIZE) as f64;
        let mut cells =
            vec![format!("{:.1}", row.memory_bytes as f64 / MIB), format!("{:.0} %", part * 100.0)];
        for outcome in &row.policies {
            cells.push(percent(outcome.miss_ratio));
            if reads_ahead(outcome.policy) {
                let came = outcome.first_accesses + outcome.pages_back;
                cells.push(percent(came as f64 / *accesses as f64));
            }
        }
        let [value, low, high] = row.lru_curve;
        cells.push(format!("{} ({:.1}-{:.1})", percent(value), low * 100.0, high * 100.0));
        table.add_row(cells);
    }
    align_figures(&mut table, 0);
    println!("{table}");
}

/// Whether pages come that nobody asked for: they are no misses, but cost nearly as much.
fn reads_ahead(policy: PolicyName) -> bool {
    policy == PolicyName::RamfoldRun
}

/// A curve for each policy.
fn plot(report: &Report) -> String {
    let points = report.rows.iter().flat_map(|row| {
        let pages = row.memory_bytes as f64 / MIB;
        let point = move |outcome: &Outcome| {
            (outcome.policy.name().to_owned(), (pages, outcome.miss_ratio * 100.0))
        };
        row.policies.iter().map(point)
    });
    ramfold_plot::figure(vec![Panel {
        title: "Accesses that find no page in memory".to_owned(),
        x: "memory, MiB",
        y: "miss ratio, %",
        logarithmic: false,
        curves: ramfold_plot::curves(points),
    }])
}

fn percent(part: f64) -> String {
    format!("{:.2} %", part * 100.0)
}
