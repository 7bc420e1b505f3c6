//! What trials correct: the figures of all rows, by what was measured at a few of them.
//!
//! What is lost of run time and of processor time, and the faults in a second of the run with all
//! memory, are multiplied by `measured / predicted`. That factor is known where something was
//! measured. Between two such sizes it is interpolated, in the logarithms of factor and memory;
//! beyond them it stays.
//!
//! What was seen of a program and is predicted to cost too much or too little has the right shape.
//! What was not seen has none: a factor of 5 at a size where little was predicted would be far too
//! much where much was. So no factor is greater than [`FACTOR_MAX`], its logarithm counts in part
//! below twice the noise of a run, and the rest of what was measured grows with the memory that is
//! lacking:
//!
//! ```text
//! corrected(m) = factor(m) * predicted(m) + rest(m) * (1 - m / need)
//! ```
//!
//! The noise of a run is left out of that rest.
//!
//! The pool is off by an amount and not by a factor: by objects that are compressed in haste while
//! the program grows, and by free slots. The difference is interpolated as the factor is; with more
//! memory than was tried it goes to nothing as the memory that is lacking does.
//!
//! A size that was measured comes out as measured.

#[cfg(test)]
mod tests;

use super::Row;

/// Of a run time and of a processor time: what runs of the same program differ by where nothing is
/// lost.
pub(super) const RUN_NOISE: f64 = 0.05;
/// To how much on both sides of a run time that was measured the mean of many runs may be, with a
/// chance of 90 %: found by decision 088.
const MEAN_APART: f64 = 0.1;
/// Faults in a second: fewer say nothing.
const FAULTS_NOISE: f64 = 100.0;
/// And of the pool, in bytes.
const POOL_NOISE: f64 = (1 << 20) as f64;
/// Of the pool as a part of it.
const POOL_RUN_NOISE: f64 = 0.1;
/// The greatest factor; found by decision 088.
const FACTOR_MAX: f64 = 2.0;
/// The least one: more than predictions were ever seen to be too much by.
const FACTOR_MIN: f64 = 0.125;
/// So far from all measured sizes, in the logarithm of memory, an interval is as wide as it is
/// without trials: at half or twice the memory. Nearer it is narrower by the square root of the
/// distance, as if the factor went at random from there.
const REACH: f64 = std::f64::consts::LN_2;

/// What was measured of a size that has a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    /// The memory. Bytes.
    pub memory_bytes: u64,
    /// Run time as a multiple of that with all memory.
    pub slowdown: f64,
    /// The same of processor time.
    pub processor: Option<f64>,
    /// Faults in a second of the run with all memory.
    pub faults: f64,
    /// The pool's greatest size. Bytes.
    pub pool_bytes: f64,
    /// It was ended before its time: each figure is at least that.
    pub at_least: bool,
}

/// Corrects rows, which go from much memory to little. What is predicted for less memory is never
/// faster than for more.
pub(super) fn correct(rows: &mut [Row], need_bytes: u64, measured: &[Measured]) {
    let pins = |of: fn(&Measured) -> Option<f64>| -> Vec<Pin> {
        let pin = |trial: &Measured| {
            let row = rows.iter().position(|row| row.memory_bytes == trial.memory_bytes)?;
            Some(Pin { row, value: of(trial)?.max(0.0), at_least: trial.at_least })
        };
        measured.iter().filter_map(pin).collect()
    };
    let time_pins = pins(|trial| Some(trial.slowdown - 1.0));
    if time_pins.is_empty() {
        return;
    }
    let figure_by = |way: Way, noise: f64, of: fn(&Row) -> Option<f64>| {
        let predicted = rows.iter().map(of).collect::<Option<Vec<f64>>>()?;
        let memory = rows.iter().map(|row| row.memory_bytes as f64).collect();
        Some(Figure { need: need_bytes as f64, memory, predicted, noise, way })
    };
    let figure = |noise: f64, of: fn(&Row) -> Option<f64>| figure_by(Way::Factor, noise, of);
    let time = figure(RUN_NOISE, |row| Some(row.slowdown? - 1.0));
    let time = time.map(|time| time.corrected(&time_pins).made_monotone());
    let processor = figure(RUN_NOISE, |row| Some(row.processor? - 1.0));
    let processor = processor.map(|figure| {
        figure.corrected(&pins(|trial| Some(trial.processor? - 1.0))).made_monotone()
    });
    let faults = figure(FAULTS_NOISE, |row| Some(row.faults_per_second? * row.slowdown?));
    let faults =
        faults.map(|figure| figure.corrected(&pins(|trial| Some(trial.faults))).made_monotone());
    let pool = figure_by(Way::Difference, POOL_NOISE, |row| Some(row.pool_bytes as f64));
    let pool = pool.map(|figure| figure.corrected(&pins(|trial| Some(trial.pool_bytes))));
    let reach = Reach::of(rows, &time_pins);
    if let Some(time) = time {
        set_times(rows, &time, &reach);
        keep_bounds(rows, &time_pins);
    }
    if let Some(processor) = processor {
        set(rows, &processor, |row, lost| row.processor = Some(1.0 + lost));
    }
    if let Some(faults) = faults {
        set(rows, &faults, |row, faults| {
            row.faults_per_second = row.slowdown.map(|slowdown| faults / slowdown);
        });
        // zram and swap bring the same pages back.
        for (row, factor) in rows.iter_mut().zip(&faults.factors) {
            let more = |slowdown: f64| 1.0 + (slowdown - 1.0) * factor;
            row.zram_slowdown = row.zram_slowdown.map(more);
            row.swap_slowdown = row.swap_slowdown.map(more);
        }
    }
    if let Some(pool) = pool {
        set_pool(rows, &pool, &reach);
    }
    let held = time_pins.iter().filter(|pin| !pin.at_least).map(|pin| pin.row).max();
    // What has held the program once holds it, and so does more.
    for row in rows.iter_mut().take(held.map_or(0, |row| row + 1)) {
        row.cannot_hold_probability = 0.0;
    }
}

fn set(rows: &mut [Row], corrected: &Corrected, to: impl Fn(&mut Row, f64)) {
    rows.iter_mut().zip(&corrected.values).for_each(|(row, &value)| to(row, value));
}

/// What was measured of a figure, and in which row.
#[derive(Clone, Copy, Debug)]
struct Pin {
    row: usize,
    value: f64,
    at_least: bool,
}

/// How a figure is corrected.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// By `measured / predicted`.
    Factor,
    /// By `measured - predicted`.
    Difference,
}

/// A figure as it was predicted, of each row.
struct Figure {
    need: f64,
    memory: Vec<f64>,
    predicted: Vec<f64>,
    noise: f64,
    way: Way,
}

/// A size at which the correction is known.
#[derive(Clone, Copy)]
struct Knot {
    ln_memory: f64,
    ln_factor: f64,
    rest: f64,
}

/// The figure as it is taken to be.
struct Corrected {
    values: Vec<f64>,
    factors: Vec<f64>,
    /// Of what was corrected: what at least was so, and was to be expected anyway, is not in here.
    pins: Vec<Pin>,
    /// How much greater the figure has become, by row, what is in the noise apart.
    growth: Vec<f64>,
}

impl Figure {
    fn corrected(&self, pins: &[Pin]) -> Corrected {
        let mut used: Vec<Pin> = pins.iter().copied().filter(|pin| !pin.at_least).collect();
        for pin in pins.iter().filter(|pin| pin.at_least) {
            if self.with(&used).values[pin.row] < pin.value {
                used.push(*pin);
            }
        }
        self.with(&used)
    }

    fn with(&self, pins: &[Pin]) -> Corrected {
        let mut knots: Vec<Knot> = pins.iter().map(|pin| self.knot(pin)).collect();
        knots.sort_by(|one, other| one.ln_memory.total_cmp(&other.ln_memory));
        let most = knots.last().map_or(0.0, |knot| self.lacking(knot.ln_memory.exp()));
        let weight = |memory: f64| match self.way {
            Way::Factor => self.lacking(memory),
            Way::Difference if most > 0.0 => (self.lacking(memory) / most).min(1.0),
            Way::Difference => 1.0,
        };
        let rows = self.memory.iter().zip(&self.predicted);
        let (factors, mut values): (Vec<f64>, Vec<f64>) = rows
            .map(|(&memory, &predicted)| {
                let Knot { ln_factor, rest, .. } = between(&knots, memory.ln());
                let factor = ln_factor.exp();
                (factor, (factor * predicted + rest * weight(memory)).max(0.0))
            })
            .unzip();
        // But for rounding and noise it is so.
        pins.iter().for_each(|pin| values[pin.row] = pin.value);
        let floor = |value: &f64| value.max(self.noise);
        let growth = values.iter().zip(&self.predicted);
        let growth = growth.map(|(value, predicted)| floor(value) / floor(predicted)).collect();
        Corrected { values, factors, pins: pins.to_vec(), growth }
    }

    fn knot(&self, pin: &Pin) -> Knot {
        let (memory, predicted) = (self.memory[pin.row], self.predicted[pin.row].max(0.0));
        if self.way == Way::Difference {
            let rest = pin.value - predicted;
            return Knot { ln_memory: memory.ln(), ln_factor: 0.0, rest };
        }
        let certain = (predicted / (2.0 * self.noise)).min(1.0);
        let ratio = pin.value.max(self.noise) / predicted.max(self.noise);
        let ln_factor = certain * ratio.clamp(FACTOR_MIN, FACTOR_MAX).ln();
        let lacking = self.lacking(memory);
        let left = pin.value - ln_factor.exp() * predicted;
        // What may be noise goes no further than the row in which it was measured.
        let left = (left - self.noise).max(0.0);
        let rest = if lacking > 0.0 { left / lacking } else { 0.0 };
        Knot { ln_memory: memory.ln(), ln_factor, rest }
    }

    fn lacking(&self, memory: f64) -> f64 {
        (1.0 - memory / self.need).max(0.0)
    }
}

/// The correction at a size, from those that are known.
fn between(knots: &[Knot], ln_memory: f64) -> Knot {
    let above = knots.partition_point(|knot| knot.ln_memory < ln_memory);
    let (below, above) = (above.checked_sub(1).map(|nth| knots[nth]), knots.get(above).copied());
    match (below, above) {
        (Some(below), Some(above)) => {
            let part = (ln_memory - below.ln_memory) / (above.ln_memory - below.ln_memory);
            let line = |one: f64, other: f64| one + part * (other - one);
            Knot {
                ln_memory,
                ln_factor: line(below.ln_factor, above.ln_factor),
                rest: line(below.rest, above.rest),
            }
        }
        (Some(only), None) | (None, Some(only)) => only,
        (None, None) => Knot { ln_memory, ln_factor: 0.0, rest: 0.0 },
    }
}

impl Corrected {
    /// With less memory the figure is never smaller. Where measured figures are, by the noise of
    /// runs, they come to their mean.
    fn made_monotone(mut self) -> Corrected {
        self.pins.sort_by_key(|pin| pin.row);
        // Pools of neighbours that violate the order: value, pins.
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for pin in &self.pins {
            pools.push((pin.value, 1));
            while let [.., (one, ones), (other, others)] = pools[..]
                && one > other
            {
                let count = ones + others;
                let mean = (one * ones as f64 + other * others as f64) / count as f64;
                pools.truncate(pools.len() - 2);
                pools.push((mean, count));
            }
        }
        let pooled = pools.iter().flat_map(|&(value, count)| std::iter::repeat_n(value, count));
        for (pin, value) in self.pins.iter_mut().zip(pooled) {
            pin.value = value;
        }
        let mut least = 0.0f64;
        for (row, value) in self.values.iter_mut().enumerate() {
            for pin in &self.pins {
                if pin.row <= row {
                    *value = value.max(pin.value);
                }
                if pin.row >= row {
                    *value = value.min(pin.value);
                }
            }
            least = least.max(*value);
            *value = least;
        }
        self
    }
}

/// How wide intervals are, by row, as a part of what they are without trials.
struct Reach(Vec<f64>);

impl Reach {
    /// By the distance to what was measured to its end.
    fn of(rows: &[Row], pins: &[Pin]) -> Reach {
        let ln = |row: &Row| (row.memory_bytes as f64).ln();
        let part = |row: &Row| {
            let measured = pins.iter().filter(|pin| !pin.at_least);
            let distances = measured.map(|pin| (ln(row) - ln(&rows[pin.row])).abs());
            distances.fold(REACH, f64::min) / REACH
        };
        Reach(rows.iter().map(|row| part(row).sqrt()).collect())
    }
}

fn set_times(rows: &mut [Row], time: &Corrected, reach: &Reach) {
    let first = time.pins.first().map_or(0, |pin| pin.row);
    // What is lost with more memory than was tried is not known worse than in proportion.
    let all_noise = time.values[first].max(RUN_NOISE);
    for (nth, row) in rows.iter_mut().enumerate() {
        let (Some(before), Some(low), Some(high)) =
            (row.slowdown, row.slowdown_low, row.slowdown_high)
        else {
            continue;
        };
        let slowdown = 1.0 + time.values[nth];
        let part = time.growth[nth] * reach.0[nth];
        let share = if nth < first { (time.values[nth] / all_noise).min(1.0) } else { 1.0 };
        let noise = MEAN_APART * slowdown * share;
        row.slowdown = Some(slowdown);
        row.slowdown_low = Some((slowdown - ((before - low) * part).hypot(noise)).max(1.0));
        row.slowdown_high = Some(slowdown + ((high - before) * part).hypot(noise));
    }
}

/// Keeps the bounds of intervals in order: more memory than was measured is as fast at least, and
/// less is as slow.
fn keep_bounds(rows: &mut [Row], pins: &[Pin]) {
    for pin in pins {
        let low = match pin.at_least {
            true => Some((1.0 + pin.value) * (1.0 - MEAN_APART)),
            false => rows[pin.row].slowdown_low,
        };
        let high = rows[pin.row].slowdown_high.filter(|_| !pin.at_least);
        for (nth, row) in rows.iter_mut().enumerate() {
            if nth >= pin.row {
                row.slowdown_low = row.slowdown_low.zip(low).map(|(one, other)| one.max(other));
            }
            if nth <= pin.row
                && let Some(high) = high
            {
                row.slowdown_high = row.slowdown_high.map(|own| own.min(high));
            }
        }
    }
    let (mut least_low, mut least_high) = (1.0f64, 1.0f64);
    for row in rows {
        let Some(slowdown) = row.slowdown else { continue };
        least_low = row.slowdown_low.map_or(least_low, |low| low.max(least_low)).min(slowdown);
        least_high = row.slowdown_high.map_or(least_high, |high| high.max(least_high));
        least_high = least_high.max(slowdown);
        (row.slowdown_low, row.slowdown_high) = (Some(least_low), Some(least_high));
    }
}

fn set_pool(rows: &mut [Row], pool: &Corrected, reach: &Reach) {
    for (nth, row) in rows.iter_mut().enumerate() {
        let [low, before, high] =
            [row.pool_bytes_low, row.pool_bytes, row.pool_bytes_high].map(|bytes| bytes as f64);
        let value = pool.values[nth].min(row.memory_bytes as f64);
        let part = pool.growth[nth] * reach.0[nth];
        let noise = POOL_RUN_NOISE * value;
        row.pool_bytes = value as u64;
        row.pool_bytes_low = (value - ((before - low) * part).hypot(noise)).max(0.0) as u64;
        row.pool_bytes_high = (value + ((high - before) * part).hypot(noise)) as u64;
        row.resident_bytes = row.resident_bytes.min(row.memory_bytes - row.pool_bytes);
    }
}
