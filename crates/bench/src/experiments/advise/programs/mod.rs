//! The programs: real ones, each with data made from a seed.
//!
//! To add a program, add a line to [`ALL`]. Each should need 60 to 300 MiB with all memory, and run
//! for some seconds.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::content::random::{Random, mix};
use crate::harness::report::Skipped;
use crate::machine::host::Host;
use crate::machine::program::{Program, found_in_path};
use crate::workloads::{self, Settings};

/// What programs are made with.
#[derive(Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) host: &'a Host,
    pub(super) seed: u64,
    /// Factor on the size of the data, and so on memory and time.
    pub(super) scale: f64,
}

impl Making<'_> {
    /// A number of things that is `usual` at a scale of 1.
    fn count(&self, usual: u64) -> u64 {
        ((usual as f64 * self.scale) as u64).max(1)
    }

    fn folder(&self) -> &Path {
        &self.host.scratch
    }
}

/// One of the programs.
pub(super) struct Subject {
    pub(super) name: &'static str,
    /// One line for `--list`.
    pub(super) about: &'static str,
    /// Commands without which it is left out, and [`NUMPY`].
    needs: &'static [&'static str],
    make: fn(&Making<'_>) -> Result<Program>,
}

impl Subject {
    /// Writes its data, and says how it is started.
    ///
    /// # Errors
    /// When the data cannot be written, or a command fails that makes it.
    pub(super) fn make(&self, making: &Making<'_>) -> Result<Program> {
        (self.make)(making).with_context(|| format!("cannot prepare {}", self.name))
    }

    /// What it needs and is not here.
    pub(super) fn missing(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|need| match *need {
            NUMPY => workloads::python_with_numpy().is_err(),
            command => found_in_path(command).is_none(),
        })
    }
}

/// A need that is no command.
const NUMPY: &str = "python3 with numpy";

/// All programs, in the order of the results.
pub(super) const ALL: &[Subject] = &[
    Subject {
        name: "sort",
        about: "GNU sort of a text in memory",
        needs: &["sort"],
        make: |making| from_bench(making, "gnu-sort", 480 << 20, 1.0),
    },
    Subject {
        name: "python-json",
        about: "writes records as JSON and reads them back, several times",
        needs: &["python3"],
        make: |making| {
            let numbers = [making.count(80_000), 4];
            script(making, &python()?, "json_records.py", include_str!("json_records.py"), numbers)
        },
    },
    Subject {
        name: "python-dict",
        about: "looks words up in a dictionary, most of them in a tenth of it",
        needs: &["python3"],
        make: |making| {
            let numbers = [making.count(300_000), making.count(1_000_000)];
            script(making, &python()?, "dictionary.py", include_str!("dictionary.py"), numbers)
        },
    },
    Subject {
        name: "python-trees",
        about: "builds trees and drops them, beside one that stays",
        needs: &["python3"],
        make: |making| {
            let depth = 18.0 + making.scale.log2().min(0.0);
            let numbers = [depth.max(8.0) as u64, 2];
            script(making, &python()?, "trees.py", include_str!("trees.py"), numbers)
        },
    },
    Subject {
        name: "python-passes",
        about: "goes over all of its objects again and again",
        needs: &["python3"],
        make: |making| {
            let numbers = [making.count(60_000), 100];
            script(making, &python()?, "passes.py", include_str!("passes.py"), numbers)
        },
    },
    Subject {
        name: "numpy",
        about: "sorts numbers, goes over a matrix by rows and by columns",
        needs: &[NUMPY],
        make: |making| {
            let numbers = [(2500.0 * making.scale.sqrt()).max(64.0) as u64, 6];
            let python = workloads::python_with_numpy()?;
            script(making, &python, "arrays.py", include_str!("arrays.py"), numbers)
        },
    },
    Subject {
        name: "python-sqlite",
        about: "a database in memory, filled, changed and asked, by Python's sqlite3",
        needs: &["python3"],
        make: |making| {
            let numbers = [making.count(900_000), making.count(20_000)];
            script(making, &python()?, "database.py", include_str!("database.py"), numbers)
        },
    },
    Subject {
        name: "perl",
        about: "looks words up in a hash",
        needs: &["perl"],
        make: |making| {
            let numbers = [making.count(400_000), 4];
            script(making, Path::new("perl"), "hashes.pl", include_str!("hashes.pl"), numbers)
        },
    },
    Subject {
        name: "awk",
        about: "counts pairs of words and asks for them",
        needs: &["awk"],
        make: |making| {
            let numbers = [making.count(300_000), 2];
            let text = include_str!("words.awk");
            let mut program = script(making, Path::new("awk"), "words.awk", text, numbers)?;
            program.command.insert(1, "-f".into());
            Ok(program)
        },
    },
    Subject {
        name: "node",
        about: "objects in an array and in a map, gone over and looked up",
        needs: &["node"],
        make: |making| {
            let numbers = [making.count(300_000), 8];
            script(making, Path::new("node"), "objects.js", include_str!("objects.js"), numbers)
        },
    },
    Subject {
        name: "java",
        about: "orders of customers, made, looked up and replaced",
        needs: &["java", "javac"],
        make: java,
    },
    Subject {
        name: "gcc",
        about: "gcc -O2 of a generated file",
        needs: &["gcc"],
        make: |making| from_bench(making, "gcc", 40 << 20, 1.0),
    },
    Subject {
        name: "jpeg",
        about: "cjpeg -progressive of a generated picture",
        needs: &["cjpeg"],
        make: |making| from_bench(making, "jpeg", 192 << 20, 1.0),
    },
    Subject {
        name: "h264",
        about: "ffmpeg encodes a generated film by x264",
        needs: &["ffmpeg"],
        make: film,
    },
    Subject {
        name: "xz",
        about: "xz -6 of a generated text",
        needs: &["xz"],
        make: |making| compressor(making, &["xz", "-6", "-T1", "-c"], 6 << 20),
    },
    Subject {
        name: "zstd",
        about: "zstd -19 of a generated text",
        needs: &["zstd"],
        make: |making| compressor(making, &["zstd", "-19", "-T1", "-c", "-q"], 10 << 20),
    },
    Subject {
        name: "git",
        about: "git repack of a repository, all deltas looked for again",
        needs: &["git"],
        make: repository,
    },
    Subject {
        name: "sqlite3",
        about: "sqlite3 joins and sorts tables in memory",
        needs: &["sqlite3"],
        make: tables,
    },
    Subject {
        name: "redis",
        about: "redis-server filled, and read by redis-benchmark",
        needs: &["redis-server", "redis-benchmark"],
        make: |making| {
            let mut program = from_bench(making, "redis", 96 << 20, 0.6)?;
            // What it prints has times in it.
            let quiet = ["sh", "-c", "\"$@\" > /dev/null", "sh"];
            program.command.splice(0..0, quiet.map(Into::into));
            Ok(program)
        },
    },
];

/// Those with the given names, or all; and those left out, with the reason.
///
/// # Errors
/// When there is none of a name, or one that was asked for cannot run.
pub(super) fn select(names: &[String]) -> Result<(Vec<&'static Subject>, Vec<Skipped>)> {
    let unknown = names.iter().find(|name| !ALL.iter().any(|subject| subject.name == **name));
    if let Some(name) = unknown {
        bail!("there is no program '{name}' (ramfold bench advise --list names them)");
    }
    let (mut chosen, mut skipped) = (Vec::new(), Vec::new());
    for subject in ALL {
        let is_named = names.iter().any(|name| name == subject.name);
        if !names.is_empty() && !is_named {
            continue;
        }
        match subject.missing() {
            None => chosen.push(subject),
            Some(command) if is_named => {
                bail!("the program {} cannot run: there is no {command}", subject.name)
            }
            Some(command) => {
                let reason = format!("there is no {command}");
                skipped.push(Skipped { peer: subject.name.to_owned(), reason });
            }
        }
    }
    Ok((chosen, skipped))
}

/// Not `python3` of PATH itself, which may be a script that looks for it.
fn python() -> Result<PathBuf> {
    workloads::python()
}

/// A script of ours: it gets the seed, and numbers.
fn script(
    making: &Making<'_>,
    interpreter: &Path,
    name: &str,
    text: &str,
    numbers: [u64; 2],
) -> Result<Program> {
    let path = making.folder().join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let mut command: Vec<OsString> = vec![interpreter.into(), path.into()];
    command.push(making.seed.to_string().into());
    command.extend(numbers.iter().map(|number| OsString::from(number.to_string())));
    let environment = vec![
        ("PYTHONHASHSEED", "0".into()),
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
        ("PERL_HASH_SEED", "0".into()),
        ("OPENBLAS_NUM_THREADS", "1".into()),
        ("LC_ALL", "C".into()),
    ];
    Ok(Program { command, environment })
}

/// A workload of the bench, of this size and with this part of its accesses.
fn from_bench(making: &Making<'_>, name: &str, size_bytes: u64, scale: f64) -> Result<Program> {
    let settings = Settings {
        size_bytes: making.count(size_bytes).max(1 << 20),
        scale,
        seed: making.seed,
        thread_count: 1,
        latency: false,
        pages: None,
        demo: None,
    };
    let workloads = workloads::select(&[name.to_owned()])?;
    let workload = workloads.first().with_context(|| format!("no workload {name}"))?;
    Ok(workload.prepare(making.host, &settings)?.program)
}

fn java(making: &Making<'_>) -> Result<Program> {
    let numbers = [making.count(600_000), 10];
    let text = include_str!("Orders.java");
    let mut program = script(making, Path::new("java"), "Orders.java", text, numbers)?;
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(making.folder()).arg(&program.command[1]);
    let compiled = javac.status().context("cannot start javac")?;
    ensure!(compiled.success(), "javac ended with {compiled}");
    // One collector thread, and a heap that the program comes to fill.
    let heap = format!("-Xmx{}m", making.count(160).max(32));
    let mut command: Vec<OsString> = vec!["java".into(), "-XX:+UseSerialGC".into(), heap.into()];
    command.extend(["-cp".into(), making.folder().into(), "Orders".into()]);
    program.command.splice(0..2, command);
    Ok(program)
}

fn film(making: &Making<'_>) -> Result<Program> {
    let seconds = 2.0 * making.scale.max(0.1);
    let film = format!("testsrc2=size=1280x720:rate=25:duration={seconds}");
    let command = ["ffmpeg", "-v", "error", "-nostdin", "-filter_threads", "1", "-f", "lavfi"];
    let command = command.into_iter().chain(["-i", &film, "-threads", "1", "-flags", "+bitexact"]);
    let options = ["-c:v", "libx264", "-preset", "medium", "-f", "h264", "-"];
    let command = command.chain(options).map(Into::into).collect();
    Ok(Program { command, environment: Vec::new() })
}

/// A compressor of a text.
fn compressor(making: &Making<'_>, command: &[&str], text_bytes: u64) -> Result<Program> {
    let text = making.folder().join("log");
    workloads::write_text(&text, making.count(text_bytes), making.seed)?;
    let mut command: Vec<OsString> = command.iter().map(Into::into).collect();
    command.push(text.into());
    Ok(Program { command, environment: Vec::new() })
}

/// A repository of files that change from commit to commit.
fn repository(making: &Making<'_>) -> Result<Program> {
    let folder = making.folder().join("repository");
    let stream = making.folder().join("stream");
    write_commits(&stream, making).with_context(|| format!("cannot write {}", stream.display()))?;
    let git = |arguments: &[&str]| -> Command {
        let mut command = Command::new("git");
        command.args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null").stdout(Stdio::null());
        command
    };
    let made = git(&["init", "-q", "--bare"]).arg(&folder).status();
    ensure!(made.context("cannot start git")?.success(), "git init failed");
    let imported = git(&["--git-dir"])
        .arg(&folder)
        .args(["fast-import", "--quiet"])
        .stdin(File::open(&stream).context("cannot read the commits")?)
        .status();
    ensure!(imported.context("cannot start git")?.success(), "git fast-import failed");
    let mut command: Vec<OsString> = vec!["git".into(), "--git-dir".into(), folder.into()];
    command.extend(["-c", "pack.threads=1"].map(OsString::from));
    command.extend(["repack", "-a", "-d", "-f", "-q", "--window=60"].map(OsString::from));
    Ok(Program { command, environment: vec![("GIT_CONFIG_GLOBAL", "/dev/null".into())] })
}

fn write_commits(path: &Path, making: &Making<'_>) -> Result<()> {
    const FILES: usize = 40;
    const LINES: usize = 1500;
    let mut random = Random::new(mix(making.seed));
    let mut writer = BufWriter::new(File::create(path)?);
    let line = |random: &mut Random| format!("{:x} {}\n", random.word(), random.below(1000));
    let mut files: Vec<Vec<String>> =
        (0..FILES).map(|_| (0..LINES).map(|_| line(&mut random)).collect()).collect();
    for commit in 0..making.count(400) {
        writeln!(writer, "commit refs/heads/main")?;
        writeln!(writer, "committer A <a@example.org> {} +0000", 1_700_000_000 + commit)?;
        writeln!(writer, "data 6\nchange")?;
        for _ in 0..4 {
            let nth = random.below(FILES);
            for _ in 0..20 {
                let at = random.below(LINES);
                files[nth][at] = line(&mut random);
            }
            let text = files[nth].concat();
            writeln!(writer, "M 100644 inline file-{nth}\ndata {}\n{text}", text.len())?;
        }
    }
    writer.flush()?;
    Ok(())
}

/// Tables that are filled, joined and sorted.
fn tables(making: &Making<'_>) -> Result<Program> {
    let rows = making.count(400_000);
    let path = making.folder().join("tables.sql");
    let text = format!(
        "create table sale (id integer primary key, customer int, amount int, note text);\n\
         with recursive n(i, x) as (select 1, {seed} union all \
         select i + 1, (x * 16807) % 2147483647 from n where i < {rows})\n\
         insert into sale select i, x % {customers}, x % 1000, 'sale ' || x || ' of a day' from n;\n\
         create table customer as select customer, sum(amount) as total, count(*) as sales \
         from sale group by customer;\n\
         create index by_customer on sale (customer, amount);\n\
         select count(*), sum(length(note)) from sale join customer using (customer) \
         where amount > total / sales;\n\
         update sale set amount = amount + 1 where customer % 7 = 3;\n\
         select sum(amount), max(note) from (select * from sale order by note limit 200000);\n\
         select customer, sum(amount) as s from sale group by customer order by s desc limit 5;\n",
        seed = making.seed % 1_000_000 + 1,
        customers = rows / 8 + 1,
    );
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    let read = format!(".read {}", path.display());
    // What it would sort in files is in memory too.
    let options = ["sqlite3", "-batch", ":memory:", "pragma temp_store = memory;", &read];
    let command = options.map(OsString::from).to_vec();
    Ok(Program { command, environment: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_enough_programs_and_each_has_a_name_of_its_own() {
        let mut names: Vec<&str> = ALL.iter().map(|subject| subject.name).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == ALL.len() && names.len() >= 12);
        let unheard = select(&["unheard-of".to_owned()]).err().unwrap().to_string();
        assert!(unheard.contains("no program 'unheard-of'"), "{unheard}");
    }
}
