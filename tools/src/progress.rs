//! The progress bar of long work on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// The unit of a bar's length.
#[derive(Clone, Copy)]
pub enum Unit {
    /// Items of this name, such as tokens.
    Of(&'static str),
    /// Work of several kinds, for which only the finished share is meaningful.
    Share,
}

/// Creates a bar on standard error with the remaining time. Hidden unless standard error is a terminal.
pub fn bar(total: usize, unit: Unit) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = match unit {
        Unit::Of(things) => {
            format!("{{bar:30}} {{human_pos}} of {{human_len}} {things} {{eta:>4}} left {{msg}}")
        }
        Unit::Share => "{bar:30} {percent:>3} % {eta:>4} left {msg}".into(),
    };
    let style = ProgressStyle::with_template(&style);
    ProgressBar::new(total as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
