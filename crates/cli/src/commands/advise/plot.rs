//! Advice as curves.

use ramfold_advise::advice::{Advice, Row};
use ramfold_plot::{Panel, Points};

const MIB: f64 = (1 << 20) as f64;

/// Run time with its interval, and the pool, by memory.
pub(super) fn plot(advice: &Advice) -> String {
    let points = |figure: &dyn Fn(&Row) -> Option<f64>| -> Points {
        let held = advice.rows.iter().rev().filter(|row| row.cannot_hold_probability < 1.0);
        held.filter_map(|row| Some((row.memory_bytes as f64 / MIB, figure(row)?))).collect()
    };
    let curve =
        |name: &str, figure: &dyn Fn(&Row) -> Option<f64>| (name.to_owned(), points(figure));
    let bytes = |bytes: u64| Some(bytes as f64 / MIB);
    ramfold_plot::figure(vec![
        Panel {
            title: "Run time, in that with all memory".to_owned(),
            x: "memory, MiB",
            y: "times as long",
            logarithmic: false,
            curves: vec![
                curve("low (5 %)", &|row| row.slowdown_low),
                curve("ramfold", &|row| row.slowdown),
                curve("high (95 %)", &|row| row.slowdown_high),
                curve("zram", &|row| row.zram_slowdown),
            ],
        },
        Panel {
            title: "Greatest size of the pool".to_owned(),
            x: "memory, MiB",
            y: "pool, MiB",
            logarithmic: false,
            curves: vec![
                curve("low (5 %)", &|row| bytes(row.pool_bytes_low)),
                curve("ramfold", &|row| bytes(row.pool_bytes)),
                curve("high (95 %)", &|row| bytes(row.pool_bytes_high)),
            ],
        },
    ])
}
