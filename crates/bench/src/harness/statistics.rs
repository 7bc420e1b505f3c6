//! Order statistics of repeated measurements.

use serde::Serialize;

/// Five numbers of a sample; all in the unit of the sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
}

/// Summarises a sample; `None` when it is empty.
pub(crate) fn summarise(sample: &[f64]) -> Option<Summary> {
    let mut sorted = sample.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some(Summary {
        median: quantile(&sorted, 0.5)?,
        min: *sorted.first()?,
        max: *sorted.last()?,
        lower_quartile: quantile(&sorted, 0.25)?,
        upper_quartile: quantile(&sorted, 0.75)?,
    })
}

/// The median; `None` when the sample is empty.
pub(crate) fn median(sample: &[f64]) -> Option<f64> {
    summarise(sample).map(|summary| summary.median)
}

/// The median of a figure of the items; `None` when there are none.
pub(crate) fn median_of<T>(items: &[T], of: impl Fn(&T) -> f64) -> Option<f64> {
    median(&items.iter().map(of).collect::<Vec<f64>>())
}

/// The median of a figure that only some of the items have; `None` when none has it.
pub(crate) fn median_of_told<T>(items: &[T], of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    median(&items.iter().filter_map(of).collect::<Vec<f64>>())
}

/// Quantile of a sorted sample, linear between the two nearest order statistics.
fn quantile(sorted: &[f64], fraction: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = fraction * last as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    let weight = position - position.floor();
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_told_does_not_count() {
        let told = |value: &f64| (*value > 0.0).then_some(*value);
        assert_eq!(median_of_told(&[3.0, -1.0, 1.0, 2.0], told), Some(2.0));
        assert_eq!(median_of_told(&[-1.0], told), None);
    }

    #[test]
    fn odd_even_and_empty_samples() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        let summary = summarise(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((summary.min, summary.max), (1.0, 5.0));
        assert_eq!((summary.lower_quartile, summary.upper_quartile), (2.0, 4.0));
    }
}
