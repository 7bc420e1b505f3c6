//! `ramfold-bench codec`, tiny: every codec and library, and what it refuses.

use std::path::Path;
use std::process::{Command, Output};

use ramfold_bench::PageSource;
use ramfold_codec::{Codec, PAGE_SIZE};
use serde_json::Value;

const PAGES: usize = 24;

fn codec(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ramfold-bench")).arg("codec").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of pages like a heap's, and two that are same-filled.
fn write_pages(path: &Path) {
    let source = PageSource::generated(3);
    let mut bytes: Vec<u8> = (0..PAGES).flat_map(|nth| source.page(nth).unwrap().0).collect();
    bytes.extend([7; 2 * PAGE_SIZE]);
    std::fs::write(path, bytes).unwrap();
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {row}"))
}

#[test]
fn every_codec_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.pages");
    write_pages(&file);
    let file = file.to_str().unwrap();
    let output = codec(&["--pages", file, "--rounds", "2", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["codec"] == name);
    for name in Codec::ALL.iter().map(|codec| codec.name()).chain(["memcpy"]) {
        let row = row(name).unwrap_or_else(|| panic!("no {name} in {report}"));
        assert_eq!((&row["file"], number(row, "pages")), (&file.into(), 26.0));
        let distinct = (26.0 - number(row, "same_filled")) * PAGE_SIZE as f64;
        assert!(number(row, "same_filled") >= 2.0);
        assert!(number(row, "compressed_bytes") <= number(row, "charged_bytes"));
        assert!(number(row, "charged_bytes") <= distinct);
        assert_eq!(number(row, "compressed_bytes") == distinct, name == "memcpy");
        for speed in ["compress", "decompress", "pair", "cold_compress", "cold_decompress"] {
            assert!(number(row, &format!("{speed}_gbps")) > 0.0, "{row}");
        }
        assert!(number(row, "pair_gbps") < number(row, "compress_gbps"), "{row}");
        for way in ["compress", "decompress"] {
            let p50 = number(row, &format!("{way}_ns_p50"));
            assert!(p50 > 0.0 && p50 <= number(row, &format!("{way}_ns_p99")), "{row}");
        }
    }
    // The libraries write the same formats, by other encoders.
    for (ours, library) in [("lz4", "liblz4"), ("lzo", "liblzo2"), ("zstd-1", "libzstd-1")] {
        let Some(library) = row(library) else {
            println!("{library} is not installed");
            continue;
        };
        let share =
            number(row(ours).unwrap(), "compressed_bytes") / number(library, "compressed_bytes");
        assert!((0.9..1.1).contains(&share), "{ours}: {share}");
    }
}

#[test]
fn the_table_is_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a.pages", "b.pages"].map(|name| folder.path().join(name));
    files.iter().for_each(|file| write_pages(file));
    let files = files.each_ref().map(|file| file.to_str().unwrap());
    let options = ["--codec", "pbpm,memcpy", "--limit", "9", "--rounds", "1"];
    let output = codec(&[&["--pages"], &files[..], &options].concat());
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for file in files {
        assert!(out.contains(&format!("{file}: 9 pages")), "{out}");
    }
    assert_eq!(out.matches("pbpm").count(), 2, "{out}");
    for line in out.lines().filter(|line| line.contains("memcpy")) {
        assert_eq!(line.split_whitespace().count(), 11, "{out}");
    }
}

/// Instructions a page to compress and to decompress, of each codec; `None` without valgrind.
fn instructions(codecs: &str) -> Option<Vec<[f64; 2]>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("heap.pages");
    write_pages(&file);
    let options = ["--codec", codecs, "--rounds", "1", "--instructions", "--json"];
    let output = codec(&[&["--pages", file.to_str().unwrap()], &options[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap().iter();
    let fields = ["compress_instructions", "decompress_instructions"];
    Some(rows.map(|row| fields.map(|field| number(row, field))).collect())
}

#[test]
#[ignore = "slow: make test-all runs it"]
fn instructions_are_the_same_each_time() {
    let Some(first) = instructions("wkdm") else { return };
    // A page has 1,024 words; few instructions each, hundreds without optimisation.
    let counts = first.as_flattened();
    assert!(counts.iter().all(|count| (1000.0..1_000_000.0).contains(count)), "{first:?}");
    assert_eq!(instructions("wkdm"), Some(first));
}

/// valgrind does not know every form of every instruction.
#[test]
#[ignore = "slow: make test-all runs it"]
fn instructions_of_vector_code_are_counted() {
    let codecs = ["wkv", "pbpm", "lzo", "page-lz"];
    let Some(counts) = instructions(&codecs.join(",")) else { return };
    assert_eq!(counts.len(), codecs.len());
}

#[test]
fn patterns_are_counted_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (file, plot) = (folder.path().join("heap.pages"), folder.path().join("patterns.svg"));
    write_pages(&file);
    let (file, plot_name) = (file.to_str().unwrap(), plot.to_str().unwrap());
    let counted = ["--patterns", "--rounds", "1", "--plot", plot_name, "--pages", file];
    let output = codec(&[&counted[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |rows: &Value| -> f64 {
        rows.as_array().unwrap().iter().map(|row| number(row, "percent")).sum()
    };
    for rows in ["zero_patterns", "codes"] {
        assert!((sum(&report[0][rows]) - 100.0).abs() < 1e-6, "{report}");
    }
    assert_eq!(report[0]["dictionaries"].as_array().unwrap().len(), 5);
    assert_eq!(report[0]["alignments"].as_array().unwrap().len(), 3);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("zxzx"), "{svg}");

    let output = codec(&counted);
    let tables = text(&output.stdout);
    for part in ["Figure 2", "Table I)", "Table II", "32 2-way", "separate tapes"] {
        assert!(tables.contains(part), "no {part} in {tables}");
    }
}

#[test]
fn what_cannot_be_measured_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some.pages");
    let expect = |arguments: &[&str], message: &str| {
        let output = codec(arguments);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(message), "{arguments:?}: {error}");
    };
    let path = file.to_str().unwrap();
    expect(&["--pages", path], "cannot read pages from");
    std::fs::write(&file, [1; PAGE_SIZE]).unwrap();
    expect(&["--pages", path], "holds no page");
    std::fs::write(&file, [0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]).unwrap();
    expect(&["--pages", path], "cannot read pages from");
    expect(&["--pages", path, "--codec", "lz5"], "there is no codec \"lz5\"");
    expect(&["--pages", path, "--rounds", "0"], "0 is not in");
    expect(&["--pages", path, "--backend", "mmx"], "this machine has no instructions \"mmx\"");
    expect(&["--pages", path, "--plot", "x.svg"], "--patterns");
}
