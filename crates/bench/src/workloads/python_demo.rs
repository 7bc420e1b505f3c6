//! The Python program of the demo, or one of the same kind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{Prepared, Settings, Workload};
use crate::machine::host::Host;
use crate::machine::program::Program;

const EMBEDDED: &str = include_str!("python_demo.py");
/// The demo of the repository.
const DEMO: &str = "demo/demo.py";

pub(super) struct PythonDemo;

impl Workload for PythonDemo {
    fn name(&self) -> &'static str {
        "python-demo"
    }

    fn about(&self) -> &'static str {
        "the demo (demo/demo.py; needs numpy), or else an embedded program of --size bytes"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        let python = interpreter()?;
        let given = match &settings.demo {
            Some(path) if !path.is_file() => bail!("{} is no script", path.display()),
            Some(path) => Some(path.clone()),
            // The repository's demo cannot do without numpy.
            None if python.has_numpy => repository_demo(&host.own_program),
            None => None,
        };
        let script = match given {
            Some(path) => path,
            None => {
                let path = host.scratch.join("demo.py");
                fs::write(&path, EMBEDDED)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                path
            }
        };
        let python = python.path;
        let command = vec![python.into(), script.into()];
        let environment = vec![
            // The order of sets and dicts of strings must be the same in each run.
            ("PYTHONHASHSEED", "0".into()),
            ("PYTHONDONTWRITEBYTECODE", "1".into()),
            ("RAMFOLD_DEMO_BYTES", settings.size_bytes.to_string().into()),
        ];
        Ok(Prepared::whole(Program { command, environment }))
    }
}

struct Interpreter {
    path: PathBuf,
    has_numpy: bool,
}

/// The first python3 that has numpy (a Debian package of it serves only Debian's
/// own interpreter), or else the first that works.
fn interpreter() -> Result<Interpreter> {
    let found: Vec<Interpreter> =
        ["python3", "/usr/bin/python3"].into_iter().filter_map(probe).collect();
    let best = found.iter().position(|interpreter| interpreter.has_numpy).unwrap_or(0);
    found.into_iter().nth(best).context("python-demo needs python3, and none works here")
}

/// The interpreter that `python-demo` would run.
pub(crate) fn python() -> Result<PathBuf> {
    Ok(interpreter()?.path)
}

/// The same, which must have numpy.
pub(crate) fn python_with_numpy() -> Result<PathBuf> {
    let Interpreter { path, has_numpy } = interpreter()?;
    ensure!(has_numpy, "{} has no numpy (apt-get install python3-numpy)", path.display());
    Ok(path)
}

/// The interpreter itself: `python3` in PATH may be a script that looks for it.
fn probe(command: &str) -> Option<Interpreter> {
    const QUESTION: &str = "import sys, importlib.util as u\n\
                            print(sys.executable)\n\
                            print(u.find_spec('numpy') is not None)";
    let output = Command::new(command).args(["-c", QUESTION]).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (path, has_numpy) = text.trim_end().split_once('\n')?;
    let path = PathBuf::from(path);
    (output.status.success() && path.is_absolute())
        .then(|| Interpreter { path, has_numpy: has_numpy == "True" })
}

/// The demo's script in the working directory or beside the build folder that
/// this binary lies in.
fn repository_demo(own_program: &Path) -> Option<PathBuf> {
    let working = std::env::current_dir().ok();
    let folders = working.iter().flat_map(|path| path.ancestors()).chain(own_program.ancestors());
    folders
        .filter(|folder| folder.join("Cargo.toml").is_file())
        .map(|folder| folder.join(DEMO))
        .find(|script| script.is_file())
}
