//! Curves over the part of the memory that compressed pages have.

use crate::peers::cache::Cache;
use ramfold_plot::{self as plot, Points};

/// What the share is called below a panel.
pub(in crate::experiments) const AXIS: &str = "compressed pages' share of the memory, percent";

/// What was measured with one cache.
pub(in crate::experiments) struct Measured<'a> {
    pub(in crate::experiments) cache: &'a dyn Cache,
    pub(in crate::experiments) value: f64,
}

/// Whether there is a curve among caches: those that differ in their fixed shares alone.
pub(in crate::experiments) fn are_several<'a>(
    caches: impl IntoIterator<Item = &'a dyn Cache>,
) -> bool {
    let fixed: Vec<_> = caches.into_iter().filter_map(|cache| cache.fixed_share()).collect();
    let differ =
        |one: &(f64, Vec<&str>)| fixed.iter().any(|other| one.1 == other.1 && one.0 != other.0);
    fixed.iter().any(differ)
}

/// A curve for each kind of ramfold over its fixed shares, and a level line for each other cache.
/// `None` without several shares.
pub(in crate::experiments) fn curves(measured: &[Measured<'_>]) -> Option<Vec<(String, Points)>> {
    if !are_several(measured.iter().map(|measured| measured.cache)) {
        return None;
    }
    let shares = || measured.iter().filter_map(|measured| Some(measured.cache.fixed_share()?.0));
    let (least, most) = (shares().reduce(f64::min)?, shares().reduce(f64::max)?);
    let named = measured.iter().flat_map(|&Measured { cache, value }| {
        let (name, shares) = match cache.fixed_share() {
            Some((share, others)) => {
                let name = ["ramfold"].into_iter().chain(others).collect::<Vec<_>>().join(" ");
                (format!("{name} of a fixed share"), vec![share])
            }
            None => (cache.name().to_owned(), vec![least, most]),
        };
        shares.into_iter().map(move |share| (name.clone(), (share, value)))
    });
    Some(plot::curves(named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::cache::named;

    fn of(peers: &[(&str, f64)]) -> Option<Vec<(String, Points)>> {
        let caches: Vec<_> = peers.iter().map(|(peer, _)| named(peer).unwrap()).collect();
        let measured: Vec<_> = peers
            .iter()
            .zip(&caches)
            .map(|(&(_, value), cache)| Measured { cache: cache.as_ref(), value })
            .collect();
        curves(&measured)
    }

    #[test]
    fn several_shares_are_a_curve_and_others_level_lines() {
        let found = of(&[
            ("page-cache", 10.0),
            ("ramfold:compressed-share=80%:codec=lz4", 40.0),
            ("ramfold:codec=lz4:compressed-share=20%", 30.0),
            ("ramfold", 50.0),
        ]);
        let expected = [
            ("page-cache".to_owned(), vec![(20.0, 10.0), (80.0, 10.0)]),
            ("ramfold --codec=lz4 of a fixed share".to_owned(), vec![(20.0, 30.0), (80.0, 40.0)]),
            ("ramfold".to_owned(), vec![(20.0, 50.0), (80.0, 50.0)]),
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn one_share_is_no_curve() {
        assert_eq!(of(&[("page-cache", 1.0), ("ramfold", 2.0)]), None);
        assert_eq!(of(&[("ramfold:compressed-share=10%", 1.0), ("ramfold", 2.0)]), None);
        let share = "ramfold:compressed-share=10%";
        assert_eq!(of(&[(share, 1.0), (share, 2.0)]), None);
        assert_eq!(of(&[(share, 1.0), ("ramfold:codec=lz4:compressed-share=20%", 2.0)]), None);
    }
}
