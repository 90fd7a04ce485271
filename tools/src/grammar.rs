//! `--schema`, `--grammar` and `--json-object`: constraints on answers.

use std::path::PathBuf;

use waterline::{Constraint, Grammar, Model};

use crate::error::{Error, Result};
use crate::gbnf;

/// Constraints on answers. They apply after a thought, if the template opens one.
#[derive(clap::Args, Clone)]
#[group(multiple = false)]
#[command(next_help_heading = "Form of answers")]
pub struct GrammarArgs {
    /// JSON schema that answers must match.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Grammar that answers must match, in llama.cpp's notation (GBNF) or llguidance's variant of Lark.
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
    /// Restrict answers to JSON objects.
    #[arg(long)]
    json_object: bool,
}

impl GrammarArgs {
    /// Compiles the constraint on answers, if there is one.
    pub fn constraint(&self, model: &Model) -> Result<Option<Constraint>> {
        Ok(self.compile(model)?.map(|(_, constraint)| constraint))
    }

    /// The grammar of answers, if there is one, and the constraint that it is compiled to.
    pub fn compile(&self, model: &Model) -> Result<Option<(Grammar, Constraint)>> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|e| Error::io(path, e));
        let (grammar, path) = match (&self.schema, &self.grammar) {
            (Some(path), _) => {
                let schema = serde_json::from_str(&read(path)?);
                let schema = schema.map_err(|e| Error::input(path, e.to_string()))?;
                (Grammar::JsonSchema(schema), Some(path))
            }
            (_, Some(path)) => {
                let text = read(path)?;
                let lark = match text.contains("::=") {
                    true => gbnf::to_lark(&text).map_err(|reason| Error::input(path, reason))?,
                    false => text,
                };
                (Grammar::Lark(lark), Some(path))
            }
            _ if self.json_object => (Grammar::JsonObject, None),
            _ => return Ok(None),
        };
        let compiled = model.constraints()?.compile(&grammar);
        let compiled = compiled.map_err(|error| match path {
            Some(path) => Error::input(path, error.to_string()),
            None => error.into(),
        })?;
        Ok(Some((grammar, compiled)))
    }
}
