//! `waterline list`: the models in the cache.

use std::io::Write;
use std::process::ExitCode;

use jiff::{Timestamp, ZonedDateTime};
use serde_json::{Value, json};

use super::pulled::{self, Pulled};
use crate::error::{Error, Result};
use crate::text::{json_line, shown};
use crate::units::bytes;

/// List the downloaded models.
///
/// Every command takes the listed name in place of a model's path. The cache is the one that Hugging Face's programs share, so models
/// that they downloaded are listed too.
#[derive(clap::Args)]
pub struct Args {
    /// Print a JSON object for each model instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let all = pulled::all()?;
    let text = if args.json {
        all.iter().map(|model| json_line(&facts(model))).collect()
    } else {
        shown(&table(&all))
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(Error::Stdout)?;
    if all.is_empty() && !args.json {
        eprintln!("no model is downloaded; waterline pull org/name downloads one");
    }
    Ok(ExitCode::SUCCESS)
}

fn facts(model: &Pulled) -> Value {
    let written = Timestamp::try_from(model.written).ok();
    json!({
        "name": model.name,
        "repository": model.repository,
        "file": model.file,
        "path": model.path,
        "bytes": model.bytes(),
        "written": written.map(|time| time.to_string()),
    })
}

/// Formats a line for each model: name, size, date, and whether it is complete.
fn table(all: &[Pulled]) -> String {
    let widths = all.iter().map(|model| model.name.chars().count());
    let width = widths.max().unwrap_or(0);
    let line = |model: &Pulled| {
        let written = ZonedDateTime::try_from(model.written);
        let date = written.map_or_else(
            |_| String::new(),
            |time| time.strftime("%Y-%m-%d %H:%M").to_string(),
        );
        let note = match model.path {
            Some(_) => "",
            None => "  incomplete",
        };
        let size = bytes(model.bytes() as usize);
        format!("{:width$}  {size:>10}  {date}{note}\n", model.name)
    };
    all.iter().map(line).collect()
}
