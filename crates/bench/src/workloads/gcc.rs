//! GCC over a large generated file.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::{Prepared, Settings, Workload};
use crate::content::random::{Random, mix};
use crate::machine::host::Host;
use crate::machine::program::Program;
use crate::machine::program::found_in_path;

/// What GCC 14 takes for each function of the file with -O2.
const BYTES_PER_FUNCTION: u64 = 160 << 10;
/// A function calls one of this many before it.
const CALLEES: usize = 50;

const RECORD: &str = "struct record {\n  int kind, size;\n  long weight;\n  double share;\n  \
                      struct record *next, *child;\n  unsigned char name[24];\n};\n";

pub(super) struct Gcc;

impl Workload for Gcc {
    fn name(&self) -> &'static str {
        "gcc"
    }

    fn about(&self) -> &'static str {
        "gcc -O2 of a file for which it needs about --size"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        found_in_path("gcc").context("the workload gcc needs the command gcc")?;
        let source = host.scratch.join("functions.c");
        let functions = (settings.size_bytes / BYTES_PER_FUNCTION).max(1);
        fs::write(&source, text(functions as usize, settings.seed))
            .with_context(|| format!("cannot write {}", source.display()))?;
        let mut command: Vec<_> = ["gcc", "-O2", "-S", "-o", "-"].map(Into::into).to_vec();
        command.push(source.into());
        Ok(Prepared::whole(Program { command, environment: vec![("LC_ALL", "C".into())] }))
    }
}

/// Functions that go over lists of records, with loops, branches and calls.
fn text(functions: usize, seed: u64) -> String {
    let mut random = Random::new(mix(seed));
    let mut text = RECORD.to_owned();
    for function in 0..functions {
        // Writing to a string does not fail.
        let _ = write_function(&mut text, function, &mut random);
    }
    text
}

fn write_function(text: &mut String, function: usize, random: &mut Random) -> std::fmt::Result {
    writeln!(
        text,
        "\nlong step_{function}(struct record *at, int count, long seed)\n{{\n  \
         long sum = seed;\n  double part = {}.5;\n  \
         for (int i = 0; i < count; i++, at = at->next) {{\n    switch (at->kind & 15) {{",
        random.below(100)
    )?;
    for case in 0..3 + random.below(5) {
        let number = random.below(1000);
        match random.below(4) {
            0 => writeln!(
                text,
                "    case {case}: sum += at->size * {number}L + (at->weight >> {}); break;",
                1 + random.below(30)
            ),
            1 => writeln!(
                text,
                "    case {case}: for (int j = 0; j < {}; j++) \
                 sum ^= at->name[j] * (sum + {number}); break;",
                4 + random.below(20)
            ),
            2 => writeln!(
                text,
                "    case {case}: part = part * at->share + {number}; \
                 if (part > {}) at->weight += (long)part; break;",
                random.below(1_000_000)
            ),
            _ => writeln!(
                text,
                "    case {case}: if (at->child) \
                 sum += step_{}(at->child, count - 1, sum ^ {number}); break;",
                function - random.below(function.min(CALLEES) + 1)
            ),
        }?;
    }
    writeln!(
        text,
        "    default: at->size = (int)(sum % {});\n    }}\n    \
         if (sum < at->weight) {{\n      struct record *other = at->next->next;\n      \
         other->weight += sum;\n      other->share = part / (at->size + {});\n    }}\n  }}\n  \
         return sum + (long)part;\n}}",
        3 + random.below(10_000),
        1 + random.below(100)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_repeats_and_calls_what_is_there() {
        let one = text(60, 1);
        assert_eq!(one, text(60, 1));
        assert_ne!(one, text(60, 2));
        assert_eq!(one.matches("\nlong step_").count(), 60);
        assert!(!one.contains("step_60("));
    }
}
