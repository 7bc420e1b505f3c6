//! Choosing by name.

use anyhow::{Result, bail};

/// The items of these names, in the order that `all` has. `what` is one of them, for the error.
///
/// # Errors
/// When there is none of a name.
pub(crate) fn named<T: Copy>(
    what: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
    names: &[String],
) -> Result<Vec<T>> {
    if let Some(unknown) =
        names.iter().find(|wanted| all.iter().all(|&item| name(item) != **wanted))
    {
        let all: Vec<_> = all.iter().map(|&item| name(item)).collect();
        bail!("there is no {what} '{unknown}'; there are {}", all.join(", "));
    }
    let is_wanted = |item: &T| names.iter().any(|wanted| wanted == name(*item));
    Ok(all.iter().copied().filter(is_wanted).collect())
}
