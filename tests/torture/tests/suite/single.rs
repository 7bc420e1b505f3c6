//! Each operation by itself.

use std::sync::Mutex;

use crate::program::run;

/// Runs at once: most operations wait more than they work.
const RUNS: usize = 4;

#[test]
#[ignore = "slow: make test-all runs it"]
fn each_operation_passes_by_itself() {
    let list = run("--list");
    assert_eq!(list.status, Some(0), "{list:#?}");
    let names: Vec<&str> =
        list.out.lines().filter_map(|line| line.split_ascii_whitespace().next()).collect();
    assert!(names.len() > 70, "{list:#?}");
    let left = Mutex::new(names);
    std::thread::scope(|scope| {
        for _ in 0..RUNS {
            scope.spawn(|| {
                loop {
                    let Some(name) = left.lock().expect("no test has panicked").pop() else {
                        return;
                    };
                    alone(name);
                }
            });
        }
    });
}

fn alone(name: &str) {
    // The program replaces itself after a round of operations, however long that takes.
    let extent = if name == "exec-self" { "--operations 200" } else { "--seconds 1" };
    let end =
        run(&format!("{extent} --megabytes 16 --threads 2 --seed 13 --verbose --only {name}"));
    end.passed();
    // An operation that this machine lacks is noted; any other was done.
    let done = end.err.lines().any(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some(name) && line.contains(" done, ")
            || line.contains(&format!("note: {name} skipped "))
            || name == "exec-self"
                && line.contains("replaced itself ")
                && !line.contains(" 0 times")
    });
    assert!(done, "{name} was not done: {end:#?}");
}
