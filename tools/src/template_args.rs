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
    pub fn variables(&self) -> Result<Vec<(&str, Value)>> {
        let variable = |argument: &String| -> Option<(&str, Value)> {
            let (name, value) = argument
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())?;
            let json = serde_json::from_str(value);
            Some((name, json.unwrap_or_else(|_| value.into())))
        };
        let read = |argument| {
            let wrong = || Error::usage(format!("--template-arg {argument:?}: expected NAME=JSON"));
            variable(argument).ok_or_else(wrong)
        };
        self.template_arg.iter().map(read).collect()
    }
}
