//! The command line.

use crate::program::run;

#[test]
fn wrong_arguments_are_refused() {
    for arguments in ["--seconds none", "--only nothing", "--megabytes 1", "--stray", "stray"] {
        let end = run(arguments);
        assert_eq!(end.status, Some(3), "{end:#?}");
        assert!(end.err.starts_with("ramfold-torture: "), "{end:#?}");
        assert_eq!(end.out, "");
    }
}

#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let end = run("--directory /nonexistent/directory --seconds 1");
    assert_eq!(end.status, Some(3), "{end:#?}");
    assert!(end.err.contains("/nonexistent/directory"), "{end:#?}");
}

#[test]
fn help_names_the_options() {
    let end = run("--help");
    assert_eq!(end.status, Some(0));
    for option in ["--seconds", "--operations", "--seed", "--megabytes", "--only", "--list"] {
        assert!(end.out.contains(option), "{option}");
    }
    // Options for the program's own tests are not shown.
    assert!(!end.out.contains("--sabotage"));
}
