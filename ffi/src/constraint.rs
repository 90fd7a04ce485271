//! Constraints on a session's answers.

use std::ffi::c_char;

use waterline::Grammar;

use crate::open_session::with_settled;
use crate::pointers::text;
use crate::session::wl_session;
use crate::status::{Failure, Outcome, wl_status};

/// The kind of constraint on answers.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub enum wl_constraint {
    /// No constraint.
    WL_CONSTRAINT_NONE = 0,
    /// Any JSON object.
    WL_CONSTRAINT_JSON_OBJECT = 1,
    /// JSON that fits a schema.
    WL_CONSTRAINT_JSON_SCHEMA = 2,
    /// Text that matches a regular expression completely.
    WL_CONSTRAINT_REGEX = 3,
    /// Text of a grammar in llguidance's variant of Lark.
    WL_CONSTRAINT_LARK = 4,
}

fn grammar(kind: u32, text: impl FnOnce() -> Outcome<String>) -> Outcome<Option<Grammar>> {
    use wl_constraint::*;
    const NONE: u32 = WL_CONSTRAINT_NONE as u32;
    const JSON_OBJECT: u32 = WL_CONSTRAINT_JSON_OBJECT as u32;
    const JSON_SCHEMA: u32 = WL_CONSTRAINT_JSON_SCHEMA as u32;
    const REGEX: u32 = WL_CONSTRAINT_REGEX as u32;
    const LARK: u32 = WL_CONSTRAINT_LARK as u32;
    Ok(Some(match kind {
        NONE => return Ok(None),
        JSON_OBJECT => Grammar::JsonObject,
        JSON_SCHEMA => {
            let schema = serde_json::from_str(&text()?);
            let wrong = |error| Failure::argument(format!("the schema is not JSON: {error}"));
            Grammar::JsonSchema(schema.map_err(wrong)?)
        }
        REGEX => Grammar::Regex(text()?),
        LARK => Grammar::Lark(text()?),
        other => {
            let reason = format!("kind: found {other}, expected a wl_constraint, 0 to {LARK}");
            return Err(Failure::argument(reason));
        }
    }))
}

/// Constrains the text of each later generation, which fits the form unless `max_tokens` or a stop cuts it short. `kind` is a
/// wl_constraint, and `grammar`, `length` bytes, is its schema, expression or grammar; it may be NULL for kinds that need none. Thinking
/// text that the chat template opens is free: the constraint applies after it. JSON has one space between its parts. Drafts, batches and
/// forks obey the constraint, wl_sample and wl_step do not; wl_session_reset keeps it. Returns WL_ERROR_ARGUMENT if the form has a mistake,
/// is too large or no text can fit it, and WL_ERROR_UNSUPPORTED in a build without constraints; the previous constraint then remains.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wl_session_constrain(
    session: *mut wl_session,
    kind: u32,
    grammar: *const c_char,
    length: usize,
) -> wl_status {
    with_settled(session, |inner| {
        // SAFETY: the caller passes `length` bytes.
        let text = || unsafe { text("grammar", grammar, length) }.map(str::to_string);
        inner.form = match self::grammar(kind, text)? {
            Some(grammar) => {
                let compiler = inner.session.model().constraints()?;
                Some(compiler.compile(&grammar)?)
            }
            None => None,
        };
        Ok(())
    })
}
