//! What can be typed after a slash.

use std::path::{Path, PathBuf};

use rustyline::completion::FilenameCompleter;
use waterline::Snapshot;

use super::conversation::Conversation;
use super::screen::Screen;
use super::sessions::{Sessions, title_of};
use super::{gauge, settings};
use crate::error::{Error, Result};
use crate::text::shown_line;
use crate::units::{bytes, rounded, thousands};
use crate::write_model::check_output;

/// A command: its names, what may follow, what it does.
struct Help {
    /// The first is the one that is listed; the others do the same.
    names: &'static [&'static str],
    arguments: &'static str,
    about: &'static str,
}

const fn help(
    names: &'static [&'static str],
    arguments: &'static str,
    about: &'static str,
) -> Help {
    Help {
        names,
        arguments,
        about,
    }
}

const COMMANDS: [Help; 15] = [
    help(&["help", "?"], "", "this list"),
    help(
        &["system"],
        "[TEXT]",
        "instructions ahead of the conversation; show them without TEXT, none removes them",
    ),
    help(&["clear", "new"], "", "begin a new conversation"),
    help(
        &["regen", "retry"],
        "",
        "another answer to the last message",
    ),
    help(&["undo"], "", "take the last message and its answer back"),
    help(
        &["fork"],
        "[NAME]",
        "go to the fork NAME, made here if it is new; list them without NAME",
    ),
    help(
        &["save"],
        "[FILE]",
        "keep the conversation in FILE, or under its first words",
    ),
    help(&["save!"], "FILE", "the same in place of what FILE holds"),
    help(&["load"], "FILE", "go on with the conversation in FILE"),
    help(
        &["sessions"],
        "[N]",
        "list the conversations that are kept, or go on with number N",
    ),
    help(&["resume"], "", "go on with the last conversation"),
    help(
        &["state"],
        "[--all]",
        "what the session's memory holds; every piece of it with --all",
    ),
    help(
        &["set"],
        "[KEY VALUE]",
        "change a setting; list them without KEY",
    ),
    help(&["stats"], "", "tokens and times so far"),
    help(&["quit", "exit", "bye"], "", "leave, as Ctrl-D"),
];

const KEYS: &str = "A backslash at the end of a line, or Alt-Enter, begins a new line; so does Enter between \"\"\" and \"\"\". \
                    Tab completes commands and what follows them. Ctrl-C stops an answer.";

/// What is to be done after a command.
pub enum Action {
    /// Nothing.
    Done,
    /// Send a message.
    Say(String),
    /// Answer the last message again.
    Again,
    /// Leave.
    Quit,
}

/// A fork as it was left.
struct Fork {
    name: String,
    state: Snapshot,
    /// Where its conversation is kept.
    kept: Option<PathBuf>,
}

/// Commands, and the forks that they have made.
pub struct Commands {
    /// The fork that the conversation is.
    current: String,
    /// The others.
    forks: Vec<Fork>,
    /// The conversations in the user's folder.
    pub sessions: Sessions,
}

/// Where a completion begins, and what can stand there.
pub type Completions = (usize, Vec<String>);

/// What can be typed at the end of `line`, where there are these forks.
pub fn complete(line: &str, forks: &[String]) -> Completions {
    let Some((command, typed)) = line.split_once(' ') else {
        // What can be followed by something ends in a space, behind which the next Tab goes on.
        let names = COMMANDS.iter().flat_map(|help| {
            let space = if help.arguments.is_empty() { "" } else { " " };
            help.names.iter().map(move |name| format!("/{name}{space}"))
        });
        let fits = |name: &String| !line.is_empty() && name.starts_with(line);
        return (0, names.filter(fits).collect());
    };
    let of = |words: &mut dyn Iterator<Item = &str>| -> Completions {
        let fits = words.filter(|word| word.starts_with(typed));
        (line.len() - typed.len(), fits.map(String::from).collect())
    };
    match command {
        "/set" => of(&mut settings::names()),
        "/fork" => of(&mut forks.iter().map(String::as_str)),
        "/state" => of(&mut ["--all"].into_iter()),
        "/system" => of(&mut ["none"].into_iter()),
        "/load" | "/save" | "/save!" => {
            let found = FilenameCompleter::new().complete_path(line, line.len());
            let (start, pairs) = found.unwrap_or_default();
            (
                start,
                pairs.into_iter().map(|pair| pair.replacement).collect(),
            )
        }
        _ => (line.len(), Vec::new()),
    }
}

impl Commands {
    /// Commands of a conversation that is kept in `sessions`.
    pub fn new(sessions: Sessions) -> Self {
        Commands {
            current: "main".into(),
            forks: Vec::new(),
            sessions,
        }
    }

    /// The forks that one can go to.
    pub fn forks(&self) -> Vec<String> {
        self.forks.iter().map(|fork| fork.name.clone()).collect()
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
            let reason = format!("/{typed} stands alone, without {rest:?}");
            return Err(Error::usage(reason));
        }
        let said = match known.names[0] {
            "help" => list_commands(),
            "system" => system(rest, conversation)?,
            "clear" => {
                conversation.clear()?;
                self.sessions.begin();
                "the conversation is empty".into()
            }
            "regen" => return Ok(Action::Again),
            "undo" => match conversation.undo()? {
                Some(text) => format!("taken back: {}", first_line(&text)),
                None => return Err(Error::usage("nothing has been said yet")),
            },
            "fork" => self.fork(rest, conversation)?,
            "save" => self.save(rest, false, conversation)?,
            "save!" => self.save(rest, true, conversation)?,
            "load" if rest.is_empty() => return Err(Error::usage("/load FILE: which file?")),
            "load" => self.resume(Path::new(rest), conversation)?,
            "sessions" => self.sessions(rest, conversation)?,
            "resume" => self.sessions("1", conversation)?,
            "state" => match rest {
                "" => gauge::gauges(conversation)?,
                "--all" => gauge::tensors(conversation)?,
                _ => return Err(Error::usage("/state, or /state --all")),
            },
            "set" => settings::set(rest, conversation)?,
            "stats" => stats(conversation),
            _ => return Ok(Action::Quit),
        };
        screen.notice(&said)?;
        Ok(Action::Done)
    }

    /// Leaves the present fork as it is and goes to `name`, which begins here if it is new.
    fn fork(&mut self, name: &str, conversation: &mut Conversation) -> Result<String> {
        if name.is_empty() {
            return Ok(self.list(conversation));
        }
        if name == self.current {
            return Ok(format!("this is {name} already"));
        }
        let here = conversation.snapshot()?;
        let there = self.forks.iter().position(|fork| fork.name == name);
        let (said, kept) = match there {
            Some(there) => {
                conversation.restore(&self.forks[there].state)?;
                let fork = self.forks.remove(there);
                let messages = conversation.messages().len();
                (format!("{name}, {messages} messages"), fork.kept)
            }
            None => {
                let back = &self.current;
                let said = format!("{name} goes on from here; /fork {back} leads back");
                (said, None)
            }
        };
        self.forks.push(Fork {
            name: std::mem::replace(&mut self.current, name.into()),
            state: here,
            kept: self.sessions.exchange_automatic(kept),
        });
        Ok(said)
    }

    fn list(&self, conversation: &Conversation) -> String {
        let read = thousands(conversation.session().position());
        let mut lines = vec![format!("* {}, {read} tokens read", self.current)];
        let forks = self.forks.iter();
        lines.extend(forks.map(|fork| format!("  {}, {}", fork.name, bytes(fork.state.bytes()))));
        lines.join("\n")
    }

    /// Saves the conversation to `file`; without one to the file that it has, or else to one in the user's folder.
    fn save(&mut self, file: &str, replace: bool, conversation: &Conversation) -> Result<String> {
        let path = match (file, &self.sessions.named) {
            ("", _) if replace => return Err(Error::usage("/save! FILE: which file?")),
            ("", Some(path)) => path.clone(),
            ("", None) if conversation.messages().is_empty() => {
                return Err(Error::usage("nothing has been said yet"));
            }
            ("", None) => self.sessions.free_name(conversation)?,
            (file, _) => PathBuf::from(file),
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
        let said = format!("{}: saved", self.name(&path));
        self.sessions.named = Some(path);
        Ok(said)
    }

    /// What a conversation's file is called: by its title where it has one.
    fn name(&self, path: &Path) -> String {
        match self.sessions.has(path) {
            true => format!("\"{}\"", title_of(path)),
            false => path.display().to_string(),
        }
    }

    /// Goes on with the conversation in `path`.
    pub fn resume(&mut self, path: &Path, conversation: &mut Conversation) -> Result<String> {
        conversation.restore(&Snapshot::load(path)?)?;
        self.sessions.resume(path.to_path_buf());
        let mut said = format!(
            "{}: {} tokens, {} messages",
            self.name(path),
            conversation.session().position(),
            conversation.messages().len()
        );
        for message in conversation.messages().iter().rev().take(2).rev() {
            said += &format!(
                "\n{}: {}",
                message.role.name(),
                shown_line(&message.content, 100)
            );
        }
        Ok(said)
    }

    /// Lists the conversations in the user's folder, or goes on with one of them.
    fn sessions(&mut self, number: &str, conversation: &mut Conversation) -> Result<String> {
        let list = self.sessions.list();
        if list.is_empty() {
            return Err(Error::usage(
                "no other conversation with this model is kept",
            ));
        }
        if number.is_empty() {
            let lines = list.iter().enumerate();
            let lines = lines.map(|(i, saved)| format!("{:>3}  {}", i + 1, saved.line()));
            return Ok(lines.collect::<Vec<_>>().join("\n"));
        }
        let chosen = number.parse::<usize>().ok();
        match chosen.and_then(|n| list.get(n.checked_sub(1)?)) {
            Some(saved) => self.resume(&saved.path, conversation),
            None => Err(Error::usage(format!(
                "/sessions {number}: expected a number from 1 to {}",
                list.len()
            ))),
        }
    }
}

/// Shows, sets or removes the instructions.
fn system(text: &str, conversation: &mut Conversation) -> Result<String> {
    Ok(match text {
        "" => match conversation.system() {
            Some(text) => text.to_string(),
            None => "no instructions".into(),
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

fn list_commands() -> String {
    let line = |help: &Help| {
        let usage = format!("/{} {}", help.names[0], help.arguments);
        let others: Vec<String> = help.names[1..]
            .iter()
            .map(|name| format!("/{name}"))
            .collect();
        let others = match others.is_empty() {
            true => String::new(),
            false => format!(" ({})", others.join(", ")),
        };
        format!("{usage:<18} {}{others}", help.about)
    };
    let mut lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.push(KEYS.into());
    lines.join("\n")
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
            "memory     {} of state, {} to work with and to go back",
            bytes(session.state_bytes()),
            bytes(session.work_bytes())
        ),
        format!("threads    {}", session.threads()),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_arguments_are_completed() {
        let forks = ["main".to_string(), "aside".into()];
        let complete = |line: &str| complete(line, &forks);
        assert_eq!(complete("/cl"), (0, vec!["/clear".into()]));
        assert_eq!(complete("/lo"), (0, vec!["/load ".into()]));
        assert_eq!(complete("/set te"), (5, vec!["temperature".into()]));
        assert_eq!(complete("/fork a"), (6, vec!["aside".into()]));
        assert_eq!(complete("/state "), (7, vec!["--all".into()]));
        assert_eq!(complete("Hello th"), (8, vec![]));
        assert_eq!(complete("").1.len(), 0);
    }

    #[test]
    fn files_are_completed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("talk.state"), "").unwrap();
        let line = format!("/load {}/ta", folder.path().display());
        let (start, found) = complete(&line, &[]);
        let whole = format!("{}{}", &line[..start], found[0]);
        assert_eq!(
            whole,
            format!("/load {}/talk.state", folder.path().display())
        );
    }
}
