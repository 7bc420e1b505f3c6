//! Rows of results as curves, one for each peer: time against memory, and how long accesses take.

use super::row::Row;
use ramfold_plot::{Panel, Points, figure};

/// An SVG of all workloads, one below the other.
pub(super) fn plot(rows: &[Row]) -> String {
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.dedup();
    let panels = workloads.iter().flat_map(|workload| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.workload == *workload).collect();
        [times(workload, &rows)].into_iter().chain(latencies(workload, &rows))
    });
    figure(panels.collect())
}

/// Time against memory, as shares of time and need without a cap.
fn times(workload: &str, rows: &[&Row]) -> Panel {
    Panel {
        title: format!("{workload}: time"),
        x: "memory, percent of need",
        y: "time, multiple of that without a cap",
        logarithmic: false,
        curves: of_each_peer(rows, |rows| {
            let mut points: Points = rows
                .iter()
                .filter_map(|row| {
                    let share = row.asked_total_bytes? as f64 / row.need_bytes as f64;
                    Some((share * 100.0, row.ratio_to_none.or(row.seconds_median)?))
                })
                .collect();
            points.sort_by(|one, other| one.0.total_cmp(&other.0));
            points
        }),
    }
}

/// For each amount of memory, the share of the accesses that take longer than a time.
fn latencies(workload: &str, rows: &[&Row]) -> Vec<Panel> {
    let mut memories: Vec<&str> = rows.iter().map(|row| row.memory.as_str()).collect();
    memories.dedup();
    let panel = |memory: &str| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.memory == memory).copied().collect();
        Panel {
            title: format!("{workload} in {memory}: accesses"),
            x: "nanoseconds",
            y: "share of accesses that take longer",
            logarithmic: true,
            curves: of_each_peer(&rows, |rows| {
                rows.iter().flat_map(|row| longer_than(&row.latency_histogram)).collect()
            }),
        }
    };
    memories.into_iter().map(panel).collect()
}

fn longer_than(histogram: &[(u64, u64)]) -> Points {
    let total: u64 = histogram.iter().map(|(_, count)| count).sum();
    let mut left = total;
    let points = histogram.iter().map(|&(ns, count)| {
        left -= count;
        (ns.max(1) as f64, left as f64 / total as f64)
    });
    // There is no logarithm of nothing.
    points.filter(|(_, share)| *share > 0.0).collect()
}

fn of_each_peer(rows: &[&Row], points: impl Fn(&[&Row]) -> Points) -> Vec<(String, Points)> {
    let mut peers: Vec<&str> = Vec::new();
    for row in rows {
        if !peers.contains(&row.peer.as_str()) {
            peers.push(&row.peer);
        }
    }
    let of = |peer: &str| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.peer == peer).copied().collect();
        (peer.to_owned(), points(&rows))
    };
    peers.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(peer: &str, memory: u64, seconds: f64) -> Row {
        Row {
            workload: "zipf-rw".to_owned(),
            peer: peer.to_owned(),
            memory: format!("{memory}%"),
            need_bytes: 100,
            asked_total_bytes: Some(memory),
            ratio_to_none: Some(seconds),
            latency_histogram: vec![(100, 900), (10_000, 99), (1_000_000, 1)],
            ..Row::default()
        }
    }

    #[test]
    fn every_peer_has_its_curves() {
        let rows = [
            row("zram-lz4", 50, 3.0),
            row("ramfold", 50, 2.0),
            row("zram-lz4", 20, 9.0),
            row("ramfold", 20, 5.0),
        ];
        let all: Vec<&Row> = rows.iter().collect();
        let curves = times("zipf-rw", &all).curves;
        assert_eq!(curves[1], ("ramfold".to_owned(), vec![(20.0, 5.0), (50.0, 2.0)]));
        assert_eq!(latencies("zipf-rw", &all).len(), 2);
        let svg = plot(&rows);
        for expected in ["<svg", "zipf-rw: time", "zipf-rw in 20%: accesses", "zram-lz4", "ramfold"]
        {
            assert!(svg.contains(expected), "{expected} is missing");
        }
    }

    #[test]
    fn shares_of_longer_accesses_fall() {
        let shares = longer_than(&[(100, 900), (10_000, 99), (1_000_000, 1)]);
        assert_eq!(shares, [(100.0, 0.1), (10_000.0, 0.001)]);
    }

    #[test]
    fn nothing_to_draw_is_an_empty_figure() {
        assert!(plot(&[]).contains("<svg"));
    }
}
