//! Forks of a conversation: named states to return to.

use std::path::PathBuf;

use waterline::Snapshot;

use super::conversation::Conversation;
use super::sessions::Sessions;
use crate::error::Result;
use crate::units::{bytes, thousands};

/// A fork that is not current, as it was left.
struct Fork {
    name: String,
    state: Snapshot,
    /// The file of the fork's conversation.
    file: Option<PathBuf>,
}

/// The forks of a conversation.
pub struct Forks {
    /// The name of the current fork.
    current: String,
    others: Vec<Fork>,
}

impl Forks {
    /// Creates a conversation's forks with only the current one, `main`.
    pub fn new() -> Self {
        Forks {
            current: "main".into(),
            others: Vec::new(),
        }
    }

    /// The names of the other forks.
    pub fn names(&self) -> Vec<String> {
        self.others.iter().map(|fork| fork.name.clone()).collect()
    }

    /// Saves the current fork and switches to `name`. A new fork starts from the current state.
    pub fn go_to(
        &mut self,
        name: &str,
        conversation: &mut Conversation,
        sessions: &mut Sessions,
    ) -> Result<String> {
        if name == self.current {
            return Ok(format!("this is {name} already"));
        }
        let here = conversation.snapshot()?;
        let there = self.others.iter().position(|fork| fork.name == name);
        let (said, file) = match there {
            Some(there) => {
                conversation.restore(&self.others[there].state)?;
                let fork = self.others.remove(there);
                let messages = conversation.messages().len();
                (format!("{name}, {messages} messages"), fork.file)
            }
            None => {
                let back = &self.current;
                let said = format!("{name} goes on from here; /fork {back} leads back");
                (said, None)
            }
        };
        self.others.push(Fork {
            name: std::mem::replace(&mut self.current, name.into()),
            state: here,
            file: sessions.exchange_automatic(file),
        });
        Ok(said)
    }

    /// Lists the forks, the current one first.
    pub fn list(&self, conversation: &Conversation) -> String {
        let read = thousands(conversation.session().position());
        let mut lines = vec![format!("* {}, {read} tokens read", self.current)];
        let others = self.others.iter();
        lines.extend(others.map(|fork| format!("  {}, {}", fork.name, bytes(fork.state.bytes()))));
        lines.join("\n")
    }
}
