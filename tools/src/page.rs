//! Pages and pictures that need no other file, for light and dark.

use std::path::Path;

use crate::plot::{Plot, WIDTH, escape};

/// A plot with what is said about it.
pub struct Figure {
    /// Above it.
    pub title: String,
    /// The plot.
    pub plot: Plot,
    /// Below it: what was measured how.
    pub caption: String,
}

/// Whether a file's name asks for a picture instead of a page.
pub fn is_picture(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "svg")
}

/// A page of figures, then the rows of a table, whose first is its head, and a list of names and values.
pub fn page(
    title: &str,
    lines: &[String],
    figures: &[Figure],
    rows: &[Vec<String>],
    facts: &[(&str, String)],
) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{COLORS}{PLOT_STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
        escape(title)
    );
    for line in lines {
        html += &format!("<p>{}</p>\n", escape(line));
    }
    for figure in figures {
        html += &format!(
            "<figure>\n<h2>{}</h2>\n{}<figcaption>{}</figcaption>\n</figure>\n",
            escape(&figure.title),
            figure.plot.to_svg(),
            escape(&figure.caption)
        );
    }
    html += "<div class=\"wide\"><table>\n";
    for (i, row) in rows.iter().enumerate() {
        let cell = if i == 0 { "th" } else { "td" };
        let cells = row
            .iter()
            .map(|text| format!("<{cell}>{}</{cell}>", escape(text)));
        html += &format!("<tr>{}</tr>\n", cells.collect::<String>());
    }
    html += "</table></div>\n<dl>\n";
    for (name, value) in facts {
        html += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value));
    }
    html + "</dl>\n</main>\n</body>\n</html>\n"
}

/// The plots alone, one below the other, as a picture for a document that takes no pages.
pub fn picture(figures: &[Figure]) -> String {
    /// Height of a title.
    const TITLE: f64 = 40.0;
    let mut top = 0.0;
    let mut parts = String::new();
    for figure in figures {
        let title = escape(&figure.title);
        parts += &format!(
            "<text class=\"title\" x=\"20\" y=\"{}\">{title}</text>\n<g transform=\"translate(0 {})\">\n{}</g>\n",
            top + 26.0,
            top + TITLE,
            figure.plot.body()
        );
        top += TITLE + figure.plot.height();
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" font-family=\"system-ui, sans-serif\">\n\
         <style>\n{COLORS}{PLOT_STYLE}</style>\n<rect class=\"card\" width=\"{WIDTH}\" height=\"{top}\"/>\n{parts}</svg>\n"
    )
}

const COLORS: &str = "\
:root { color-scheme: light dark; --paper: #fcfcfb; --card: #ffffff; --ink: #1c1f23; --quiet: #60676f; --rule: #e3e5e8;
  --c0: #0f6cbd; --c1: #c2570c; --c2: #2e7d4f; --c3: #8a3ffc; --c4: #b02a56; --c5: #6b7280; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --card: #1b1f23; --ink: #e8eaed; --quiet: #9aa3ad; --rule: #31363c;
    --c0: #6cb6ff; --c1: #f0a35e; --c2: #6fcf97; --c3: #c5a3ff; --c4: #ff8fab; --c5: #a3abb5; } }
";

const PLOT_STYLE: &str = "\
svg text { fill: var(--quiet); font-size: 13px; }
svg .label { fill: var(--ink); }
svg .title { fill: var(--ink); font-size: 18px; font-weight: 600; }
.card { fill: var(--card); }
.grid { stroke: var(--rule); fill: none; }
.axis { stroke: var(--quiet); fill: none; }
.line { fill: none; stroke-width: 2.5; stroke-linejoin: round; }
.dashed { stroke-dasharray: 7 5; }
.line.c0 { stroke: var(--c0); } .line.c1 { stroke: var(--c1); } .line.c2 { stroke: var(--c2); }
.line.c3 { stroke: var(--c3); } .line.c4 { stroke: var(--c4); } .line.c5 { stroke: var(--c5); }
.dot.c0, .band.c0 { fill: var(--c0); } .dot.c1, .band.c1 { fill: var(--c1); } .dot.c2, .band.c2 { fill: var(--c2); }
.dot.c3, .band.c3 { fill: var(--c3); } .dot.c4, .band.c4 { fill: var(--c4); } .dot.c5, .band.c5 { fill: var(--c5); }
.band { fill-opacity: 0.22; stroke: none; }
";

const PAGE_STYLE: &str = "\
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 820px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 8px; }
h2 { font-size: 18px; margin: 0 0 12px; }
p { margin: 0; color: var(--quiet); }
figure { margin: 28px 0 0; padding: 20px 20px 16px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
figcaption { margin-top: 8px; font-size: 14px; color: var(--quiet); }
svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin-top: 28px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 24px; margin: 28px 0 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
";
