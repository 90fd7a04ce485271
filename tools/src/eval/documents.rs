//! The documents of an evaluation, as text and as tokens.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use waterline::Model;
use waterline::{Message, Tokenizer, Turns};

use crate::error::{Error, Result};
use crate::text::read_text;

/// One document.
pub enum Document {
    /// Plain text.
    Text(String),
    /// A conversation.
    Chat(Vec<Message>),
}

/// A line of a JSONL file.
#[derive(Deserialize)]
struct Line {
    text: Option<String>,
    messages: Option<Vec<Message>>,
}

/// Reads a file; `-` is standard input. The file is JSONL if its name ends in .jsonl or its first line is an object with
/// "text" or "messages". Otherwise it is one document of plain text.
pub fn read(path: &Path, limit: usize) -> Result<Vec<Document>> {
    let text = read_text(path)?;
    let documents = if is_jsonl(path, &text) {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.trim().is_empty());
        let parsed = lines.map(|(index, line)| {
            parse(line)
                .map_err(|reason| Error::input(path, format!("line {}: {reason}", index + 1)))
        });
        parsed.take(limit).collect::<Result<_>>()?
    } else {
        vec![Document::Text(text)]
    };
    if documents.is_empty() {
        return Err(Error::input(path, "no documents in it"));
    }
    Ok(documents)
}

fn is_jsonl(path: &Path, text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    path.extension().is_some_and(|name| name == "jsonl")
        || first.is_some_and(|line| parse(line).is_ok())
}

fn parse(line: &str) -> Result<Document, String> {
    let line: Line = serde_json::from_str(line).map_err(|e| e.to_string())?;
    match (line.text, line.messages) {
        (Some(text), None) => Ok(Document::Text(text)),
        (None, Some(messages)) if messages.is_empty() => Err("\"messages\" is empty".into()),
        (None, Some(messages)) => Ok(Document::Chat(messages)),
        (None, None) => Err("found neither \"text\" nor \"messages\"".into()),
        (Some(_), Some(_)) => Err("found both \"text\" and \"messages\"".into()),
    }
}

/// Encodes documents as the tokens that the model was trained to read.
pub struct Encoder {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    /// `None` until the first conversation, since a model for plain text has no chat template.
    turns: Option<Turns>,
}

impl Encoder {
    /// Creates an encoder with the model's tokenizer and chat template.
    pub fn new(model: &Arc<Model>) -> Result<Self> {
        Ok(Encoder {
            tokenizer: model.tokenizer()?,
            model: Arc::clone(model),
            turns: None,
        })
    }

    /// Encodes a document: a conversation with the chat template, a text between the BOS and EOS tokens.
    pub fn encode(&mut self, document: &Document) -> Result<Vec<u32>> {
        let messages = match document {
            Document::Text(text) => {
                let text = self.tokenizer.encode(text)?;
                let (begin, end) = (self.model.bos(), self.model.eos());
                return Ok(begin.into_iter().chain(text).chain(end).collect());
            }
            Document::Chat(messages) => messages,
        };
        let turns = match &mut self.turns {
            Some(turns) => turns,
            none => {
                let template = Arc::new(self.model.chat_template()?);
                none.insert(Turns::new(template, Arc::clone(&self.tokenizer))?)
            }
        };
        Ok(turns.transcript(messages)?)
    }

    /// The number of text bytes that the tokens decode to; control tokens count none.
    pub fn text_bytes(&self, tokens: &[u32]) -> usize {
        let text = |&&token: &&u32| !self.tokenizer.is_special(token);
        let bytes = |&token: &u32| self.tokenizer.token_bytes(token).len();
        tokens.iter().filter(text).map(bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_that_is_a_document_makes_jsonl() {
        let name = Path::new("notes.txt");
        assert!(is_jsonl(name, "\n{\"text\": \"a\", \"source\": \"b\"}\n"));
        assert!(!is_jsonl(name, "{\"title\": \"a\"}\n"));
        assert!(!is_jsonl(name, "{ a brace }"));
        assert!(is_jsonl(Path::new("a.jsonl"), "not JSON"));
    }

    #[test]
    fn a_line_that_is_no_document_says_why() {
        for (line, reason) in [
            ("{}", "neither"),
            (r#"{"text":"a","messages":[]}"#, "both"),
            (r#"{"messages":[]}"#, "empty"),
            (r#"{"messages":[{"role":5,"content":"x"}]}"#, "a string"),
            ("[", "EOF"),
        ] {
            let error = parse(line).err().unwrap();
            assert!(error.contains(reason), "{error}");
        }
    }
}
