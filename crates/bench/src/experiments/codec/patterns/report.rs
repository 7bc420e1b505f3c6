//! The tables and the bars.

use super::times::Spread;
use super::{DictionaryShares, Patterns, TABLE_I};
use crate::harness::table;

/// The tables for people.
pub(in crate::experiments::codec) fn tables(patterns: &Patterns) -> String {
    let percent = |value: f64| format!("{value:.1}");
    let mut figure = table::of_numbers(&["words whose bytes are", "%"], 1);
    for share in patterns.zero_patterns.iter().filter(|share| share.percent >= 0.05) {
        figure.add_row([share.pattern.clone(), percent(share.percent)]);
    }
    let mut dictionaries = table::of_numbers(
        &["dictionary", "mmmm", "mmmx", "mmxx", "xmxx", "no match", "matches"],
        1,
    );
    for shares in &patterns.dictionaries {
        let DictionaryShares { entries, ways, mmmm, mmmx, mmxx, xmxx, miss } = *shares;
        let name = match ways {
            1 => format!("{entries} direct-mapped"),
            _ => format!("{entries} {ways}-way"),
        };
        let shares = [mmmm, mmmx, mmxx, xmxx, miss, mmmm + mmmx + mmxx].map(percent);
        dictionaries.add_row([vec![name], shares.to_vec()].concat());
    }
    let mut codes = table::of_numbers(&["code", "pattern", "bits", "%", "paper %"], 1);
    for code in &patterns.codes {
        let (here, paper) = (percent(code.percent), percent(code.paper_percent));
        codes.add_row([code.code, code.pattern, &code.bits.to_string(), &here, &paper]);
    }
    let mut alignments =
        table::of_numbers(&["data", "compress", "decompress", "paper compress", "decompress"], 1);
    for times in &patterns.alignments {
        let spread = |spread: Spread| format!("{:.2} +- {:.2}", spread.average, spread.deviation);
        alignments.add_row([
            times.alignment.to_owned(),
            spread(times.compress_us),
            spread(times.decompress_us),
            spread(times.paper_compress_us),
            spread(times.paper_decompress_us),
        ]);
    }
    format!(
        "{}: {} pages that are not same-filled\n\n\
         Zero bytes (Figure 2), z zero, x not, the highest byte first\n{figure}\n\n\
         Dictionaries (Figure 2), percent of all words\n{dictionaries}\n\n\
         Codes (Table I): {:.1} % of the pages, {:.1} % in the paper\n{codes}\n\n\
         Alignment (Table II), microseconds a page\n{alignments}\n",
        patterns.file,
        patterns.pages,
        patterns.coded_percent,
        TABLE_I.iter().map(|(_, _, bits, percent)| percent * f64::from(*bits) / 32.0).sum::<f64>(),
    )
}

/// Table I as bars: the paper's, and each file's.
pub(in crate::experiments::codec) fn plot(files: &[Patterns]) -> String {
    use kuva::backend::svg::SvgBackend;
    use kuva::plot::BarPlot;
    use kuva::render::layout::Layout;
    use kuva::render::plots::Plot;
    use kuva::render::render::render_multiple;

    const COLOURS: [&str; 8] = [
        "black",
        "steelblue",
        "darkorange",
        "seagreen",
        "firebrick",
        "mediumpurple",
        "sienna",
        "teal",
    ];
    let mut names = vec!["paper".to_owned()];
    names.extend(files.iter().map(|patterns| short(&patterns.file)));
    let mut bars = BarPlot::new();
    for (nth, (_, pattern, _, paper)) in TABLE_I.iter().enumerate() {
        let here = files.iter().map(|patterns| patterns.codes[nth].percent);
        let heights = [*paper].into_iter().chain(here);
        let colours = COLOURS.iter().cycle();
        let group: Vec<(f64, &str)> = heights.zip(colours.copied()).collect();
        bars = bars.with_group(*pattern, group);
    }
    let bars = bars.with_legend(names.iter().map(String::as_str).collect());
    let plots = vec![Plot::Bar(bars)];
    let layout = Layout::auto_from_plots(&plots)
        .with_title("Patterns of words (PBPM, Table I)")
        .with_y_label("percent of words");
    SvgBackend.render_scene(&render_multiple(plots, layout))
}

fn short(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.split('.').next().unwrap_or(name).to_owned()
}
