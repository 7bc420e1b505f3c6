//! `ramfold advise --score`: how right predictions were.

use anyhow::{Context, bail};
use ramfold_advise::history::{self, Error, Score, Share};

use crate::table::{align_figures, table};

/// Prints the score of the history.
///
/// # Errors
/// When there is no place for one, or it cannot be read.
pub(super) fn print(json: bool) -> anyhow::Result<()> {
    let Some(file) = history::usual_file() else {
        bail!("there is no history: neither XDG_STATE_HOME nor HOME names a folder");
    };
    let (entries, unreadable) =
        history::load(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let score = Score::of(&entries, unreadable);
    if json {
        println!("{}", serde_json::to_string_pretty(&score)?);
        return Ok(());
    }
    println!("{} predictions in {}", score.predictions, file.display());
    if unreadable > 0 {
        println!("{unreadable} lines cannot be read and do not count");
    }
    if score.predictions == 0 {
        println!("`ramfold run --prediction FILE` compares a run with what was predicted of it");
        return Ok(());
    }
    let mut errors = table(["predicted", "runs", "median error", "worst"]);
    for (what, error) in [
        ("run time, below 2 times", score.time_below_2),
        ("run time, beyond", score.time_beyond_2),
        ("greatest pool", score.pool),
    ] {
        let Error { count, median, worst } = error;
        errors.add_row([what.to_owned(), count.to_string(), percent(median), percent(worst)]);
    }
    align_figures(&mut errors, 1);
    println!("\n{errors}\n");
    let mut shares = table(["said", "runs", "right"]);
    for (what, share) in [
        ("the memory is enough, or is not", score.decisions),
        ("run time is within the 90 % interval", score.intervals),
        ("the cap is held, or is not", score.held),
    ] {
        let Share { count, right } = share;
        shares.add_row([what.to_owned(), count.to_string(), percent(right)]);
    }
    align_figures(&mut shares, 1);
    println!("{shares}");
    Ok(())
}

fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".to_owned(), |part| format!("{:.1} %", part * 100.0))
}
