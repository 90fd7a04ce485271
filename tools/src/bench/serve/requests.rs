//! The requests that are sent: random prompts of a given length, or the lines of a file.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::client::Server;
use crate::error::{Error, Result};
use crate::splitmix::SplitMix64;
use crate::text::read_text;

/// Short words, about one token each in most vocabularies.
const WORDS: [&str; 48] = [
    "the", "a", "of", "and", "to", "in", "is", "was", "it", "for", "on", "with", "as", "that",
    "by", "at", "from", "his", "her", "they", "one", "all", "had", "but", "not", "this", "have",
    "or", "were", "she", "which", "when", "there", "two", "more", "time", "day", "man", "house",
    "water", "people", "world", "made", "found", "city", "work", "year", "long",
];
/// Numbers of words in the requests that measure how many tokens a word has.
const TRIALS: [usize; 2] = [64, 192];

/// Requests by number.
pub enum Requests {
    /// Prompts that share no beginning.
    Random {
        is_chat: bool,
        words: usize,
        tokens: usize,
    },
    /// The bodies of a file.
    Read(Vec<Value>),
}

impl Requests {
    /// Makes requests with prompts and answers of `lengths` tokens. Two trial requests measure the tokens per word.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn random(server: &Server, lengths: (usize, usize)) -> Result<Self> {
        let (prompt, tokens) = lengths;
        let is_chat = server.is_chat();
        let mut sizes = Vec::new();
        for words in TRIALS {
            let trial = Requests::Random {
                is_chat,
                words,
                tokens: 1,
            };
            let sent = server.send(&trial.body(usize::MAX), Instant::now());
            let sent = sent.map_err(|reason| Error::input(server.url(), reason))?;
            sizes.extend(sent.prompt_tokens);
        }
        let words = match sizes[..] {
            [few, many] if many > few => {
                let per_word = (many - few) as f64 / (TRIALS[1] - TRIALS[0]) as f64;
                let template = few as f64 - per_word * TRIALS[0] as f64;
                ((prompt as f64 - template) / per_word).round().max(1.0) as usize
            }
            _ => {
                eprintln!("note: the server counts no tokens; prompts have {prompt} words");
                prompt
            }
        };
        Ok(Requests::Random {
            is_chat,
            words,
            tokens,
        })
    }

    /// Reads requests from a file with a JSON object per line.
    ///
    /// # Errors
    /// The file cannot be read, or a line holds no object with messages or a prompt.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, l)| !l.trim().is_empty());
        let bodies = lines.map(|(index, line)| {
            let place =
                |reason: String| Error::input(path, format!("line {}: {reason}", index + 1));
            let body: Value = serde_json::from_str(line).map_err(|e| place(e.to_string()))?;
            if body["messages"].is_null() && body["prompt"].is_null() {
                return Err(place("expected an object with messages or a prompt".into()));
            }
            Ok(body)
        });
        let bodies = bodies.collect::<Result<Vec<_>>>()?;
        if bodies.is_empty() {
            return Err(Error::input(path, "expected a request per line"));
        }
        Ok(Requests::Read(bodies))
    }

    /// Returns the body of a request.
    pub fn body(&self, number: usize) -> Value {
        match self {
            Requests::Read(bodies) => bodies[number % bodies.len()].clone(),
            Requests::Random {
                is_chat,
                words,
                tokens,
            } => {
                let mut random = SplitMix64(number as u64);
                let text: Vec<&str> = (0..*words).map(|_| random.one_of(&WORDS)).collect();
                let text = text.join(" ");
                // The last two fields keep the answer from ending early, in our server, llama.cpp's and vLLM's.
                let mut body = json!({
                    "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "min_tokens": tokens,
                });
                if *is_chat {
                    body["messages"] = json!([{ "role": "user", "content": text }]);
                } else {
                    body["prompt"] = text.into();
                }
                body
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_prompts_repeat_by_number_only() {
        let requests = Requests::Random {
            is_chat: true,
            words: 20,
            tokens: 5,
        };
        assert_eq!(requests.body(3), requests.body(3));
        let text = |number| requests.body(number)["messages"][0]["content"].clone();
        assert_ne!(text(3), text(4));
        assert_eq!(text(3).as_str().unwrap_or("").split(' ').count(), 20);
    }

    #[test]
    fn files_hold_a_request_per_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("requests.jsonl");
        std::fs::write(&path, "{\"prompt\": \"a\"}\n\n{\"messages\": []}\n").expect("written");
        let requests = Requests::read(&path).expect("requests");
        assert_eq!(requests.body(0), requests.body(2));
        assert!(requests.body(1)["messages"].is_array());
        for (text, reason) in [
            ("", "a request per line"),
            ("{\"x\": 1}", "line 1: "),
            ("{", "line 1: "),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = Requests::read(&path).err().expect("an error").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
