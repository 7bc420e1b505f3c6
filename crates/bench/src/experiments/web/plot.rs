//! Throughput and bandwidth of the disk as curves, as in paper 000: against the load, or against
//! the share of the memory that compressed pages have.

use super::report::Row;
use crate::experiments::files::shares::{self, Measured};
use ramfold_plot::{Panel, Points, curves, figure};

/// What a panel shows: its name, its unit, and how much of it a row has.
type Quantity = (&'static str, &'static str, fn(&Row<'_>) -> f64);

const QUANTITIES: [Quantity; 2] = [
    ("throughput", "pages a second", |row| row.pages_per_s),
    ("disk", "MB read a second", |row| row.disk_bytes_per_s / 1e6),
];

/// An SVG: two panels for each server.
pub(super) fn plot(rows: &[Row<'_>]) -> String {
    let mut servers: Vec<&str> = rows.iter().map(|row| row.server).collect();
    servers.dedup();
    let panels: Vec<Panel> = servers
        .into_iter()
        .flat_map(|server| {
            let rows: Vec<&Row<'_>> = rows.iter().filter(|row| row.server == server).collect();
            QUANTITIES.map(|(what, unit, of)| {
                let (x, curves) = over_shares(&rows, of).map_or_else(
                    || ("sessions", sessions(&rows, of)),
                    |curves| (shares::AXIS, curves),
                );
                Panel { title: format!("{server}: {what}"), x, y: unit, logarithmic: false, curves }
            })
        })
        .collect();
    figure(panels)
}

/// A curve for each cache, over the numbers of sessions.
fn sessions(rows: &[&Row<'_>], of: impl Fn(&Row<'_>) -> f64) -> Vec<(String, Points)> {
    let place = |row: &&Row<'_>| (row.cache.name().to_owned(), (f64::from(row.sessions), of(row)));
    curves(rows.iter().map(place))
}

/// Curves over the shares, if there are several at one number of sessions.
fn over_shares(rows: &[&Row<'_>], of: impl Fn(&Row<'_>) -> f64) -> Option<Vec<(String, Points)>> {
    if rows.windows(2).any(|two| two[0].sessions != two[1].sessions) {
        return None;
    }
    let measured = rows.iter().map(|row| Measured { cache: row.cache, value: of(row) });
    shares::curves(&measured.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::measurement::{Plan, StepFigures};
    use super::super::report;
    use super::super::servers::ServerKind;
    use super::*;
    use crate::experiments::files::Setup;
    use crate::peers::cache::{Cache, named};

    fn caches() -> Vec<Box<dyn Cache>> {
        ["page-cache", "ramfold:compressed-share=80%", "ramfold:compressed-share=0%"]
            .map(|name| named(name).unwrap())
            .into()
    }

    fn rows<'a>(caches: &'a [Box<dyn Cache>], sessions: &[u32]) -> Vec<Row<'a>> {
        let setup = Setup { memory_bytes: 1, disk: None, ramfold: Path::new("ramfold") };
        let plan = Plan { setup, sessions, scale: 1, seconds: 1, warm_seconds: 0 };
        let run = |nth: u32, sessions: u32| StepFigures {
            pages_per_s: f64::from(nth * 1000 + sessions),
            disk_bytes: 1_000_000,
            seconds: 1.0,
            ..StepFigures::default()
        };
        let of_cache = |nth| vec![sessions.iter().map(|&sessions| run(nth, sessions)).collect()];
        let found: Vec<_> = (0..caches.len() as u32).map(of_cache).collect();
        report::rows(ServerKind::Nginx, &plan, caches, &found)
    }

    #[test]
    fn the_load_is_below_the_curves_of_all_peers() {
        let caches = caches();
        let rows = rows(&caches, &[800, 400]);
        let all: Vec<&Row<'_>> = rows.iter().collect();
        assert!(over_shares(&all, |row| row.pages_per_s).is_none());
        let curves = sessions(&all, |row| row.pages_per_s);
        assert_eq!(curves.len(), 3);
        assert_eq!(curves[0], ("page-cache".to_owned(), vec![(400.0, 400.0), (800.0, 800.0)]));
        let svg = plot(&rows);
        for expected in ["nginx: throughput", "nginx: disk", "sessions", "page-cache"] {
            assert!(svg.contains(expected), "{expected} is missing");
        }
    }

    #[test]
    fn shares_are_below_the_curves_at_one_load() {
        let caches = caches();
        let rows = rows(&caches, &[400]);
        let all: Vec<&Row<'_>> = rows.iter().collect();
        let curves = over_shares(&all, |row| row.pages_per_s).unwrap();
        assert_eq!(curves[0], ("page-cache".to_owned(), vec![(0.0, 400.0), (80.0, 400.0)]));
        let ramfold = ("ramfold of a fixed share".to_owned(), vec![(0.0, 2400.0), (80.0, 1400.0)]);
        assert_eq!(curves[1], ramfold);
        assert!(plot(&rows).contains("share of the memory"));
    }
}
