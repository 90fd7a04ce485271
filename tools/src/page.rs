//! Pages and pictures that need no other file, for light and dark.

use std::path::Path;

use crate::plot::{self, Plot, escape};

/// A plot with what is said about it.
pub struct Figure {
    /// Above it.
    pub title: String,
    /// The plot.
    pub plot: Plot,
    /// Below it: what was measured how.
    pub caption: String,
}

/// Whether a file's name ends as a picture's.
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
         <title>{0}</title>\n<style>\n{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
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
    let plots = figures.iter();
    plot::picture(
        &plots
            .map(|figure| (figure.title.as_str(), &figure.plot))
            .collect::<Vec<_>>(),
    )
}

const PAGE_STYLE: &str = "\
:root { color-scheme: light dark; --paper: #fcfcfb; --card: #ffffff; --ink: #1c1f23; --quiet: #60676f; --rule: #e3e5e8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --card: #1b1f23; --ink: #e8eaed; --quiet: #9aa3ad; --rule: #31363c; } }
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
