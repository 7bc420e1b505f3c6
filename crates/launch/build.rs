//! Builds the agent (crates/pager as a preloaded library) for `include_bytes!`.
//!
//! A nested cargo with a target folder of its own is the one way that works alike with `cargo run`
//! and `cargo install --path`. The folder lies in that of the outer cargo, for all its profiles:
//! the agent is the same in each.

use std::env;
use std::path::PathBuf;
use std::process::{Command, exit};

fn main() {
    let variable = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let out = PathBuf::from(variable("OUT_DIR"));
    let pager = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../pager");
    for crate_folder in ["pager", "policy", "session", "store", "codec", "sys"] {
        println!("cargo::rerun-if-changed=../{crate_folder}/src");
        println!("cargo::rerun-if-changed=../{crate_folder}/Cargo.toml");
    }
    println!("cargo::rerun-if-changed=build.rs");
    // For a profiler that looks into programs under ramfold.
    println!("cargo::rerun-if-env-changed=RAMFOLD_AGENT_SYMBOLS");
    let strip = if env::var_os("RAMFOLD_AGENT_SYMBOLS").is_some() { "none" } else { "symbols" };

    let target = variable("TARGET");
    // Beside the profile's folder: TARGET/PROFILE/build/ramfold-HASH/out.
    let Some(outer) = out.ancestors().nth(4) else { panic!("OUT_DIR is {}", out.display()) };
    let target_folder = outer.join(format!("agent-{strip}"));
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["rustc", "--release", "--offline", "--lib", "--crate-type", "cdylib"])
        .args(["--features", "preload", "--target", &target])
        .arg("--manifest-path")
        .arg(pager.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_folder)
        // One unit, so that nothing of the fault path is a call into another.
        .args([
            "--config",
            "profile.release.lto=\"fat\"",
            "--config",
            "profile.release.codegen-units=1",
        ])
        .args(["--config", &format!("profile.release.strip=\"{strip}\"")])
        // Symbols are bound when the library is loaded: the loader's lazy binding would touch
        // memory of the program in the middle of a fault.
        // The C compiler's start files would import what the agent must not.
        .args(["--", "-C", "link-arg=-Wl,-z,now", "-C", "link-arg=-Wl,--exclude-libs=ALL"])
        .args(["-C", "link-arg=-nostartfiles"]);
    // What shapes the outer build must not leak into the inner one.
    for name in [
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET",
        "CARGO_MAKEFLAGS",
    ] {
        cargo.env_remove(name);
    }
    for (name, _) in env::vars() {
        if name.starts_with("CARGO_FEATURE_") || name.starts_with("CARGO_CFG_") {
            cargo.env_remove(name);
        }
    }
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            eprintln!("building the agent failed ({status}): {cargo:?}");
            exit(1);
        }
        Err(error) => {
            eprintln!("cannot run cargo to build the agent: {error}: {cargo:?}");
            exit(1);
        }
    }
    let library = target_folder.join(target).join("release/libramfold_pager.so");
    println!("cargo::rustc-env=RAMFOLD_AGENT={}", library.display());
}
