//! Axes: where values lie, and which are marked.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::Ranged;

/// How values become places on an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// Logarithmic; values below `min` are drawn at `min`.
    Log,
}

/// One axis.
#[derive(Clone)]
pub struct Axis {
    /// Its title.
    pub label: String,
    /// First value.
    pub min: f64,
    /// Last value.
    pub max: f64,
    /// Distances on it.
    pub scale: Scale,
    /// Marked values and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From zero, with three to six round numbers.
    pub fn linear(label: &str, max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 5.0);
        let count = (max / step + 1e-9).floor() as usize;
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let tick = |i| (step * i as f64, format!("{:.decimals$}", step * i as f64));
        Axis {
            label: label.into(),
            min: 0.0,
            max,
            scale: Scale::Linear,
            ticks: (0..=count).map(tick).collect(),
        }
    }

    /// By the logarithm, with the powers of `base` written as `name` says.
    pub fn log(label: &str, min: f64, max: f64, base: f64, name: impl Fn(f64) -> String) -> Self {
        let first = (min.ln() / base.ln() - 1e-9).ceil() as i32;
        let last = (max.ln() / base.ln() + 1e-9).floor() as i32;
        let tick = |power| (base.powi(power), name(base.powi(power)));
        Axis {
            label: label.into(),
            min,
            max: max.max(2.0 * min),
            scale: Scale::Log,
            ticks: (first..=last).map(tick).collect(),
        }
    }

    /// Where a value lies, from 0 to 1 between the ends.
    pub(super) fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.min) / (self.max - self.min),
            Scale::Log => (value.max(self.min) / self.min).ln() / (self.max / self.min).ln(),
        }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.place(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|tick| tick.0).collect()
    }

    fn range(&self) -> Range<f64> {
        self.min..self.max
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    let round = factors
        .into_iter()
        .find(|factor| factor * power >= step * (1.0 - 1e-9));
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_round_and_within() {
        for (max, expected) in [
            (1.0, "0.0 0.2 0.4 0.6 0.8 1.0"),
            (1480.0, "0 500 1000"),
            (0.07, "0.00 0.02 0.04 0.06"),
        ] {
            let ticks = Axis::linear("", max).ticks;
            let names: Vec<String> = ticks.into_iter().map(|(_, name)| name).collect();
            assert_eq!(names.join(" "), expected);
        }
    }

    #[test]
    fn logarithmic_ticks_are_the_powers_within() {
        let axis = Axis::log("", 1.0, 1e6, 10.0, |value| value.to_string());
        let values: Vec<f64> = axis.ticks.iter().map(|tick| tick.0.round()).collect();
        assert_eq!(values, [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        assert_eq!(axis.place(0.0), 0.0);
        assert!((axis.place(1e3) - 0.5).abs() < 1e-12);
    }
}
