//! The state files of a server, by name. A request that names one follows its text; a prompt that begins with its tokens does so too,
//! since the prefix store reads from these files.

use std::path::PathBuf;
use std::sync::Arc;

use hyper::StatusCode;
use waterline::{Model, Session, StateFile};

use super::App;
use super::prompt::Prompt;
use super::refusal::Refusal;
use crate::error::{Error, Result};
use crate::run::{ROOM, tokens_after};

/// A state file on the command line, with its name.
#[derive(Clone)]
pub struct NamedFile {
    name: String,
    path: PathBuf,
}

/// Parses `NAME=FILE`.
pub fn named_file(text: &str) -> std::result::Result<NamedFile, String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(NamedFile {
            name: name.into(),
            path: path.into(),
        }),
        _ => Err("expected NAME=FILE".into()),
    }
}

/// Open state files with their names.
#[derive(Clone, Default)]
pub struct States(Vec<(String, Arc<StateFile>)>);

impl States {
    /// Opens the files.
    ///
    /// # Errors
    /// A file is no complete state file, or two have one name.
    pub fn open(files: &[NamedFile]) -> Result<Self> {
        let mut states = States::default();
        for NamedFile { name, path } in files {
            if states.get(name).is_some() {
                let reason = format!("--state: {name} is the name of two files");
                return Err(Error::usage(reason));
            }
            states
                .0
                .push((name.clone(), Arc::new(StateFile::open(path)?)));
        }
        Ok(states)
    }

    /// The states of a model. All states are those of an only model, whose sessions then refuse the others.
    ///
    /// # Errors
    /// [`Error::Library`]: the first call reads the model for its fingerprint.
    pub fn for_model(&self, model: &Model, is_only: bool) -> Result<Self> {
        let mut states = self.clone();
        if !is_only && !states.0.is_empty() {
            let fingerprint = model.fingerprint()?.to_string();
            let fits = |file: &StateFile| file.description().model == fingerprint;
            states.0.retain(|(_, file)| fits(file));
        }
        Ok(states)
    }

    /// Memory in the prefix store for the checkpoints of all files.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(_, file)| file.bytes() as usize).sum()
    }

    /// Context for the longest text and an answer; 0 without states.
    pub fn context(&self) -> usize {
        let lengths = self.0.iter().map(|(_, file)| file.tokens().len() + ROOM);
        lengths.max().unwrap_or(0)
    }

    /// Lets sessions that share this session's store continue from the files.
    ///
    /// # Errors
    /// The errors of [`Session::offer_state`].
    pub fn offer(&self, session: &Session) -> Result<()> {
        for (_, file) in &self.0 {
            session.offer_state(Arc::clone(file))?;
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<&Arc<StateFile>> {
        let found = self.0.iter().find(|(own, _)| own == name);
        found.map(|(_, file)| file)
    }

    /// The state that a request names.
    pub fn find(&self, name: &str) -> std::result::Result<Arc<StateFile>, Refusal> {
        self.get(name).map(Arc::clone).ok_or_else(|| {
            let reason = format!("state: this model has no state {name:?} (--state NAME=FILE)");
            Refusal::new(StatusCode::NOT_FOUND, reason)
        })
    }
}

impl App {
    /// The prompt after the text of a state.
    pub fn after(&self, state: &StateFile, prompt: &Prompt) -> waterline::Result<Prompt> {
        let before = state.tokens();
        let rest = tokens_after(Some(state), self.prompter.model(), &prompt.tokens);
        let dropped = prompt.tokens.len() - rest.len();
        let borders = prompt.borders.iter();
        let borders = borders.map(|border| border.saturating_sub(dropped) + before.len());
        Ok(Prompt {
            borders: borders.collect(),
            template: prompt.template.clone(),
            ..self.prompter.tokens([before, rest].concat())?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_a_name_and_a_file() {
        let read = named_file("book=a/b=c.state").expect("both");
        assert_eq!(read.name, "book");
        assert_eq!(read.path, PathBuf::from("a/b=c.state"));
        for text in ["book", "=book", "book="] {
            assert!(named_file(text).is_err(), "{text}");
        }
    }
}
