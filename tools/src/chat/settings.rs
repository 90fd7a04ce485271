//! `/set`: the sampling parameters and the length of answers.

use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::sampling;
use crate::session::max_tokens;

const MAX_TOKENS: &str = "max-tokens";

/// Every setting.
pub fn names() -> impl Iterator<Item = &'static str> {
    sampling::NAMES.into_iter().chain([MAX_TOKENS])
}

/// Sets one (`KEY VALUE`), or lists one or all; returns what to say.
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
            _ => sampling::get(&params, name),
        };
        let lines: Vec<String> = wanted
            .filter_map(|name| Some(format!("{name:<18} {}", value(name)?)))
            .collect();
        return match lines.is_empty() {
            true => unknown(arguments),
            false => Ok(lines.join("\n")),
        };
    };
    let value = value.trim();
    match key {
        MAX_TOKENS => {
            conversation.limits().max_tokens =
                max_tokens(value).map_err(|e| Error::usage(format!("{key}: {value:?}: {e}")))?;
        }
        _ if !sampling::NAMES.contains(&key) => return unknown(key),
        _ => {
            sampling::set(&mut params, key, value)?;
            conversation.set_sampler(params)?;
        }
    }
    Ok(format!("{key} {value}"))
}
