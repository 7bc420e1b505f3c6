//! The tables of docs/stats.md are what the schema makes.
//!
//! `RAMFOLD_WRITE_DOCS=1 cargo test -p ramfold-session --test reference` writes them.

use std::fmt::Write;
use std::fs;
use std::sync::OnceLock;

use ramfold_session::{SECTIONS, Section, metrics};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stats.md");
/// What stands before the tables.
const MARK: &str = "<!-- The tables below are made from crates/session/src/schema.rs:\n\
                    RAMFOLD_WRITE_DOCS=1 cargo test -p ramfold-session --test reference -->\n";

fn section(text: &mut String, section: &Section) -> std::fmt::Result {
    write!(text, "\n## {}\n\n", section.title)?;
    if !section.note.is_empty() {
        write!(text, "{}\n\n", section.note)?;
    }
    text.push_str("| field | kind | unit | meaning |\n|---|---|---|---|\n");
    for metric in section.metrics {
        let (name, kind, unit) = (metric.name, metric.kind.name(), metric.unit.name());
        writeln!(text, "| `{name}` | {kind} | {unit} | {} |", metric.help)?;
    }
    Ok(())
}

/// docs/stats.md as it is, and as it should be.
fn documents() -> &'static (String, String) {
    static DOCUMENTS: OnceLock<(String, String)> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let current = fs::read_to_string(FILE).unwrap();
        let (before, _) = current.split_once(MARK).expect("docs/stats.md has the mark");
        let mut made = format!("{before}{MARK}");
        SECTIONS.iter().try_for_each(|each| section(&mut made, each)).unwrap();
        if std::env::var_os("RAMFOLD_WRITE_DOCS").is_some() {
            fs::write(FILE, &made).unwrap();
            return (made.clone(), made);
        }
        (current, made)
    })
}

#[test]
fn the_tables_of_statistics_are_up_to_date() {
    let (current, made) = documents();
    assert!(
        made == current,
        "docs/stats.md is not what the schema makes: \
         RAMFOLD_WRITE_DOCS=1 cargo test -p ramfold-session --test reference"
    );
}

#[test]
fn every_field_is_documented_and_none_besides() {
    let (current, _) = documents();
    let mut documented: Vec<_> = current
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .flat_map(|row| row.split(" |").next().unwrap_or("").split("`, `"))
        .map(|name| name.trim_matches('`'))
        .collect();
    let mut fields: Vec<_> = metrics().map(|metric| metric.name).collect();
    documented.sort_unstable();
    fields.sort_unstable();
    assert_eq!(documented, fields);
}
