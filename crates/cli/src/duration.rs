//! Spans of time and shares as people write them: `30s`, `500ms`, `5m`; `2%`, `0.5%`.

use std::time::Duration;

/// Reads a span of time; a number alone is seconds.
///
/// # Errors
/// A text that is none, or nothing.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let error =
        || format!("`{text}` is not a span of time: write for example 30s, 500ms, 5m or 1h");
    let (number, unit) = split(text).ok_or_else(error)?;
    let seconds = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(error()),
    };
    match Duration::try_from_secs_f64(number * seconds) {
        Ok(duration) if duration.as_millis() > 0 && duration < Duration::MAX / 2 => Ok(duration),
        _ => Err(error()),
    }
}

/// Reads a span of time; `never` is the longest there is.
///
/// # Errors
/// As [`duration`].
pub(crate) fn duration_or_never(text: &str) -> Result<Duration, String> {
    if text == "never" {
        return Ok(Duration::MAX);
    }
    duration(text).map_err(|error| format!("{error}, or never"))
}

/// Reads a share in percent, as millionths.
///
/// # Errors
/// A text that is none, or one outside of 0 to 100 %.
pub(crate) fn millionths(text: &str) -> Result<u64, String> {
    match split(text) {
        Some((number, "%")) if (0.0..=100.0).contains(&number) => Ok((number * 10_000.0) as u64),
        _ => Err(format!("`{text}` is not a share: write for example 2% or 0.5%")),
    }
}

/// A number and what stands behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let is_number = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number = digits.parse().ok().filter(|_| is_number)?;
    Some((number, text[digits.len()..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_are_read() {
        for (text, ms) in
            [("30s", 30_000), ("30", 30_000), ("500ms", 500), ("1.5m", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text).unwrap().as_millis(), ms, "{text}");
        }
        for text in
            ["", "s", "-1s", "0", "0s", "0.1ms", "1e3s", "3 days", "1e400", "99999999999999999999h"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
        assert_eq!(duration_or_never("never"), Ok(Duration::MAX));
        assert_eq!(duration_or_never("2s"), duration("2s"));
        assert!(duration_or_never("always").is_err());
    }

    #[test]
    fn shares_are_read() {
        assert_eq!((millionths("2%"), millionths("0.5 %")), (Ok(20_000), Ok(5_000)));
        for text in ["", "2", "101%", "-1%", "%"] {
            assert!(millionths(text).is_err(), "{text}");
        }
    }
}
