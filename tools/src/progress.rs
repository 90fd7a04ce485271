//! The bar that long work shows on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// The unit of a bar's length.
#[derive(Clone, Copy)]
pub enum Unit {
    /// Things of this name, such as tokens.
    Of(&'static str),
    /// Work of several kinds, of which only the share that is done means something.
    Share,
}

/// A bar on standard error with the time that is left; hidden unless that is a terminal.
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
