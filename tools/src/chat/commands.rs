//! The slash commands.

use std::path::PathBuf;

use super::attached::Attached;
use super::completion;
use super::conversation::Conversation;
use super::export;
use super::forks::Forks;
use super::help::{self, COMMANDS, Command};
use super::screen::Screen;
use super::sessions::{Saved, Sessions, title_of};
use super::{clipboard, edit, gauge, settings};
use crate::bench::TransformerCache;
use crate::error::{Error, Result};
use crate::units::{bytes, rounded, thousands};
use crate::write_model::check_output;

/// The next step after a command.
pub enum Action {
    /// Nothing.
    Done,
    /// Send a message.
    Say(String),
    /// Answer the last message again.
    Again,
    /// Send this message instead of the last one.
    Instead(String),
    /// Continue with the model of this name or path.
    Model(PathBuf),
    /// Leave.
    Quit,
}

/// The command interpreter, with the forks and saved conversations.
pub struct Commands {
    /// The forks of the conversation.
    pub forks: Forks,
    /// The conversations in the user's folder.
    pub sessions: Sessions,
    /// The texts of files for the next message.
    pub attached: Attached,
}

impl Commands {
    /// Creates the commands for a conversation that `sessions` saves.
    pub fn new(sessions: Sessions) -> Self {
        Commands {
            forks: Forks::new(),
            sessions,
            attached: Attached::default(),
        }
    }

    /// Runs a command, given without its slash.
    pub fn run(
        &mut self,
        command: &str,
        conversation: &mut Conversation,
        screen: &mut Screen,
    ) -> Result<Action> {
        let (typed, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        let Some(known) = COMMANDS.iter().find(|help| help.names.contains(&typed)) else {
            let reason = format!("there is no command /{typed}; /help lists them");
            return Err(Error::usage(reason));
        };
        if !rest.is_empty() && known.arguments.is_empty() {
            let reason = format!("/{typed} takes no arguments, found {rest:?}");
            return Err(Error::usage(reason));
        }
        let said = match known.command {
            Command::Help => help::list(),
            Command::System => system(rest, conversation)?,
            Command::Prompt => prompt(conversation)?,
            Command::Clear => {
                conversation.clear()?;
                self.sessions.begin();
                self.attached = Attached::default();
                "the conversation is empty".into()
            }
            Command::Regenerate => return Ok(Action::Again),
            Command::Edit => match edit::last_message(conversation, screen)? {
                Some(text) => return Ok(Action::Instead(text)),
                None => "the message is as it was".into(),
            },
            Command::Read => self.attached.add(rest, conversation)?,
            Command::Copy => clipboard::copy(conversation, screen)?,
            Command::Export => export::write(rest, conversation)?,
            Command::Model if rest.is_empty() => conversation.session().model().file().into(),
            Command::Model if !self.forks.names().is_empty() => {
                let reason =
                    "/model: the forks are states of this model, which another cannot continue";
                return Err(Error::usage(reason));
            }
            Command::Model => return Ok(Action::Model(completion::path(rest))),
            Command::Undo => match conversation.undo()? {
                Some(text) => format!("taken back: {}", first_line(&text)),
                None => return Err(Error::usage("nothing has been said yet")),
            },
            Command::Fork if rest.is_empty() => self.forks.list(conversation),
            Command::Fork => self.forks.go_to(rest, conversation, &mut self.sessions)?,
            Command::Save => self.save(rest, false, conversation)?,
            Command::Replace => self.save(rest, true, conversation)?,
            Command::Load if rest.is_empty() => {
                return Err(Error::usage("/load FILE: which file?"));
            }
            Command::Load => {
                let path = completion::path(rest);
                let titled = self.sessions.titled(rest).filter(|_| !path.exists());
                self.sessions.open(&titled.unwrap_or(path), conversation)?
            }
            Command::Sessions => self.sessions(rest, conversation)?,
            Command::Resume => self.sessions("1", conversation)?,
            Command::Delete => {
                let saved = self.numbered(known.names[0], rest)?;
                self.sessions.delete(&saved)?;
                format!("\"{}\" is removed", saved.title())
            }
            Command::Rename => {
                let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
                if name.trim().is_empty() {
                    return Err(Error::usage("/rename N NAME: which name?"));
                }
                let saved = self.numbered(known.names[0], number)?;
                let path = self.sessions.rename(&saved, name)?;
                format!(
                    "\"{}\" is called \"{}\" now",
                    saved.title(),
                    title_of(&path)
                )
            }
            Command::State => match rest {
                "" => gauge::gauges(conversation)?,
                "--all" => gauge::tensors(conversation)?,
                _ => return Err(Error::usage("/state, or /state --all")),
            },
            Command::Set => settings::set(rest, conversation)?,
            Command::Sampling => settings::sampling(conversation),
            Command::Stats => stats(conversation),
            Command::Quit => return Ok(Action::Quit),
        };
        screen.notice(&said)?;
        Ok(Action::Done)
    }

    /// Saves the conversation to `file`. Without `file`, saves to the conversation's file, or else to a new file in the
    /// user's folder.
    fn save(&mut self, file: &str, replace: bool, conversation: &Conversation) -> Result<String> {
        let path = match (file, &self.sessions.named) {
            ("", _) if replace => return Err(Error::usage("/save! FILE: which file?")),
            ("", Some(path)) => path.clone(),
            ("", None) if conversation.messages().is_empty() => {
                return Err(Error::usage("nothing has been said yet"));
            }
            ("", None) => self.sessions.free_name(conversation)?,
            (file, _) => completion::path(file),
        };
        check_output(&path, None)?;
        let own = self.sessions.named.as_ref() == Some(&path);
        if path.exists() && !own && !replace {
            let name = path.display();
            return Err(Error::usage(format!(
                "{name} exists; /save! {name} replaces it"
            )));
        }
        conversation.snapshot()?.save(&path)?;
        if self.sessions.has(&path) {
            self.sessions.pin(&path);
        }
        let said = format!("{}: saved", self.sessions.name(&path));
        self.sessions.named = Some(path);
        Ok(said)
    }

    /// Lists the conversations in the user's folder, or continues the one with this number.
    fn sessions(&mut self, number: &str, conversation: &mut Conversation) -> Result<String> {
        let list = self.sessions.list();
        let present = self.sessions.present().filter(|_| number.is_empty());
        if list.is_empty() && present.is_none() {
            return Err(Error::usage(
                "no other conversation with this model is kept",
            ));
        }
        if number.is_empty() {
            let others = list.iter().enumerate();
            let others = others.map(|(i, saved)| format!("{:>3}  {}", i + 1, saved.line()));
            let present = present.map(|saved| format!("  *  {}  this one", saved.line()));
            return Ok(present
                .into_iter()
                .chain(others)
                .collect::<Vec<_>>()
                .join("\n"));
        }
        let saved = self.numbered("sessions", number)?;
        self.sessions.open(&saved.path, conversation)
    }

    /// The saved conversation with this number; `command` is named in errors.
    fn numbered(&self, command: &str, number: &str) -> Result<Saved> {
        let mut list = self.sessions.list();
        let chosen = number.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
        match chosen.filter(|&index| index < list.len()) {
            Some(index) => Ok(list.swap_remove(index)),
            None => Err(Error::usage(match list.len() {
                0 => format!("/{command}: no other conversation with this model is kept"),
                count => format!("/{command} {number}: expected a number from 1 to {count}"),
            })),
        }
    }
}

/// The text that the model has read, or the text that it will read first.
fn prompt(conversation: &Conversation) -> Result<String> {
    let read = conversation.last_text(usize::MAX);
    if read.is_empty() {
        Ok(format!("nothing yet; {}", beginning(conversation)?))
    } else {
        Ok(read)
    }
}

/// The template's text before the first message.
fn beginning(conversation: &Conversation) -> Result<String> {
    let text = conversation.beginning()?;
    Ok(if text.is_empty() {
        "the template adds nothing before the first message".into()
    } else {
        format!("the template begins with:\n{text}")
    })
}

/// Shows, sets or removes the instructions.
fn system(text: &str, conversation: &mut Conversation) -> Result<String> {
    if !text.is_empty() && conversation.first_message().is_some() {
        return Err(Error::usage(
            "/system can be set only before the first message; /clear begins a new conversation",
        ));
    }
    Ok(match text {
        "" => match conversation.system() {
            Some(text) => text.to_string(),
            None => format!("no instructions; {}", beginning(conversation)?),
        },
        "none" => {
            conversation.set_system("")?;
            "no instructions".into()
        }
        text => {
            conversation.set_system(text)?;
            "the instructions are set".into()
        }
    })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn stats(conversation: &Conversation) -> String {
    let session = conversation.session();
    let totals = conversation.totals();
    let line = |name: &str, tokens: usize, seconds: f64| {
        let speed = tokens as f64 / seconds.max(1e-9);
        let tokens = thousands(tokens as u64);
        format!("{name:<10} {tokens} tokens, {} tok/s", rounded(speed))
    };
    [
        format!(
            "messages   {}, position {}",
            conversation.messages().len(),
            session.position()
        ),
        line("read", totals.read, totals.read_seconds),
        line("generated", totals.generated, totals.generate_seconds),
        format!(
            "memory     {} of state{}, {} of working memory",
            bytes(session.state_bytes()),
            compared(conversation),
            bytes(session.work_bytes())
        ),
        format!("threads    {}", session.threads()),
    ]
    .join("\n")
}

/// The size of a Transformer's cache after the same number of tokens, shown where the state does not grow.
fn compared(conversation: &Conversation) -> String {
    let session = conversation.session();
    let cache = TransformerCache::new(session.model().spec());
    match cache.filter(|_| conversation.context().is_none()) {
        None => String::new(),
        Some(cache) => {
            let size = bytes(cache.bytes(session.position()) as usize);
            if cache.own_kv_heads {
                format!(" (a Transformer of this size: {size})")
            } else {
                format!(" (a Transformer of this size, {}: {size})", cache.heads())
            }
        }
    }
}
