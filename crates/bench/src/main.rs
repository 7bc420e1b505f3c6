//! The `ramfold-bench` binary; all of it is in the library.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ramfold_bench::main()
}
