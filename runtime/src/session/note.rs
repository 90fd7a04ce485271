//! The part of a conversation that is saved with the state of its session.

use serde::{Deserialize, Serialize};

use super::Session;
use crate::error::{Error, Result};
use crate::sampler::SamplerParams;
use crate::state::{HEADER, Snapshot};
use crate::text::{Message, Role};

/// Most tokens that a conversation has yet to read: the longest answers without their thought.
const MOST_UNREAD: usize = 1 << 16;
/// Most tokens of a template around an answer.
const MOST_AROUND: usize = 1 << 10;
/// Most tokens of a byte of text. Normalization makes some characters longer.
const TOKENS_OF_A_BYTE: usize = 4;

/// The point before a turn.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Start {
    pub position: u64,
    pub unread: Vec<u32>,
}

/// Messages, places of turns and parameters of a conversation.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    pub messages: Vec<Message>,
    pub starts: Vec<Start>,
    pub unread: Vec<u32>,
    pub sampler: SamplerParams,
    #[serde(default)]
    pub thinking: Option<bool>,
}

impl Note {
    /// The note of a snapshot, which `session` can go on from: a file may say anything, so every number is compared with
    /// the state and the messages that it belongs to.
    pub fn read(snapshot: &Snapshot, session: &Session) -> Result<Self> {
        let note: Note = serde_json::from_slice(&snapshot.note).map_err(|_| {
            Error::invalid(
                "state",
                "it is the state of a session, but not of a conversation",
            )
        })?;
        session.check_snapshot(snapshot)?;
        note.check(snapshot.arena().tensor::<u64>(HEADER)[0], session)?;
        Ok(note)
    }

    fn check(&self, position: u64, session: &Session) -> Result<()> {
        let wrong = |reason: String| {
            Err(Error::Snapshot {
                file: "state".into(),
                reason,
            })
        };
        let is_question = |message: &&Message| message.role == Role::User;
        let turns = self.messages.iter().filter(is_question).count();
        if self.starts.len() != turns {
            let starts = self.starts.len();
            return wrong(format!("it says where {starts} of {turns} turns begin"));
        }
        let mut earlier = 0;
        for (turn, start) in self.starts.iter().enumerate() {
            if !(earlier..=position).contains(&start.position) {
                return wrong(format!(
                    "turn {turn} begins at position {}, expected {earlier} to {position}",
                    start.position
                ));
            }
            earlier = start.position;
        }
        // The answer before each turn, and the last one.
        let answers = self.messages.iter().enumerate();
        let answers = answers.filter(|(_, message)| is_question(message));
        let answer = |index: usize| {
            let message = index.checked_sub(1).and_then(|at| self.messages.get(at));
            message.filter(|message| message.role == Role::Assistant)
        };
        let before = answers.map(|(index, _)| answer(index));
        let unread = self.starts.iter().map(|start| &start.unread);
        let last = [(answer(self.messages.len()), &self.unread)];
        let vocab = session.model().spec().vocab;
        for (answer, unread) in before.zip(unread).chain(last) {
            let bytes = answer.map_or(0, |message| message.content.len());
            let most = (MOST_AROUND + TOKENS_OF_A_BYTE * bytes).min(MOST_UNREAD);
            if unread.len() > most {
                return wrong(format!(
                    "{} tokens of an answer of {bytes} bytes are to be read, expected at most {most}",
                    unread.len()
                ));
            }
            if let Some(token) = unread.iter().find(|&&token| token as usize >= vocab) {
                return wrong(format!(
                    "token {token} is to be read, expected a token below {vocab}"
                ));
            }
        }
        Ok(())
    }
}
