//! Files of /proc and /sys: reading, writing, and what their lines mean.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Reads a file of /proc or /sys as text without the final newline.
pub(crate) fn read_text(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim_end().to_owned())
}

/// Writes a kernel knob.
pub(crate) fn write_text(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, value).with_context(|| format!("cannot write '{value}' to {}", path.display()))
}

/// The value after `name` in "name value" lines (memory.stat, vmstat, "name: value kB").
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()?.trim_end_matches(':') == name).then(|| words.next()?.parse().ok())?
    })
}

/// The choice in brackets of a knob like `always [madvise] never`.
pub(crate) fn chosen(knob: &str) -> Option<&str> {
    knob.split_once('[')?.1.split_once(']').map(|(chosen, _)| chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_whole_name() {
        let text = "anon 12\nanon_thp 7\nZswap:   33 kB\nbad x\n";
        assert_eq!(field(text, "anon"), Some(12));
        assert_eq!(field(text, "anon_thp"), Some(7));
        assert_eq!(field(text, "Zswap"), Some(33));
        assert_eq!(field(text, "bad"), None);
        assert_eq!(field(text, "ano"), None);
    }

    #[test]
    fn choices_are_found() {
        assert_eq!(chosen("always [madvise] never"), Some("madvise"));
        assert_eq!(chosen("plain"), None);
    }
}
