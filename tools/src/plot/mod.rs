//! Line plots as SVG. Each element has its colour as an attribute, so that every viewer shows it. For dark pages, a style sheet
//! overrides the colours in viewers that support style sheets.

mod axis;

pub use axis::{Axis, round_below, round_step};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use unicode_width::UnicodeWidthStr;

/// A line through points in ascending order.
#[derive(Clone)]
pub struct Series {
    /// Text in the legend.
    pub label: String,
    /// Points.
    pub points: Vec<(f64, f64)>,
    /// Number of the line's colour.
    pub color: usize,
    /// Whether the line is dashed, which marks computed values.
    pub dashed: bool,
    /// Whether each point has a dot. Points with dots must be within the axes.
    pub dots: bool,
    /// The standard error of each point, drawn as a vertical bar. Empty if the points have no errors.
    pub errors: Vec<f64>,
}

/// An area between lower and upper values.
pub struct Band {
    /// Text in the legend.
    pub label: String,
    /// Positions with their lower and upper value.
    pub points: Vec<(f64, f64, f64)>,
    /// Number of the area's colour.
    pub color: usize,
}

/// A plot.
pub struct Plot {
    /// A description for screen readers.
    pub description: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Areas, drawn below the lines.
    pub bands: Vec<Band>,
    /// Lines, cut off where they leave the axes.
    pub series: Vec<Series>,
}

/// Width of every plot, in the units of its `svg` element.
const WIDTH: u32 = 760;

/// Height of a plot without its legend.
const HEIGHT: u32 = 400;

const TITLE: u32 = 40;

/// Height of a line of notes below the plots.
const NOTE: u32 = 18;

const LEFT: i32 = 76;

const RIGHT: i32 = 24;

const BOTTOM: u32 = 52;

/// Height of a row of the legend.
const LINE: i32 = 22;

/// Maximum characters of a label that fits into half of the legend.
const HALF_LABEL: usize = 45;

/// Space above the notes.
const GAP: u32 = 14;

const FONT: &str = "system-ui, Arial, Helvetica, DejaVu Sans, sans-serif";

/// A colour on light pages and the corresponding colour on dark pages.
struct Ink {
    light: RGBColor,
    dark: RGBColor,
}

const fn rgb(hex: u32) -> RGBColor {
    RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

const fn ink(light: u32, dark: u32) -> Ink {
    Ink {
        light: rgb(light),
        dark: rgb(dark),
    }
}

const CARD: Ink = ink(0xffffff, 0x1b1f23);

const TEXT: Ink = ink(0x1c1f23, 0xe8eaed);

const QUIET: Ink = ink(0x60676f, 0x9aa3ad);

const RULE: Ink = ink(0xe3e5e8, 0x31363c);

/// Number of colours for series.
pub const COLORS: usize = 8;

/// The colours of series, by their numbers.
const SERIES: [Ink; COLORS] = [
    ink(0x0f6cbd, 0x6cb6ff),
    ink(0xc2570c, 0xf0a35e),
    ink(0x2e7d4f, 0x6fcf97),
    ink(0x8a3ffc, 0xc5a3ff),
    ink(0xb02a56, 0xff8fab),
    ink(0x6b7280, 0xa3abb5),
    ink(0x0e7490, 0x67e8f9),
    ink(0x92700c, 0xfde047),
];

fn color(number: usize) -> RGBColor {
    SERIES[number % SERIES.len()].light
}

/// Style rules that replace each colour on dark pages.
fn dark_style() -> String {
    let hex = |color: &RGBColor| format!("#{:02X}{:02X}{:02X}", color.0, color.1, color.2);
    let inks = [CARD, TEXT, QUIET, RULE];
    let rule = |ink: &Ink| {
        let (light, dark) = (hex(&ink.light), hex(&ink.dark));
        format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}")
    };
    let rules: String = inks.iter().chain(&SERIES).map(rule).collect();
    format!("<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>")
}

/// A drawing in memory.
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

impl Plot {
    /// Returns the plot as an `svg` element of a page.
    pub fn to_svg(&self) -> String {
        let label = escape(&self.description);
        let picture = Picture {
            plots: &[(None, self)],
            notes: &[],
        };
        picture.to_svg(&format!("role=\"img\" aria-label=\"{label}\""))
    }

    /// Height of the plot; its width is [`WIDTH`].
    fn height(&self) -> u32 {
        HEIGHT + self.legend_height()
    }

    fn legend_height(&self) -> u32 {
        let entries = self.bands.len() + self.series.len();
        14 + LINE as u32 * entries.div_ceil(self.legend_columns()) as u32
    }

    /// Returns two columns, unless a label is too long for half of the width.
    fn legend_columns(&self) -> usize {
        let labels = self.series.iter().map(|series| &series.label);
        let mut labels = labels.chain(self.bands.iter().map(|band| &band.label));
        if labels.all(|label| label.width() <= HALF_LABEL) {
            2
        } else {
            1
        }
    }

    fn draw(&self, area: &Area) -> Drawn {
        let (legend, plot) = area.split_vertically(self.legend_height());
        self.draw_legend(&legend)?;
        let name = |axis: &Axis, value: &f64| {
            let tick = axis.ticks.iter().find(|tick| tick.0 == *value);
            tick.map_or(String::new(), |(_, name)| name.clone())
        };
        let mut chart = ChartBuilder::on(&plot)
            .margin_left(8)
            .margin_right(RIGHT)
            .x_label_area_size(BOTTOM)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        chart
            .configure_mesh()
            .axis_style(QUIET.light)
            .bold_line_style(RULE.light)
            .max_light_lines(0)
            .label_style((FONT, 15).into_font().color(&QUIET.light))
            .axis_desc_style((FONT, 15).into_font().color(&TEXT.light))
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_label_formatter(&|value| name(&self.x, value))
            .y_label_formatter(&|value| name(&self.y, value))
            .draw()?;
        for band in &self.bands {
            let corner = |x: f64, y: f64| (x, y.clamp(self.y.min, self.y.max));
            let upper = band.points.iter().map(|p| corner(p.0, p.2));
            let lower = band.points.iter().rev().map(|p| corner(p.0, p.1));
            let outline: Vec<(f64, f64)> = upper.chain(lower).collect();
            let fill = color(band.color).mix(0.22).filled();
            chart.draw_series([Polygon::new(outline, fill)])?;
        }
        for (index, series) in self.series.iter().enumerate() {
            // A line below others is wider, so that it shows on both sides of them.
            let width = 2 + 3 * self.coverings(index);
            let style = color(series.color).stroke_width(width);
            let line = self.cut(&series.points);
            if series.dashed {
                chart.draw_series(DashedLineSeries::new(line, 7, 5, style))?
            } else {
                chart.draw_series(LineSeries::new(line, style))?
            };
            let bars = series.points.iter().zip(&series.errors);
            chart.draw_series(bars.map(|(&(x, y), error)| {
                let end = |y: f64| (x, y.clamp(self.y.min, self.y.max));
                PathElement::new(vec![end(y - error), end(y + error)], style.stroke_width(1))
            }))?;
            if series.dots {
                let size = 3 + width / 2;
                let dot =
                    |point: &(f64, f64)| Circle::new(*point, size, color(series.color).filled());
                chart.draw_series(series.points.iter().map(dot))?;
            }
        }
        Ok(())
    }

    /// Counts the later lines that cover a line along its complete length.
    fn coverings(&self, index: usize) -> u32 {
        /// Lines that are closer than this fraction of the plot's height look like one line.
        const CLOSE: f64 = 0.01;
        let line = &self.series[index];
        let covers = |other: &&Series| {
            let is_close = |&(x, y): &(f64, f64)| {
                let found = height_at(&other.points, x);
                found.is_some_and(|found| (self.y.place(found) - self.y.place(y)).abs() < CLOSE)
            };
            !line.points.is_empty() && line.points.iter().all(is_close)
        };
        self.series[index + 1..].iter().filter(covers).count() as u32
    }

    /// Returns a line's points up to where the line leaves the axes at the top.
    fn cut(&self, points: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let mut line: Vec<(f64, f64)> = Vec::new();
        for &(x, y) in points {
            if y <= self.y.max {
                line.push((x, y.max(self.y.min)));
                continue;
            }
            if let Some(&(x0, y0)) = line.last() {
                // Points of a line are close together, so cutting as on linear axes is accurate enough.
                let share = (self.y.max - y0) / (y - y0);
                line.push((x0 + share * (x - x0), self.y.max));
            }
            break;
        }
        line
    }

    /// Draws the legend above the plot, in one or two columns.
    fn draw_legend(&self, area: &Area) -> Drawn {
        let bands = self.bands.iter().map(|b| (&b.label, b.color, None));
        let lines = self.series.iter();
        let lines = lines.map(|s| (&s.label, s.color, Some(s.dashed)));
        let style = (FONT, 15)
            .into_font()
            .color(&QUIET.light)
            .pos(Pos::new(HPos::Left, VPos::Center));
        for (i, (label, number, line)) in lines.chain(bands).enumerate() {
            let (columns, i) = (self.legend_columns() as i32, i as i32);
            let column = (WIDTH as i32 - LEFT - RIGHT) / columns;
            let (x, y) = (LEFT + column * (i % columns), LINE * (i / columns) + 10);
            let color = color(number);
            match line {
                None => {
                    let corners = [(x, y - 6), (x + 28, y + 6)];
                    area.draw(&Rectangle::new(corners, color.mix(0.22).filled()))?;
                }
                Some(dashed) => {
                    let pieces: &[(i32, i32)] = if dashed {
                        &[(0, 7), (12, 19), (24, 28)]
                    } else {
                        &[(0, 28)]
                    };
                    for (from, to) in pieces {
                        let ends = vec![(x + from, y), (x + to, y)];
                        area.draw(&PathElement::new(ends, color.stroke_width(2)))?;
                    }
                }
            }
            area.draw(&Text::new(label.as_str(), (x + 36, y), style.clone()))?;
        }
        Ok(())
    }
}

/// The height at `x` of a line through points in ascending order; `None` outside the line.
fn height_at(points: &[(f64, f64)], x: f64) -> Option<f64> {
    let after = points.iter().position(|point| point.0 >= x)?;
    let (x1, y1) = points[after];
    if x1 == x || after == 0 {
        return (x1 == x).then_some(y1);
    }
    let (x0, y0) = points[after - 1];
    Some(y0 + (x - x0) / (x1 - x0) * (y1 - y0))
}

/// Plots one below another, each below its optional title, with notes in small print at the bottom.
pub struct Picture<'a> {
    /// Titles and plots.
    pub plots: &'a [(Option<&'a str>, &'a Plot)],
    /// The measurement, its date and its machine, one line each.
    pub notes: &'a [String],
}

impl Picture<'_> {
    /// Returns the picture as an SVG document.
    pub fn to_document(&self) -> String {
        self.to_svg("xmlns=\"http://www.w3.org/2000/svg\"")
    }

    /// Returns the picture as an `svg` element with these attributes.
    fn to_svg(&self, attributes: &str) -> String {
        let height = self.height();
        let mut drawn = String::new();
        let page = SVGBackend::with_string(&mut drawn, (WIDTH, height));
        // Writing to a string does not fail.
        if let Err(error) = self.draw(page.into_drawing_area()) {
            return format!("<!-- {} -->\n", escape(&error.to_string()));
        }
        let elements = drawn
            .split_once('>')
            .map_or("", |(_, rest)| rest.trim_end());
        let style = dark_style();
        format!("<svg {attributes} viewBox=\"0 0 {WIDTH} {height}\">\n{style}{elements}\n")
    }

    fn height(&self) -> u32 {
        let plots = self.plots.iter();
        let heights = plots.map(|(title, plot)| title_height(title) + plot.height());
        heights.sum::<u32>() + self.notes_height()
    }

    fn notes_height(&self) -> u32 {
        match self.notes.len() as u32 {
            0 => 0,
            lines => GAP + NOTE * lines + 12,
        }
    }

    fn draw(&self, root: Area) -> Drawn {
        root.fill(&CARD.light)?;
        let mut rest = root.clone();
        for (title, plot) in self.plots {
            let (head, below) = rest.split_vertically(title_height(title));
            if let Some(title) = title {
                let style = (FONT, 22)
                    .into_font()
                    .style(FontStyle::Bold)
                    .color(&TEXT.light);
                head.draw(&Text::new(*title, (20, 12), style))?;
            }
            let (area, below) = below.split_vertically(plot.height());
            plot.draw(&area)?;
            rest = below;
        }
        for (i, note) in self.notes.iter().enumerate() {
            let style = (FONT, 13).into_font().color(&QUIET.light);
            let place = (20, (GAP + NOTE * i as u32) as i32);
            rest.draw(&Text::new(note.as_str(), place, style))?;
        }
        root.present()
    }
}

fn title_height(title: &Option<&str>) -> u32 {
    title.map_or(0, |_| TITLE)
}

/// Escapes a text for a page.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        Plot {
            description: "a <plot>".into(),
            x: Axis::linear("x & more", 10.0),
            y: Axis::linear("y", 4.0),
            bands: vec![Band {
                label: "around".into(),
                points: points.iter().map(|p| (p.0, p.1 - 1.0, p.1 + 1.0)).collect(),
                color: 0,
            }],
            series: vec![Series {
                label: "one <b>".into(),
                points,
                color: 0,
                dashed: true,
                dots: true,
                errors: Vec::new(),
            }],
        }
    }

    #[test]
    fn a_plot_has_its_colours_in_its_elements() {
        let plot = plot(vec![(0.0, 1.0), (5.0, 2.0), (10.0, 3.0)]);
        let svg = plot.to_svg();
        assert!(svg.starts_with("<svg role=\"img\" aria-label=\"a &lt;plot&gt;\" viewBox="));
        for part in [
            "stroke=\"#0F6CBD\"",
            "fill=\"#FFFFFF\"",
            "one &lt;b&gt;",
            "x &amp; more",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        for part in ["http", "var(", "class=", "NaN"] {
            assert!(!svg.contains(part), "{part}: {svg}");
        }
        let picture = Picture {
            plots: &[(Some("First"), &plot), (Some("Second"), &plot)],
            notes: &["commit abc".into()],
        };
        let svg = picture.to_document();
        assert!(svg.starts_with("<svg xmlns=\"http") && svg.ends_with("</svg>\n"));
        for part in ["Second", "commit abc", "x"] {
            assert!(svg.contains(part), "{part}");
        }
    }

    #[test]
    fn long_labels_stand_one_below_the_other() {
        let mut plot = plot(vec![(0.0, 1.0), (10.0, 3.0)]);
        let short = plot.height();
        plot.series[0].label = "l".repeat(HALF_LABEL);
        assert_eq!(plot.height(), short);
        plot.series[0].label.push('l');
        assert_eq!(plot.height(), short + LINE as u32);
        assert!(plot.to_svg().contains(&plot.series[0].label));
    }

    #[test]
    fn a_line_below_another_is_wider() {
        let mut plot = plot(vec![(0.0, 1.0), (10.0, 3.0)]);
        let line = plot.series[0].clone();
        assert_eq!(plot.coverings(0), 0);
        plot.series.push(Series {
            points: vec![(0.0, 1.0), (5.0, 2.01), (10.0, 3.0)],
            ..line.clone()
        });
        assert_eq!((plot.coverings(0), plot.coverings(1)), (1, 0));
        plot.series[1].points[1].1 = 3.0;
        assert_eq!(plot.coverings(0), 1, "the first has no point there");
        assert_eq!(height_at(&line.points, 5.0), Some(2.0));
        assert_eq!(height_at(&line.points, 11.0), None);
    }

    #[test]
    fn a_line_ends_where_it_leaves_the_axes() {
        let line = plot(Vec::new()).cut(&[(0.0, 2.0), (5.0, 6.0), (10.0, 1.0)]);
        assert_eq!(line, [(0.0, 2.0), (2.5, 4.0)]);
    }

    #[test]
    fn labels_cannot_break_the_page() {
        assert_eq!(escape("a<b & \"c\">"), "a&lt;b &amp; &quot;c&quot;&gt;");
    }
}
