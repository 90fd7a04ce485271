//! Self-contained pages and pictures, for light and dark colour schemes.

use std::path::{Path, PathBuf};

use crate::plot::{Picture, Plot, escape};

/// A plot with its title and caption.
pub struct Figure {
    /// The title above the plot.
    pub title: String,
    /// The plot.
    pub plot: Plot,
    /// The caption below the plot: the measurement and its method.
    pub caption: String,
}

/// The type of an output file.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    /// A page with plots and tables.
    Page,
    /// Only the plots, for documents that cannot include pages.
    Svg,
}

impl Kind {
    /// Returns the kind for the end of the file's name.
    pub fn new(path: &Path) -> Self {
        match path.extension().and_then(|kind| kind.to_str()) {
            Some("svg") => Kind::Svg,
            _ => Kind::Page,
        }
    }
}

/// Parses the path of a page or picture as a flag's value.
pub fn output(text: &str) -> Result<PathBuf, String> {
    match text.strip_suffix(".pdf") {
        Some(name) => Err(format!(
            "PDF is not written here: write {name}.svg, then rsvg-convert -f pdf -o {text} {name}.svg"
        )),
        None => Ok(text.into()),
    }
}

/// The content of a page.
pub struct Page {
    /// The heading.
    pub title: String,
    /// Lines about the measurement, above the plots.
    pub lines: Vec<String>,
    /// The origin of the data, in short lines below plots that are shown without the page.
    pub notes: Vec<String>,
    /// The plots.
    pub figures: Vec<Figure>,
    /// Tables, each with its header as the first row.
    pub tables: Vec<Vec<Vec<String>>>,
    /// Names and values of facts.
    pub facts: Vec<(String, String)>,
}

impl Page {
    /// Formats the page as a document of this kind.
    pub fn write(&self, kind: Kind) -> String {
        let plots = self.figures.iter();
        let plots: Vec<(Option<&str>, &Plot)> = plots
            .map(|figure| (Some(figure.title.as_str()), &figure.plot))
            .collect();
        let picture = Picture {
            plots: &plots,
            notes: &self.notes,
        };
        match kind {
            Kind::Page => self.to_html(),
            Kind::Svg => picture.to_document(),
        }
    }

    fn to_html(&self) -> String {
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{0}</title>\n<style>\n{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{0}</h1>\n",
            escape(&self.title)
        );
        for line in &self.lines {
            html += &format!("<p>{}</p>\n", escape(line));
        }
        for figure in &self.figures {
            html += &format!(
                "<figure>\n<h2>{}</h2>\n{}<figcaption>{}</figcaption>\n</figure>\n",
                escape(&figure.title),
                figure.plot.to_svg(),
                escape(&figure.caption)
            );
        }
        for table in &self.tables {
            html += "<div class=\"wide\"><table>\n";
            for (i, row) in table.iter().enumerate() {
                let cell = if i == 0 { "th" } else { "td" };
                let cells = row
                    .iter()
                    .map(|text| format!("<{cell}>{}</{cell}>", escape(text)));
                html += &format!("<tr>{}</tr>\n", cells.collect::<String>());
            }
            html += "</table></div>\n";
        }
        html += "<dl>\n";
        for (name, value) in &self.facts {
            html += &format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value));
        }
        html + "</dl>\n</main>\n</body>\n</html>\n"
    }
}

const PAGE_STYLE: &str = "\
:root { color-scheme: light dark; --paper: #fcfcfb; --card: #ffffff; --ink: #1c1f23; --quiet: #60676f; --rule: #e3e5e8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --card: #1b1f23; --ink: #e8eaed; --quiet: #9aa3ad; --rule: #31363c; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 8px; }
h2 { font-size: 18px; margin: 0 0 12px; }
p { margin: 0; color: var(--quiet); }
figure { margin: 28px 0 0; padding: 20px 20px 16px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
figcaption { margin-top: 8px; font-size: 14px; color: var(--quiet); }
svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; margin-top: 28px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 24px; margin: 28px 0 0; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
.wide { font-size: 15px; }
";
