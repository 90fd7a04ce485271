//! Reads a model's answer: thoughts, text and tool calls.

mod thoughts;

pub use thoughts::ThoughtTags;
