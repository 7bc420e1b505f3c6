//! What is recommended, as something that can be pasted.

use serde::{Deserialize, Serialize};

use crate::observation::Subject;

/// Of a container's limit, what `ramfold run` takes for the cap where no other is named: the rest
/// is for page tables, the kernel's buffers, file pages in use.
const CAP_OF_LIMIT: f64 = 0.9;
const MIB: u64 = 1 << 20;

/// What to do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recommended {
    /// A command for a shell; none where there is none that fits.
    pub command: Option<String>,
    /// Why there is none, or what the command brings.
    pub reason: String,
    /// The memory that is recommended.
    pub memory_bytes: Option<u64>,
    /// Where a container is asked about: the `resources.limits` that it allows.
    pub limits: Option<Limits>,
}

/// A container's `resources.limits`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// As Kubernetes writes it.
    pub memory: String,
}

/// A word for a shell: in quotes where it has to be.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%^".contains(c);
    // A leading `~` or a lone `=` word could mean something to some shell.
    let is_safe = !word.is_empty() && word.chars().all(is_plain) && !word.starts_with('=');
    if is_safe { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Words for a shell.
pub fn quoted_line<S: AsRef<str>>(words: impl IntoIterator<Item = S>) -> String {
    words.into_iter().map(|word| quoted(word.as_ref())).collect::<Vec<_>>().join(" ")
}

/// Memory as `--memory` takes it, rounded up to a MiB.
pub(super) fn size(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(MIB))
}

/// The recommendation of so much memory; `codec` where it is not the usual one.
pub(super) fn recommend(
    subject: &Subject,
    memory_bytes: u64,
    codec: Option<&str>,
    reason: String,
) -> Recommended {
    let start = |command: &str| {
        let mut words = vec!["ramfold".to_owned(), command.to_owned(), "--memory".to_owned()];
        words.push(size(memory_bytes));
        if let Some(codec) = codec {
            words.extend(["--codec".to_owned(), codec.to_owned()]);
        }
        words
    };
    let mut recommended =
        Recommended { command: None, reason, memory_bytes: Some(memory_bytes), limits: None };
    match subject {
        Subject::Program(program) => {
            recommended.command = Some(run(start("run"), program));
        }
        Subject::Process { name, arguments, .. } => {
            // A process may hide its command line.
            let hidden = std::slice::from_ref(name);
            let program = if arguments.is_empty() { hidden } else { &arguments[..] };
            recommended.command = Some(run(start("run"), program));
        }
        Subject::Group(_) => {
            let limit = (memory_bytes as f64 / CAP_OF_LIMIT) as u64;
            recommended.limits = Some(Limits { memory: format!("{}Mi", limit.div_ceil(MIB)) });
            recommended.reason +=
                "; start the container's command with `ramfold run --`, and set its limit";
        }
        Subject::Files(folder) => {
            // `./` keeps a name that begins with a dash from being an option.
            let plain = folder.trim_end_matches('/');
            let folder = if folder.starts_with('-') { format!("./{plain}") } else { plain.into() };
            let place = format!("{folder}.ramfold");
            let mut words = start("mount");
            words.extend([folder, place.clone()]);
            let mount = quoted_line(words);
            recommended.command = Some(format!("mkdir -p {} && {mount}", quoted(&place)));
        }
        Subject::Pages(_) => {
            recommended.reason += "; a dump does not say which program it is of";
        }
    }
    recommended
}

fn run(mut words: Vec<String>, program: &[String]) -> String {
    words.push("--".to_owned());
    words.extend_from_slice(program);
    quoted_line(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let words = [
            "plain",
            "",
            "two words",
            "it's",
            "\"double\"",
            "a\nb",
            "$HOME",
            "`x`",
            "*",
            "~",
            "!!",
            "\\",
            "=x",
            "-n",
            "ümlaut",
            "a=b c",
            "#no",
        ];
        let script = format!("printf '%s\\0' {}", quoted_line(words));
        let ran = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(ran.status.success());
        let read: Vec<&str> = std::str::from_utf8(&ran.stdout).unwrap().split('\0').collect();
        assert_eq!(read[..words.len()], words);
        assert_eq!(quoted_line(["a/b", "--x=1"]), "a/b --x=1");
    }

    #[test]
    fn each_subject_has_what_fits_it() {
        let of = |subject| recommend(&subject, 100 * MIB + 1, None, "because".to_owned());
        let program = of(Subject::Program(vec!["/bin/echo".to_owned(), "a b".to_owned()]));
        assert_eq!(
            program.command.as_deref(),
            Some("ramfold run --memory 101M -- /bin/echo 'a b'")
        );
        let group = of(Subject::Group("/a".to_owned()));
        assert_eq!((group.command, group.limits.unwrap().memory), (None, "112Mi".to_owned()));
        let files = of(Subject::Files("/data sets/".to_owned()));
        assert_eq!(
            files.command.as_deref(),
            Some(
                "mkdir -p '/data sets.ramfold' && \
                 ramfold mount --memory 101M '/data sets' '/data sets.ramfold'"
            )
        );
        assert_eq!(of(Subject::Pages("dump".to_owned())).command, None);
        let process = |arguments: &[&str]| {
            let arguments = arguments.iter().map(|&word| word.to_owned()).collect();
            of(Subject::Process { pid: 7, name: "name".to_owned(), arguments }).command.unwrap()
        };
        assert_eq!(process(&[]), "ramfold run --memory 101M -- name");
        assert_eq!(process(&["/a", "-x y"]), "ramfold run --memory 101M -- /a '-x y'");
        let subject = Subject::Program(vec!["x".to_owned()]);
        let zstd = recommend(&subject, MIB, Some("zstd-1"), String::new());
        assert_eq!(zstd.command.as_deref(), Some("ramfold run --memory 1M --codec zstd-1 -- x"));
    }
}
