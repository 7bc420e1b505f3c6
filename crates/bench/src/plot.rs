//! Rows of results as curves, one for each peer: time against memory, and how long accesses take.

use kuva::backend::svg::SvgBackend;
use kuva::plot::{LegendPosition, LinePlot};
use kuva::render::figure::Figure;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;

use crate::report::Row;

/// Of one peer each, in the order of the rows.
const COLOURS: [&str; 8] =
    ["grey", "steelblue", "darkorange", "seagreen", "mediumpurple", "firebrick", "sienna", "teal"];

pub type Points = Vec<(f64, f64)>;

/// One panel: a title, names of the axes, curves.
pub struct Panel {
    pub title: String,
    pub x: &'static str,
    pub y: &'static str,
    pub logarithmic: bool,
    pub curves: Vec<(String, Points)>,
}

/// An SVG of all workloads, one below the other.
pub fn plot(rows: &[Row]) -> String {
    let mut workloads: Vec<&str> = rows.iter().map(|row| row.workload.as_str()).collect();
    workloads.dedup();
    let panels = workloads.iter().flat_map(|workload| {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.workload == *workload).collect();
        [times(workload, &rows)].into_iter().chain(latencies(workload, &rows))
    });
    figure(panels.collect())
}

/// Puts points that have the same name into one curve, from left to right.
pub fn curves(named: impl IntoIterator<Item = (String, (f64, f64))>) -> Vec<(String, Points)> {
    let mut curves: Vec<(String, Points)> = Vec::new();
    for (name, point) in named {
        match curves.iter_mut().find(|(of, _)| *of == name) {
            Some((_, points)) => points.push(point),
            None => curves.push((name, vec![point])),
        }
    }
    for (_, points) in &mut curves {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    curves
}

/// An SVG of the panels that have curves, two beside each other.
pub fn figure(mut panels: Vec<Panel>) -> String {
    panels.retain(|panel| panel.curves.iter().any(|(_, points)| points.len() > 1));
    let columns = panels.len().clamp(1, 2);
    let (plots, layouts): (Vec<Vec<Plot>>, Vec<Layout>) = panels.iter().map(draw).unzip();
    let figure = Figure::new(panels.len().div_ceil(columns).max(1), columns)
        .with_plots(plots)
        .with_layouts(layouts)
        .with_cell_size(640.0, 420.0);
    SvgBackend.render_scene(&figure.render())
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

fn draw(panel: &Panel) -> (Vec<Plot>, Layout) {
    // A peer keeps its colour where it has no points.
    let plots: Vec<Plot> = panel
        .curves
        .iter()
        .zip(COLOURS.iter().cycle())
        .filter(|((_, points), _)| points.len() > 1)
        .map(|((peer, points), colour)| {
            let line = LinePlot::new().with_data(points.iter().copied());
            Plot::Line(line.with_color(*colour).with_legend(peer.as_str()))
        })
        .collect();
    let layout = Layout::auto_from_plots(&plots)
        .with_title(panel.title.as_str())
        .with_x_label(panel.x)
        .with_y_label(panel.y)
        .with_legend_position(LegendPosition::InsideTopRight);
    let layout = if panel.logarithmic { layout.with_log_scale() } else { layout };
    (plots, layout)
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
