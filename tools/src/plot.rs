//! Line plots as SVG, for pages: the page's style sheet gives the colours, so that they suit light and dark.

use std::fmt::Write;

/// How values become places on an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// Evenly.
    Linear,
    /// By the logarithm; what is below `min` stands at `min`.
    Log,
}

/// One axis.
pub struct Axis {
    /// What is on it.
    pub label: String,
    /// First value.
    pub min: f64,
    /// Last value.
    pub max: f64,
    /// Distances on it.
    pub scale: Scale,
    /// Marked values and what is written there.
    pub ticks: Vec<(f64, String)>,
}

/// A line through points in ascending order.
#[derive(Clone)]
pub struct Series {
    /// What the legend says.
    pub label: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// Number of its colour.
    pub color: usize,
    /// Whether the line is dashed: something computed, not measured.
    pub dashed: bool,
    /// Whether each point has a dot, which is within the axes then.
    pub dots: bool,
}

/// An area between lower and upper values.
pub struct Band {
    /// What the legend says.
    pub label: String,
    /// Positions with their lower and upper value.
    pub points: Vec<(f64, f64, f64)>,
    /// Number of its colour.
    pub color: usize,
}

/// A plot.
pub struct Plot {
    /// What is seen, for people who do not see it.
    pub description: String,
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// Behind the lines.
    pub bands: Vec<Band>,
    /// Lines. Where they leave the axes they are cut.
    pub series: Vec<Series>,
}

/// Width of every plot, in the units of its `svg` element.
pub const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 52.0;
/// Height of a line of the legend.
const LINE: f64 = 22.0;

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
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.min) / (self.max - self.min),
            Scale::Log => (value.max(self.min) / self.min).ln() / (self.max / self.min).ln(),
        }
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

impl Plot {
    /// The plot as an `svg` element of a page.
    pub fn to_svg(&self) -> String {
        let height = self.height();
        let label = escape(&self.description);
        let body = self.body();
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }

    /// Height of the plot; its width is [`WIDTH`].
    pub fn height(&self) -> f64 {
        HEIGHT + self.top()
    }

    /// Height of the legend.
    fn top(&self) -> f64 {
        14.0 + LINE * (self.bands.len() + self.series.len()).div_ceil(2) as f64
    }

    /// What is in the `svg` element.
    pub fn body(&self) -> String {
        let top = self.top();
        let x = |value: f64| LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| top + (1.0 - self.y.place(value)) * (HEIGHT - BOTTOM);
        let (floor, right) = (y(self.y.min), WIDTH - RIGHT);
        // Plots of a page share this name only if their frames are alike, and then it does not matter.
        let clip = format!("frame-{top}");
        let frame = floor - top;
        let mut svg = format!(
            "<clipPath id=\"{clip}\"><rect x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{frame}\"/></clipPath>\n",
            right - LEFT
        );
        for (value, name) in &self.y.ticks {
            let at = y(*value);
            let name = escape(name);
            svg += &format!(
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>\n",
                LEFT - 8.0,
                at + 4.0
            );
        }
        for (value, name) in &self.x.ticks {
            let at = x(*value);
            let name = escape(name);
            svg += &format!(
                "<path class=\"grid\" d=\"M{at:.1} {floor:.1}V{top}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>\n",
                floor + 18.0
            );
        }
        svg += &format!("<path class=\"axis\" d=\"M{LEFT} {floor:.1}H{right}\"/>\n");
        svg += &format!(
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            (LEFT + right) / 2.0,
            floor + 40.0,
            escape(&self.x.label)
        );
        svg += &format!(
            "<text class=\"label\" transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            (top + floor) / 2.0,
            escape(&self.y.label)
        );
        svg += &format!("<g clip-path=\"url(#{clip})\">\n");
        for band in &self.bands {
            let upper = band.points.iter().map(|p| (x(p.0), y(p.2)));
            let lower = band.points.iter().rev().map(|p| (x(p.0), y(p.1)));
            let outline = path(upper.chain(lower));
            svg += &format!("<path class=\"band c{}\" d=\"{outline}Z\"/>\n", band.color);
        }
        for series in &self.series {
            let line = path(series.points.iter().map(|p| (x(p.0), y(p.1))));
            let dashed = if series.dashed { " dashed" } else { "" };
            svg += &format!(
                "<path class=\"line c{}{dashed}\" d=\"{line}\"/>\n",
                series.color
            );
        }
        svg += "</g>\n";
        for series in self.series.iter().filter(|series| series.dots) {
            for point in &series.points {
                svg += &format!(
                    "<circle class=\"dot c{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\"/>\n",
                    series.color,
                    x(point.0),
                    y(point.1)
                );
            }
        }
        svg + &self.legend()
    }

    /// Two columns above the plot.
    fn legend(&self) -> String {
        let bands = self.bands.iter().map(|b| (&b.label, b.color, "swatch"));
        let lines = self.series.iter().map(|s| {
            let class = if s.dashed { "line dashed" } else { "line" };
            (&s.label, s.color, class)
        });
        let mut svg = String::new();
        for (i, (label, color, class)) in lines.chain(bands).enumerate() {
            let column = (WIDTH - LEFT - RIGHT) / 2.0;
            let left = LEFT + column * (i % 2) as f64;
            let at = LINE * (i / 2) as f64 + 10.0;
            svg += &match class {
                "swatch" => format!(
                    "<rect class=\"band c{color}\" x=\"{left}\" y=\"{}\" width=\"28\" height=\"12\"/>",
                    at - 6.0
                ),
                _ => format!("<path class=\"{class} c{color}\" d=\"M{left} {at}h28\"/>"),
            };
            svg += &format!(
                "<text x=\"{}\" y=\"{}\">{}</text>\n",
                left + 36.0,
                at + 4.0,
                escape(label)
            );
        }
        svg
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (i, (x, y)) in points.enumerate() {
        let command = if i == 0 { 'M' } else { 'L' };
        // Far outside is cut anyway, and some viewers stumble over huge numbers.
        let y = y.clamp(-1e4, 1e4);
        write!(path, "{command}{x:.1} {y:.1}").expect("a string takes all");
    }
    path
}

/// Text as it may stand in a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
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

    #[test]
    fn labels_cannot_break_the_page() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
