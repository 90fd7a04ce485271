//! The part of a conversation that is saved with the state of its session.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::sampler::SamplerParams;
use crate::text::Message;

/// Messages and parameters of a conversation. Where its turns begin follows from the messages, so no number of a file says it.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    pub messages: Vec<Message>,
    pub sampler: SamplerParams,
    #[serde(default)]
    pub thinking: Option<bool>,
    #[serde(default)]
    pub tools: Vec<Value>,
}

impl Note {
    /// Reads the note of a snapshot.
    pub fn read(note: &[u8]) -> Result<Self> {
        serde_json::from_slice(note).map_err(|_| {
            Error::invalid(
                "state",
                "it is the state of a session, but not of a conversation",
            )
        })
    }
}
