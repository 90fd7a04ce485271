//! `/set`: the sampling parameters, the length of answers and of thoughts, and whether the model thinks.

use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::sampling;
use crate::session::{max_tokens, thought_tokens};

const MAX_TOKENS: &str = "max-tokens";
const THINKING: &str = "thinking";
const BUDGET: &str = "reasoning-budget";

/// The names of all settings.
pub fn names() -> impl Iterator<Item = &'static str> {
    sampling::NAMES
        .into_iter()
        .chain([MAX_TOKENS, THINKING, BUDGET])
}

/// Sets one setting (`KEY VALUE`), or lists one or all. Returns the text to show.
pub fn set(arguments: &str, conversation: &mut Conversation) -> Result<String> {
    let unknown = |key: &str| {
        let reason = format!("there is no setting {key:?}; /set lists them");
        Err(Error::usage(reason))
    };
    let mut params = conversation.session().sampler().clone();
    let Some((key, value)) = arguments.split_once([' ', '=']) else {
        let wanted = names().filter(|name| arguments.is_empty() || arguments == *name);
        let mut value = |name: &str| match name {
            MAX_TOKENS => Some(conversation.limits().max_tokens.to_string()),
            THINKING => Some(thinking_name(conversation.thinking()).into()),
            BUDGET => {
                let budget = conversation.limits().thought.and_then(|it| it.budget);
                Some(budget.map_or("none".into(), |tokens| tokens.to_string()))
            }
            _ => sampling::get(&params, name),
        };
        let lines: Vec<String> = wanted
            .filter_map(|name| Some(format!("{name:<18} {}", value(name)?)))
            .collect();
        return if lines.is_empty() {
            unknown(arguments)
        } else {
            Ok(lines.join("\n"))
        };
    };
    let value = value.trim();
    match key {
        MAX_TOKENS => {
            conversation.limits().max_tokens =
                max_tokens(value).map_err(|e| Error::usage(format!("{key}: {value:?}: {e}")))?;
        }
        BUDGET => {
            let budget = thought_tokens(value)
                .map_err(|e| Error::usage(format!("{key}: {value:?}: {e}")))?;
            if let Some(thought) = &mut conversation.limits().thought {
                thought.budget = budget;
            }
        }
        THINKING => conversation.set_thinking(Some(thinking(value).map_err(Error::usage)?))?,
        _ if !sampling::NAMES.contains(&key) => return unknown(key),
        _ => {
            sampling::set(&mut params, key, value)?;
            conversation.set_sampler(params)?;
        }
    }
    Ok(format!("{key} {value}"))
}

/// The sampling parameters, and those that the model's files state.
pub fn sampling(conversation: &Conversation) -> String {
    let session = conversation.session();
    let params = session.sampler();
    let line = |name| Some(format!("{name:<18} {}", sampling::get(params, name)?));
    let mut lines: Vec<String> = sampling::NAMES.into_iter().filter_map(line).collect();
    lines.push(match session.model().sampling() {
        stated if stated.is_empty() => "the model's files state none of them".into(),
        stated => format!("the model's files state {stated}"),
    });
    lines.join("\n")
}

/// Parses the value of `thinking`.
pub fn thinking(value: &str) -> std::result::Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("thinking is on or off, not {other:?}")),
    }
}

fn thinking_name(thinking: Option<bool>) -> &'static str {
    match thinking {
        Some(true) => "on",
        Some(false) => "off",
        None => "template default",
    }
}
