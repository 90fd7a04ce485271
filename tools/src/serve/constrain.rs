//! The grammar that a request wants its answers to follow, under the names that clients give it.

use std::sync::Arc;

use serde_json::Value;
use waterline::{Constraint, Constraints, Grammar};

use super::App;
use super::fields::Fields;
use super::refusal::Refusal;
use crate::allocations::return_free_memory;
use crate::gbnf;

/// A wanted grammar.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    pub grammar: Grammar,
    /// Whether a schema that no grammar can express in full is an error.
    pub is_strict: bool,
}

/// A grammar as it was compiled, and what it was compiled to.
type Compiled = (Grammar, Constraint);

impl Wanted {
    /// A grammar that holds in full.
    pub fn strict(grammar: Grammar) -> Self {
        Wanted {
            grammar,
            is_strict: true,
        }
    }

    /// Reads the fields `response_format`, `json_schema` and `grammar`, of which a request may have one.
    pub fn read(fields: &Fields) -> Result<Option<Self>, Refusal> {
        let schema = match fields.get("json_schema") {
            Value::Null => None,
            schema => Some(Wanted {
                grammar: Grammar::JsonSchema(inner(schema).clone()),
                is_strict: schema["strict"] == true,
            }),
        };
        let text = fields.text("grammar").filter(|text| !text.is_empty());
        let text = text.map(grammar_of).transpose()?;
        let format = match fields.get("response_format") {
            Value::Null => None,
            format => Wanted::of_format(format)?,
        };
        // An object that follows a schema is an object.
        let format =
            format.filter(|format| schema.is_none() || format.grammar != Grammar::JsonObject);
        let mut all = [schema, text, format].into_iter().flatten();
        let first = all.next();
        if all.any(|other| Some(&other) != first.as_ref()) {
            let reason = "response_format, json_schema and grammar: expected one of them";
            return Err(Refusal::bad(reason));
        }
        Ok(first)
    }

    /// Reads `response_format`. Its schema may lie in `json_schema.schema`, in `schema`, or unwrapped in `json_schema`.
    fn of_format(format: &Value) -> Result<Option<Self>, Refusal> {
        let text = |key: &str| {
            let reason = format!("response_format.{key}: expected a text");
            format[key].as_str().ok_or_else(|| Refusal::bad(reason))
        };
        let (wrapped, beside) = (&format["json_schema"], &format["schema"]);
        let schema = if wrapped.is_null() {
            beside
        } else {
            inner(wrapped)
        };
        let grammar = match (format["type"].as_str(), schema) {
            (Some("text"), _) => return Ok(None),
            (Some("json_object"), Value::Null) => Grammar::JsonObject,
            (Some("json_schema"), Value::Null) => {
                return Err(Refusal::bad(
                    "response_format.json_schema: expected a schema",
                ));
            }
            (Some("json_object" | "json_schema"), schema) => Grammar::JsonSchema(schema.clone()),
            (Some("regex"), _) => Grammar::Regex(text("regex")?.into()),
            (Some("lark"), _) => Grammar::Lark(text("lark")?.into()),
            (Some("grammar"), _) => return grammar_of(text("grammar")?).map(Some),
            _ => {
                let reason = "response_format.type: expected text, json_object, json_schema, regex, lark or grammar";
                return Err(Refusal::bad(reason));
            }
        };
        Ok(Some(Wanted {
            grammar,
            is_strict: wrapped["strict"] == true || format["strict"] == true,
        }))
    }

    /// Compiles the grammar. Returns also the grammar as compiled, and remarks on what it leaves to the model.
    ///
    /// # Errors
    /// The errors of [`Constraints::compile`].
    pub fn compile(self, constraints: &Constraints) -> waterline::Result<(Compiled, Vec<String>)> {
        let (grammar, mut notes) = match self.grammar {
            Grammar::JsonSchema(schema) if !self.is_strict => {
                let (schema, notes) = constraints.relax(&schema);
                (Grammar::JsonSchema(schema), notes)
            }
            grammar => (grammar, Vec::new()),
        };
        let mut compiled = constraints.compile(&grammar)?;
        notes.extend(compiled.warnings());
        Ok(((grammar, compiled), notes))
    }
}

/// The schema in the field `json_schema`: the value of its `schema`, or the field itself.
fn inner(wrapped: &Value) -> &Value {
    wrapped.get("schema").unwrap_or(wrapped)
}

/// Reads a grammar in llama.cpp's notation.
fn grammar_of(text: &str) -> Result<Wanted, Refusal> {
    let lark = gbnf::to_lark(text);
    let lark = lark.map_err(|reason| Refusal::bad(format!("grammar: {reason}")))?;
    Ok(Wanted::strict(Grammar::Lark(lark)))
}

impl App {
    /// Compiles a grammar.
    pub async fn constraint(
        self: &Arc<Self>,
        wanted: Option<Wanted>,
    ) -> Result<(Option<Compiled>, Vec<String>), Refusal> {
        let Some(wanted) = wanted else {
            return Ok((None, Vec::new()));
        };
        let _permit = self.common.grammars.acquire().await;
        let made = self.make(move |app| {
            let compiled = wanted.compile(&*app.prompter.model().constraints()?);
            return_free_memory();
            compiled
        });
        let (compiled, notes) = made.await?;
        Ok((Some(compiled), notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::fields::Face;
    use serde_json::json;

    fn read(body: Value) -> Result<Option<Wanted>, String> {
        let body = body.as_object().expect("an object").clone();
        let fields = Fields::check(body, Face::Chat).map_err(|refusal| refusal.message)?;
        Wanted::read(&fields).map_err(|refusal| refusal.message)
    }

    #[test]
    fn a_schema_is_found_wherever_clients_put_it() {
        let schema = json!({"type": "integer"});
        let wanted = Some(Wanted {
            grammar: Grammar::JsonSchema(schema.clone()),
            is_strict: false,
        });
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}),
            json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
            json!({"response_format": {"type": "json_schema", "schema": schema}}),
            json!({"response_format": {"type": "json_object", "schema": schema}}),
            json!({"json_schema": schema, "response_format": {"type": "json_object"}}),
            json!({"json_schema": schema, "grammar": ""}),
        ] {
            assert_eq!(read(body.clone()), Ok(wanted.clone()), "{body}");
        }
        assert_eq!(read(json!({"response_format": {"type": "text"}})), Ok(None));
        for body in [
            json!({"json_schema": schema, "grammar": "root ::= \"a\""}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": {"type": "yaml"}}),
            json!({"grammar": "root ::= ("}),
        ] {
            assert!(read(body.clone()).is_err(), "{body}");
        }
    }
}
