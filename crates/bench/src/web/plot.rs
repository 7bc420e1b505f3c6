//! Throughput and bandwidth of the disk as curves, as in paper 000: against the load, or against the share of
//! the memory that compressed pages have.

use crate::file_cache::Cache;
use crate::file_cache::shares::{self, Measured};
use crate::plot::{Panel, Points, curves, figure};

/// What a panel shows: its name, its unit, and how much of it a row has.
type Quantity = (&'static str, &'static str, fn(&Point<'_>) -> f64);

const QUANTITIES: [Quantity; 2] = [
    ("throughput", "pages a second", |point| point.pages_per_s),
    ("disk", "MB read a second", |point| point.disk_bytes_per_s / 1e6),
];

/// A row of the results.
pub struct Point<'a> {
    pub server: &'static str,
    pub peer: &'a str,
    pub cache: &'a Cache,
    pub sessions: usize,
    pub pages_per_s: f64,
    pub disk_bytes_per_s: f64,
}

/// An SVG: two panels for each server.
pub fn plot(points: &[Point<'_>]) -> String {
    let mut servers: Vec<&str> = points.iter().map(|point| point.server).collect();
    servers.dedup();
    let panels: Vec<Panel> = servers
        .into_iter()
        .flat_map(|server| {
            let points: Vec<&Point<'_>> =
                points.iter().filter(|point| point.server == server).collect();
            QUANTITIES.map(|(what, unit, of)| {
                let (x, curves) = over_shares(&points, of).map_or_else(
                    || ("sessions", sessions(&points, of)),
                    |curves| (shares::AXIS, curves),
                );
                Panel { title: format!("{server}: {what}"), x, y: unit, logarithmic: false, curves }
            })
        })
        .collect();
    figure(panels)
}

/// A curve for each peer, over the numbers of sessions.
fn sessions(points: &[&Point<'_>], of: impl Fn(&Point<'_>) -> f64) -> Vec<(String, Points)> {
    let place = |point: &&Point<'_>| (point.peer.to_owned(), (point.sessions as f64, of(point)));
    curves(points.iter().map(place))
}

/// Curves over the shares, if there are several at one number of sessions.
fn over_shares(
    points: &[&Point<'_>],
    of: impl Fn(&Point<'_>) -> f64,
) -> Option<Vec<(String, Points)>> {
    if points.windows(2).any(|two| two[0].sessions != two[1].sessions) {
        return None;
    }
    let measured = points.iter().map(|point| Measured {
        peer: point.peer,
        cache: point.cache,
        value: of(point),
    });
    shares::curves(&measured.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> Vec<(&'static str, Cache)> {
        ["page-cache", "ramfold:compressed-share=80%", "ramfold:compressed-share=0%"]
            .map(|name| (name, Cache::named(name).unwrap()))
            .into()
    }

    fn points<'a>(caches: &'a [(&'static str, Cache)], sessions: &[usize]) -> Vec<Point<'a>> {
        let points = caches.iter().enumerate().flat_map(|(nth, (peer, cache))| {
            sessions.iter().map(move |&sessions| Point {
                server: "nginx",
                peer,
                cache,
                sessions,
                pages_per_s: (nth * 1000 + sessions) as f64,
                disk_bytes_per_s: 1e6,
            })
        });
        points.collect()
    }

    #[test]
    fn the_load_is_below_the_curves_of_all_peers() {
        let caches = caches();
        let points = points(&caches, &[800, 400]);
        let all: Vec<&Point<'_>> = points.iter().collect();
        assert!(over_shares(&all, |point| point.pages_per_s).is_none());
        let curves = sessions(&all, |point| point.pages_per_s);
        assert_eq!(curves.len(), 3);
        assert_eq!(curves[0], ("page-cache".to_owned(), vec![(400.0, 400.0), (800.0, 800.0)]));
        let svg = plot(&points);
        for expected in ["nginx: throughput", "nginx: disk", "sessions", "page-cache"] {
            assert!(svg.contains(expected), "{expected} is missing");
        }
    }

    #[test]
    fn shares_are_below_the_curves_at_one_load() {
        let caches = caches();
        let points = points(&caches, &[400]);
        let all: Vec<&Point<'_>> = points.iter().collect();
        let curves = over_shares(&all, |point| point.pages_per_s).unwrap();
        assert_eq!(curves[0], ("page-cache".to_owned(), vec![(0.0, 400.0), (80.0, 400.0)]));
        let ramfold = ("ramfold of a fixed share".to_owned(), vec![(0.0, 2400.0), (80.0, 1400.0)]);
        assert_eq!(curves[1], ramfold);
        assert!(plot(&points).contains("share of the memory"));
    }
}
