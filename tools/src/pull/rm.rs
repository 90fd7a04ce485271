//! `waterline rm`: removes downloaded models.

use std::collections::BTreeMap;
use std::process::ExitCode;

use super::pulled;
use crate::error::{Error, Result};
use crate::text::shown;
use crate::units::bytes;

/// Remove downloaded models.
///
/// A name is one that waterline list shows, or org/name:FILE. Files of other models stay, and contents that another model has too.
#[derive(clap::Args)]
pub struct Args {
    /// Names of downloaded models
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let find = |name: &String| {
        let unknown = || {
            let reason = "no downloaded model has this name; waterline list shows their names";
            Error::usage(shown(&format!("{name}: {reason}")))
        };
        pulled::find(name)?.ok_or_else(unknown)
    };
    // A wrong name removes nothing, and two names may mean one model.
    let mut models = BTreeMap::new();
    for name in &args.names {
        let model = find(name)?;
        models.insert(format!("{}:{}", model.repository, model.file), model);
    }
    for (name, model) in models {
        let freed = bytes(model.remove()? as usize);
        println!("removed {}, {freed} freed", shown(&name));
    }
    Ok(ExitCode::SUCCESS)
}
