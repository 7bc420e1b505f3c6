//! The `ramfold-bench` binary; all of it is in the library.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ramfold_bench::main()
}
