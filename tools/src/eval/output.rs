//! Prints an evaluation: lines for a person or one JSON object, and optionally a CSV file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use waterline::Model;

use super::ablation::{Mechanism, ablate};
use crate::builtin::{OpenArgs, path_of};
use crate::error::{Error, Result};
use crate::provenance::Provenance;
use crate::text::json_line;
use crate::write_model::check_output;

/// Options for the output of a result.
#[derive(clap::Args)]
pub struct OutputArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Also write the values to FILE as CSV, a row of names and a row of values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

impl OutputArgs {
    /// Checks, before the work is done, that the CSV file can be written.
    ///
    /// # Errors
    /// The errors of [`check_output`].
    pub fn check(&self) -> Result<()> {
        self.csv
            .iter()
            .try_for_each(|path| check_output(path, None))
    }

    /// Prints `text`, or the values as JSON, and writes the CSV file.
    ///
    /// # Errors
    /// [`Error::Stdout`], or the error of a file that cannot be written.
    pub fn print(
        &self,
        text: &str,
        values: Map<String, Value>,
        from: &Provenance,
    ) -> Result<ExitCode> {
        let mut values = values;
        for (name, value) in [
            ("model_sha256", &from.model_sha256),
            ("commit", &from.commit),
            ("date", &from.date),
            ("command", &from.command),
        ] {
            values.insert(name.into(), json!(value));
        }
        if let Some(path) = &self.csv {
            crate::text::write(path, &csv(&values))?;
        }
        let printed = if self.json {
            json_line(&values)
        } else {
            let origin = (from.short_sha256(), &from.commit);
            format!("{text}model {}, waterline {}\n", origin.0, origin.1)
        };
        let written = std::io::stdout().write_all(printed.as_bytes());
        written.map_err(Error::Stdout)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Opens a model without these mechanisms, and records its origin.
///
/// # Errors
/// The model cannot be opened, or has no such mechanism.
pub fn open(
    args: OpenArgs,
    path: Option<&Path>,
    without: &[Mechanism],
) -> Result<(Arc<Model>, Provenance)> {
    let path = path.map(path_of).transpose()?;
    let path = path.as_deref();
    let mut checkpoint = args.checkpoint(path)?;
    let from = Provenance::new(path, &checkpoint)?;
    for &mechanism in without {
        ablate(&mut checkpoint, mechanism)?;
    }
    Ok((Model::bind(checkpoint)?, from))
}

/// Formats a row of names and a row of values.
fn csv(values: &Map<String, Value>) -> String {
    let row = |cells: Vec<String>| cells.join(",") + "\n";
    let names = values.keys().map(|name| cell(name)).collect();
    let cells = values.values().map(|value| match value {
        Value::Null => String::new(),
        Value::String(text) => cell(text),
        other => cell(&other.to_string()),
    });
    row(names) + &row(cells.collect())
}

/// Quotes a text with a comma, a quote or a line break, as in RFC 4180.
pub(super) fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        let values = json!({"file": "a,\"b\"", "error": null, "bits": 1.5, "at": [1, 2]});
        let Value::Object(values) = values else {
            panic!("an object")
        };
        assert_eq!(
            csv(&values),
            "file,error,bits,at\n\"a,\"\"b\"\"\",,1.5,\"[1,2]\"\n"
        );
    }
}
