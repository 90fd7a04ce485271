//! An internal part of the crate `waterline`, without a stable interface: tokens, byte-safe streaming, stop strings, chat templates, turns.

mod calls;
#[cfg_attr(not(feature = "tokenizer"), path = "no_date.rs")]
mod date;
mod history;
mod jinja;
mod message;
mod stop;
mod stream;
mod template;
#[cfg_attr(not(feature = "tokenizer"), path = "no_tokenizer.rs")]
mod tokenizer;
mod told;
mod turns;

#[cfg(all(test, feature = "tokenizer"))]
mod tests;

pub use calls::{
    Answer, AnswerParser, AnswerPart, AnswerSyntax, CallFormat, GrammarSettings, NeededCalls,
    Start, ThoughtTags, ToolCall, Tools,
};
pub use history::{History, Remembered};
pub use message::{Message, Role};
pub use stop::StopStrings;
pub use stream::TextStream;
pub use template::{ChatTemplate, TemplateOptions};
pub use tokenizer::{Piece, Run, Runs, Tokenizer};
pub use turns::Turns;

use waterline_error::{self as error, cancel};
