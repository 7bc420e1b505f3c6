//! Curves over the part of the memory that compressed pages have.

use super::Cache;
use crate::plot::Points;

/// What was measured with one cache.
pub struct Measured<'a> {
    pub peer: &'a str,
    pub cache: &'a Cache,
    pub value: f64,
}

/// A curve for each kind of ramfold over its fixed shares, and a level line for each other peer. `None` without
/// several shares.
pub fn curves(measured: &[Measured<'_>]) -> Option<Vec<(String, Points)>> {
    let shares = || measured.iter().filter_map(|measured| Some(measured.cache.fixed_share()?.0));
    let (least, most) = (shares().reduce(f64::min)?, shares().reduce(f64::max)?);
    if least == most {
        return None;
    }
    let mut curves: Vec<(String, Points)> = Vec::new();
    for Measured { peer, cache, value } in measured {
        let (name, points) = match cache.fixed_share() {
            Some((share, others)) => {
                let name = ["ramfold"].into_iter().chain(others).collect::<Vec<_>>().join(" ");
                (format!("{name} of a fixed share"), vec![(share, *value)])
            }
            None => ((*peer).to_owned(), vec![(least, *value), (most, *value)]),
        };
        match curves.iter_mut().find(|(of, _)| *of == name) {
            Some((_, curve)) => curve.extend(points),
            None => curves.push((name, points)),
        }
    }
    for (_, points) in &mut curves {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    Some(curves)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(peers: &[(&str, f64)]) -> Option<Vec<(String, Points)>> {
        let caches: Vec<Cache> =
            peers.iter().map(|(peer, _)| Cache::named(peer).unwrap()).collect();
        let measured: Vec<_> = peers
            .iter()
            .zip(&caches)
            .map(|(&(peer, value), cache)| Measured { peer, cache, value })
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
    }
}
