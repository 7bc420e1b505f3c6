//! `ramfold-bench store`, tiny: every part, and what it refuses.

use std::process::{Command, Output};

use serde_json::Value;

fn store(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ramfold-bench")).arg("store").args(arguments).output().unwrap()
}

fn report(arguments: &[&str]) -> Value {
    let output = store(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no number {field} in {row}"))
}

#[test]
fn allocators_are_compared_on_the_same_objects() {
    let report = report(&["--objects", "2000", "--json"]);
    let rows = report["rows"].as_array().unwrap();
    let ratio = |allocator: &str, after: &str| {
        let row = rows.iter().find(|row| row["allocator"] == allocator && row["after"] == after);
        number(row.unwrap_or_else(|| panic!("no {allocator} {after}")), "allocated_per_compressed")
    };
    for allocator in ["size-classes", "block-lists", "resource-map", "zsmalloc"] {
        assert!(ratio(allocator, "fill") >= 1.0);
        assert!(ratio(allocator, "shrink") > 2.0);
    }
    // No timed figure: what compaction gives back is the same each time.
    assert!(ratio("size-classes", "compaction") < ratio("zsmalloc", "compaction"));
}

#[test]
fn the_verbs_are_measured_by_one_thread_and_by_several() {
    let report =
        report(&["--verbs", "--threads", "1", "3", "--rounds", "2", "--share", "500", "--json"]);
    let pairs = report["pairs"].as_array().unwrap();
    // One thread; three with pages of their own; three with any.
    assert_eq!(pairs.len() % 3, 0);
    assert!(pairs.iter().all(|row| number(row, "ns_median") > 0.0 && number(row, "speedup") > 0.0));
    let index = report["index"].as_array().unwrap();
    assert!(
        number(&index[0], "metadata_bytes_per_page") < number(&index[2], "metadata_bytes_per_page")
    );
    assert_eq!(number(&report["ranges"], "pages"), 200.0);
}

#[test]
fn engines_are_measured_side_by_side() {
    let report = report(&["--engine", "sync", "async", "--rounds", "2", "--share", "20", "--json"]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().map(|row| &row["engine"]).eq(["sync", "async"]), "{report}");
    for row in rows {
        for field in ["alone_mb_per_s", "beside_mb_per_s", "decompressed", "cpu_us_per_page"] {
            assert!(number(row, field) > 0.0, "{field} in {row}");
        }
        assert!(number(&row["decompress"], "p50_ns") <= number(&row["decompress"], "p99_ns"));
    }
    assert_eq!(number(&rows[0], "workers"), 0.0);
    assert!(number(&rows[1], "workers") >= 1.0);
}

#[test]
fn options_of_another_part_are_refused() {
    for arguments in [&["--threads", "2"][..], &["--verbs", "--objects", "1000"]] {
        let output = store(arguments);
        assert!(!output.status.success());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains("--verbs"), "{message}");
    }
}

#[test]
fn the_spill_file_is_measured_beside_the_disk() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = folder.path().to_str().unwrap();
    let share = ["--share", "50", "--size", "200M", "--batch", "256K", "--rounds", "1"];
    let report = report(&[&["--spill", "--folder", place, "--json"][..], &share].concat());
    let rows = report["rows"].as_array().unwrap();
    let count = |what: &str| rows.iter().filter(|row| row["what"] == what).count();
    assert_eq!((count("spill"), count("plain")), (2, 2), "{report}");
    assert_eq!(count("fio") == 0, report["without_fio"].is_string());
    for row in rows {
        assert!(number(row, "write_mb_per_s") > 0.0);
        assert!(number(&row["read"], "p50_ns") <= number(&row["read"], "p99_ns"));
    }
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "a file is left behind");
}

#[test]
fn thresholds_and_batches_of_the_spill_file_are_swept() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = folder.path().to_str().unwrap();
    let tiny = ["--pool", "1M", "--share", "100", "--rounds", "1", "--json"];
    let report = report(&[&["--spill-sweep", "--folder", place][..], &tiny].concat());
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    for row in rows {
        assert!(number(row, "access_us") > 0.0 && number(row, "written_mib") > 0.0, "{row}");
        let found = number(row, "pool_hits_percent") + number(row, "reads_percent");
        assert!((1.0..=100.5).contains(&found), "{row}");
    }
}
