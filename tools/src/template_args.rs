//! Variables of the chat template on the command line.

use serde_json::Value;

use crate::error::{Error, Result};

/// Variables of the chat template.
#[derive(clap::Args, Default)]
pub struct TemplateArgs {
    /// Set a variable of the chat template, such as reasoning_effort=low. A value that is not JSON is a text. May be repeated.
    #[arg(long, value_name = "NAME=JSON")]
    template_arg: Vec<String>,
}

impl TemplateArgs {
    /// The names and values. Fails if an argument has no name.
    pub fn variables<'a>(&'a self) -> Result<Vec<(&'a str, Value)>> {
        let read = |argument: &'a String| -> Result<(&'a str, Value)> {
            let named = argument
                .split_once('=')
                .filter(|(name, _)| !name.is_empty());
            let wrong = || Error::usage(format!("--template-arg {argument:?}: expected NAME=JSON"));
            let (name, value) = named.ok_or_else(wrong)?;
            let json = serde_json::from_str(value);
            Ok((name, json.unwrap_or_else(|_| value.into())))
        };
        self.template_arg.iter().map(read).collect()
    }
}
