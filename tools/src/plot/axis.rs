//! Axes: positions of values, and tick marks.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::Ranged;

/// The mapping of values to positions on an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; values below `min` are drawn at `min`.
    Log,
}

/// One axis.
#[derive(Clone)]
pub struct Axis {
    /// The title.
    pub label: String,
    /// The first value.
    pub min: f64,
    /// The last value.
    pub max: f64,
    /// The mapping of values to positions.
    pub scale: Scale,
    /// Tick marks: values and their labels.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Creates an axis from zero to a round number, with three to seven ticks.
    pub fn linear(label: &str, max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 5.0);
        let count = (max / step - 1e-9).ceil() as usize;
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let tick = |i| (step * i as f64, format!("{:.decimals$}", step * i as f64));
        Axis {
            label: label.into(),
            min: 0.0,
            max: step * count as f64,
            scale: Scale::Linear,
            ticks: (0..=count).map(tick).collect(),
        }
    }

    /// Creates a logarithmic axis, with ticks at both ends and at the powers of `base` in between, labelled by `name`.
    pub fn log(label: &str, min: f64, max: f64, base: f64, name: impl Fn(f64) -> String) -> Self {
        /// Ticks that are closer than this to an end are left out, because their labels would overlap.
        const CLOSE: f64 = 0.07;
        let mut axis = Axis {
            label: label.into(),
            min,
            max: max.max(2.0 * min),
            scale: Scale::Log,
            ticks: Vec::new(),
        };
        let first = (min.ln() / base.ln()).ceil() as i32;
        let last = (axis.max.ln() / base.ln()).floor() as i32;
        let powers = (first..=last).map(|power| base.powi(power));
        let between = powers.filter(|&value| (CLOSE..1.0 - CLOSE).contains(&axis.place(value)));
        let values = std::iter::once(min).chain(between).chain([axis.max]);
        axis.ticks = values.map(|value| (value, name(value))).collect();
        axis
    }

    /// The position of a value, from 0 to 1 between the ends.
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

/// The largest number of the form 1, 2 or 5 times a power of ten that is at most `value`.
pub fn round_below(value: f64) -> f64 {
    let above = round_step(value);
    let lower = [above / 2.0, above / 2.5];
    let fits = |x: &f64| *x <= value * (1.0 + 1e-9);
    let is_round = |x: &f64| (round_step(*x) / x - 1.0).abs() < 1e-6;
    let mut candidates = std::iter::once(above).chain(lower).filter(is_round);
    candidates.find(fits).unwrap_or(value)
}

/// The smallest number of the form 1, 2 or 5 times a power of ten that is at least `step`.
pub fn round_step(step: f64) -> f64 {
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
    fn linear_ticks_are_round_up_to_the_end() {
        for (max, expected) in [
            (1.0, "0.0 0.2 0.4 0.6 0.8 1.0"),
            (1480.0, "0 500 1000 1500"),
            (0.07, "0.00 0.02 0.04 0.06 0.08"),
        ] {
            let ticks = Axis::linear("", max).ticks;
            let names: Vec<String> = ticks.into_iter().map(|(_, name)| name).collect();
            assert_eq!(names.join(" "), expected);
        }
    }

    #[test]
    fn logarithmic_ticks_are_the_ends_and_the_powers_between() {
        let axis = Axis::log("", 1.0, 1e6, 10.0, |value| value.to_string());
        let values: Vec<f64> = axis.ticks.iter().map(|tick| tick.0.round()).collect();
        assert_eq!(values, [1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6]);
        let axis = Axis::log("", 1.0, 256.0, 10.0, |value| value.to_string());
        let names: Vec<String> = axis.ticks.into_iter().map(|tick| tick.1).collect();
        assert_eq!(names, ["1", "10", "100", "256"]);
        let close = Axis::log("", 1.0, 110.0, 10.0, |value| value.to_string());
        assert_eq!(close.ticks.last().map(|tick| tick.0), Some(110.0));
        assert_eq!(close.ticks.len(), 3, "100 would touch 110");
        let rounded = [1.0, 3.0, 4.9, 7.0, 0.03].map(round_below);
        let expected = [1.0, 2.0, 2.0, 5.0, 0.02];
        let pairs = rounded.iter().zip(expected);
        pairs.for_each(|(a, b)| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}"));
        let axis = Axis::log("", 1.0, 1e6, 10.0, |value| value.to_string());
        assert_eq!(axis.place(0.0), 0.0);
        assert!((axis.place(1e3) - 0.5).abs() < 1e-12);
    }
}
