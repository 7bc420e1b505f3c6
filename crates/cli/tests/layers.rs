//! The edges between crates, and the modules with `unsafe`, as ARCHITECTURE.md draws them. Both
//! lists are exact: what is allowed and not used fails too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a crate may do that another may not.
struct Rules {
    /// Its package.
    name: &'static str,
    /// Its folder.
    folder: &'static str,
    /// The crates of the workspace that it uses, tests apart.
    uses: &'static [&'static str],
    /// Its files with `unsafe`, or folders of which some file has.
    has_unsafe: &'static [&'static str],
}

const CRATES: &[Rules] = &[
    Rules {
        name: "ramfold-codec",
        folder: "crates/codec",
        uses: &[],
        has_unsafe: &["src/arch", "tests/no_malloc.rs"],
    },
    Rules {
        name: "ramfold-sys",
        folder: "crates/sys",
        uses: &[],
        has_unsafe: &[
            "src/bytes.rs",
            "src/careful.rs",
            "src/code.rs",
            "src/credentials.rs",
            // Its tests.
            "src/file.rs",
            "src/file_server.rs",
            "src/guard.rs",
            "src/inherited.rs",
            "src/keep_open.rs",
            "src/loaded.rs",
            "src/maps.rs",
            "src/mem.rs",
            "src/pagemap.rs",
            // Its tests.
            "src/proc.rs",
            "src/process.rs",
            "src/raw.rs",
            "src/robust.rs",
            "src/scratch.rs",
            "src/swap.rs",
            "src/sync.rs",
            "src/thread.rs",
            "src/ublk",
            "src/uffd.rs",
            "src/uring.rs",
            "tests/userfaultfd.rs",
        ],
    },
    Rules {
        name: "ramfold-policy",
        folder: "crates/policy",
        uses: &["ramfold-codec"],
        has_unsafe: &[],
    },
    Rules {
        name: "ramfold-store",
        folder: "crates/store",
        uses: &["ramfold-codec", "ramfold-sys"],
        has_unsafe: &["src/index", "src/pool", "src/spill", "src/store/fork.rs", "src/tests"],
    },
    Rules {
        name: "ramfold-engine",
        folder: "crates/engine",
        uses: &["ramfold-codec", "ramfold-sys"],
        has_unsafe: &[],
    },
    Rules {
        name: "ramfold-session",
        folder: "crates/session",
        uses: &["ramfold-codec", "ramfold-store", "ramfold-sys"],
        has_unsafe: &["src/owned.rs"],
    },
    Rules {
        name: "ramfold-pager",
        folder: "crates/pager",
        uses: &[
            "ramfold-codec",
            "ramfold-policy",
            "ramfold-session",
            "ramfold-store",
            "ramfold-sys",
        ],
        has_unsafe: &["src", "tests/protocols.rs"],
    },
    Rules {
        name: "ramfold-launch",
        folder: "crates/launch",
        uses: &[
            "ramfold-codec",
            "ramfold-pager",
            "ramfold-session",
            "ramfold-store",
            "ramfold-sys",
        ],
        has_unsafe: &["src/child.rs"],
    },
    Rules {
        name: "ramfold-cache",
        folder: "crates/cache",
        uses: &[
            "ramfold-codec",
            "ramfold-engine",
            "ramfold-policy",
            "ramfold-store",
            "ramfold-sys",
        ],
        has_unsafe: &[],
    },
    Rules {
        name: "ramfold-filecache",
        folder: "crates/filecache",
        uses: &["ramfold-cache", "ramfold-codec", "ramfold-policy", "ramfold-sys"],
        has_unsafe: &[],
    },
    Rules {
        name: "ramfold-block",
        folder: "crates/block",
        uses: &["ramfold-codec", "ramfold-engine", "ramfold-store", "ramfold-sys"],
        has_unsafe: &["tests/no_allocation.rs"],
    },
    Rules {
        name: "ramfold-model",
        folder: "crates/model",
        uses: &["ramfold-codec", "ramfold-policy"],
        has_unsafe: &[],
    },
    Rules {
        name: "ramfold-trace",
        folder: "crates/trace",
        uses: &["ramfold-model"],
        has_unsafe: &["tests/open.rs"],
    },
    Rules {
        name: "ramfold-advise",
        folder: "crates/advise",
        uses: &[
            "ramfold-codec",
            "ramfold-launch",
            "ramfold-model",
            "ramfold-store",
            "ramfold-sys",
            "ramfold-trace",
        ],
        has_unsafe: &[],
    },
    Rules { name: "ramfold-plot", folder: "crates/plot", uses: &[], has_unsafe: &[] },
    Rules {
        name: "ramfold",
        folder: "crates/cli",
        uses: &[
            "ramfold-advise",
            "ramfold-block",
            "ramfold-codec",
            "ramfold-filecache",
            "ramfold-launch",
            "ramfold-plot",
            "ramfold-sys",
            "ramfold-trace",
        ],
        has_unsafe: &["tests/block_guest/mapped.rs", "tests/failing_disk.rs", "tests/spill.rs"],
    },
    Rules {
        name: "ramfold-bench",
        folder: "crates/bench",
        uses: &["ramfold-codec", "ramfold-engine", "ramfold-plot", "ramfold-store", "ramfold-sys"],
        has_unsafe: &[
            "src/experiments/codec/subjects/libraries",
            "src/workloads/idle",
            "tests/damage.rs",
        ],
    },
    Rules {
        name: "ramfold-torture",
        folder: "tests/torture",
        uses: &[],
        has_unsafe: &["src", "tests"],
    },
    // A workspace of its own.
    Rules {
        name: "ramfold-fuzz",
        folder: "fuzz",
        uses: &["ramfold-block", "ramfold-codec"],
        has_unsafe: &[],
    },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn metadata(folder: &str) -> serde_json::Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
        .arg(root().join(folder).join("Cargo.toml"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn dependencies_point_one_way() {
    let packages: Vec<serde_json::Value> = ["", "fuzz"]
        .iter()
        .flat_map(|folder| metadata(folder)["packages"].as_array().unwrap().clone())
        .collect();
    let names: BTreeSet<&str> =
        packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let listed: BTreeSet<&str> = CRATES.iter().map(|rules| rules.name).collect();
    assert_eq!(names, listed, "every crate is listed here");
    let uses: BTreeMap<&str, &[&str]> =
        CRATES.iter().map(|rules| (rules.name, rules.uses)).collect();
    for package in &packages {
        let name = package["name"].as_str().unwrap();
        let used: BTreeSet<&str> = package["dependencies"]
            .as_array()
            .unwrap()
            .iter()
            // Tests may look further.
            .filter(|dependency| dependency["kind"] != "dev")
            .map(|dependency| dependency["name"].as_str().unwrap())
            .filter(|used| used.starts_with("ramfold"))
            .collect();
        let allowed: BTreeSet<&str> = uses[name].iter().copied().collect();
        assert_eq!(used, allowed, "what {name} depends on, and what it may depend on");
    }
}

#[test]
fn every_dependency_between_crates_is_used() {
    for rules in CRATES {
        let code: Vec<String> = sources(rules.folder)
            .filter(|(path, _)| !path.starts_with("tests"))
            .map(|(_, text)| code_of(&text))
            .collect();
        for used in rules.uses {
            let name = used.replace('-', "_");
            let is_used = code.iter().any(|code| words(code).any(|word| word == name));
            // The command line embeds the agent, which its build script builds.
            let is_embedded = *used == "ramfold-pager" && rules.name == "ramfold";
            assert!(is_used || is_embedded, "{} does not use {used}", rules.name);
        }
    }
}

#[test]
fn unsafe_is_where_it_is_allowed_and_nowhere_else() {
    for rules in CRATES {
        let with_unsafe: Vec<PathBuf> = sources(rules.folder)
            .filter(|(_, text)| words(&code_of(text)).any(|word| word == "unsafe"))
            .map(|(path, _)| path)
            .collect();
        let is_allowed = |path: &Path| rules.has_unsafe.iter().any(|part| path.starts_with(part));
        let forbidden: Vec<_> = with_unsafe.iter().filter(|path| !is_allowed(path)).collect();
        assert!(forbidden.is_empty(), "unsafe in {}: {forbidden:?}", rules.folder);
        for part in rules.has_unsafe {
            let is_used = with_unsafe.iter().any(|path| path.starts_with(part));
            assert!(is_used, "{}/{part} has no unsafe any more", rules.folder);
        }
    }
}

/// Rust's files of a crate by their paths in it, with their texts.
fn sources(folder: &str) -> impl Iterator<Item = (PathBuf, String)> {
    let crate_root = root().join(folder);
    let mut folders = vec![crate_root.clone()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && path != crate_root.join("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{folder} has no sources");
    files.into_iter().map(move |path| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(&crate_root).unwrap().to_owned(), text)
    })
}

/// Identifiers and keywords.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Source text without comments and without the content of strings.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if first == '"' {
            string(rest)
        } else if let Some(length) = raw_string(rest, code.chars().last()) {
            length
        } else if let Some(length) = character(rest) {
            length
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.push(' ');
        rest = &rest[skipped..];
    }
    code
}

/// Comments of this kind can be in one another.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// `r"..."`, `r#"..."#` and so on, unless the `r` ends a word.
fn raw_string(text: &str, before: Option<char>) -> Option<usize> {
    let is_in_word = before.is_some_and(|c| c.is_alphanumeric() && c != 'b' && c != 'c');
    let inner = text.strip_prefix('r').filter(|_| !is_in_word)?;
    let hashes = inner.len() - inner.trim_start_matches('#').len();
    let content = inner[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(1 + hashes + 1 + length)
}

/// A character in quotes; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let end = match inner.strip_prefix('\\') {
        Some(escape) => 1 + escape.char_indices().nth(1)?.0,
        None => inner.chars().next()?.len_utf8(),
    };
    let rest = &inner[end..];
    // A longer escape (\u{1f600}, \x7f) goes on to the quote; anything else is a lifetime.
    let quote = if inner.starts_with('\\') { rest.find('\'')? } else { 0 };
    rest[quote..].starts_with('\'').then_some(1 + end + quote + 1)
}

#[test]
fn words_in_comments_and_strings_do_not_count() {
    for text in [
        "// unsafe\n",
        "/* a /* unsafe */ unsafe */",
        "\"unsafe\"",
        "\"\\\" unsafe\"",
        "b\"unsafe\"",
        "r\"\\\" ; r#\"\"unsafe\"#",
        "'\"' ; \"unsafe\"",
        "'\\'' ; \"unsafe\"",
        "'\\u{7f}' // unsafe",
        "unsafe_code",
    ] {
        assert!(!words(&code_of(text)).any(|word| word == "unsafe"), "{text}");
    }
    for text in ["fn f<'a>() { unsafe {} }", "/* */ unsafe", "\"\" unsafe", "'a' unsafe 'b'"] {
        assert!(words(&code_of(text)).any(|word| word == "unsafe"), "{text}");
    }
}
