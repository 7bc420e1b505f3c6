//! Curves in panels, as SVG.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

use kuva::backend::svg::SvgBackend;
use kuva::plot::{LegendPosition, LinePlot};
use kuva::render::figure::Figure;
use kuva::render::layout::Layout;
use kuva::render::plots::Plot;

/// Of one peer each, in the order of the rows.
const COLOURS: [&str; 8] =
    ["grey", "steelblue", "darkorange", "seagreen", "mediumpurple", "firebrick", "sienna", "teal"];

/// Points of a curve: x and y.
pub type Points = Vec<(f64, f64)>;

/// Some curves over the same axes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// Name of the horizontal axis.
    pub x: &'static str,
    /// Name of the vertical axis.
    pub y: &'static str,
    /// Whether both axes are logarithmic.
    pub logarithmic: bool,
    /// The curves, each with the name that the legend has.
    pub curves: Vec<(String, Points)>,
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
