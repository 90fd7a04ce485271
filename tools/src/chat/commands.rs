//! What can be typed after a slash.

use std::path::Path;

use waterline::Snapshot;
use waterline::state::{SlotDtype, SlotKind};

use super::conversation::Conversation;
use super::screen::Screen;
use crate::error::{Error, Result};
use crate::sampling::{self, number};
use crate::units;
use crate::write_model::check_output;

/// A command: its name, what may follow, what it does.
type Help = (&'static str, &'static str, &'static str);

const COMMANDS: [Help; 13] = [
    ("help", "", "this list"),
    (
        "system",
        "[TEXT]",
        "instructions ahead of the conversation; none without TEXT",
    ),
    ("clear", "", "forget the conversation"),
    ("regen", "", "another answer to the last message"),
    ("undo", "", "take the last message and its answer back"),
    (
        "fork",
        "[NAME]",
        "go to the fork NAME, made here if it is new; list them without NAME",
    ),
    ("save", "FILE", "write the conversation to FILE"),
    ("load", "FILE", "continue the conversation in FILE"),
    ("state", "", "what the session's memory holds"),
    (
        "set",
        "[KEY VALUE]",
        "change a setting; list them without KEY",
    ),
    ("stats", "", "tokens and times so far"),
    ("quit", "", "leave, as Ctrl-D"),
    ("exit", "", "leave"),
];

const KEYS: &str =
    "A backslash at the end of a line, or Alt-Enter, begins a new line. Ctrl-C stops an answer.";

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

/// Commands, and the forks that they have made.
pub struct Commands {
    /// The fork that the conversation is.
    current: String,
    /// The others, as they were left.
    forks: Vec<(String, Snapshot)>,
}

impl Default for Commands {
    fn default() -> Self {
        Commands {
            current: "main".into(),
            forks: Vec::new(),
        }
    }
}

/// The commands that begin with `typed`.
pub fn complete(typed: &str) -> Vec<String> {
    let all = COMMANDS.iter().map(|(name, _, _)| format!("/{name}"));
    all.filter(|command| !typed.is_empty() && command.starts_with(typed))
        .collect()
}

impl Commands {
    /// Runs a command, given without its slash.
    pub fn run(
        &mut self,
        command: &str,
        conversation: &mut Conversation,
        screen: &mut Screen,
    ) -> Result<Action> {
        let (name, rest) = command
            .split_once(char::is_whitespace)
            .unwrap_or((command, ""));
        let rest = rest.trim();
        let takes_nothing = |(other, arguments, _): &Help| *other == name && arguments.is_empty();
        if !rest.is_empty() && COMMANDS.iter().any(takes_nothing) {
            return Err(Error::usage(format!(
                "/{name} stands alone, without {rest:?}"
            )));
        }
        match name {
            "help" => screen.notice(&help())?,
            "system" => {
                conversation.set_system(rest)?;
                screen.notice(if rest.is_empty() {
                    "no instructions"
                } else {
                    "the instructions are set"
                })?;
            }
            "clear" => {
                conversation.clear()?;
                screen.notice("the conversation is empty")?;
            }
            "regen" => return Ok(Action::Again),
            "undo" => match conversation.undo()? {
                Some(text) => screen.notice(&format!("taken back: {}", first_line(&text)))?,
                None => return Err(Error::usage("nothing has been said yet")),
            },
            "fork" => self.fork(rest, conversation, screen)?,
            "save" => {
                let path = file_argument(name, rest)?;
                check_output(path, None)?;
                conversation.snapshot()?.save(path)?;
                screen.notice(&format!("{}: saved", path.display()))?;
            }
            "load" => {
                let path = file_argument(name, rest)?;
                conversation.restore(&Snapshot::load(path)?)?;
                let position = conversation.session().position();
                screen.notice(&format!(
                    "{}: {position} tokens, {} messages",
                    path.display(),
                    conversation.messages().len()
                ))?;
            }
            "state" => screen.notice(&state(conversation)?)?,
            "set" => set(rest, conversation, screen)?,
            "stats" => screen.notice(&stats(conversation))?,
            "quit" | "exit" => return Ok(Action::Quit),
            _ => {
                return Err(Error::usage(format!(
                    "there is no command /{name}; /help lists them"
                )));
            }
        }
        Ok(Action::Done)
    }

    /// Leaves the present fork as it is and goes to `name`, which begins here if it is new.
    fn fork(
        &mut self,
        name: &str,
        conversation: &mut Conversation,
        screen: &mut Screen,
    ) -> Result<()> {
        if name.is_empty() {
            return screen.notice(&self.list(conversation));
        }
        if name == self.current {
            return screen.notice(&format!("this is {name} already"));
        }
        let here = conversation.snapshot()?;
        match self.forks.iter().position(|(other, _)| other == name) {
            Some(there) => {
                conversation.restore(&self.forks[there].1)?;
                self.forks.remove(there);
                screen.notice(&format!(
                    "{name}, {} messages",
                    conversation.messages().len()
                ))?;
            }
            None => screen.notice(&format!(
                "{name} goes on from here; /fork {} leads back",
                self.current
            ))?,
        }
        self.forks
            .push((std::mem::replace(&mut self.current, name.into()), here));
        Ok(())
    }

    fn list(&self, conversation: &Conversation) -> String {
        let mut lines = vec![format!(
            "* {}, position {}",
            self.current,
            conversation.session().position()
        )];
        lines.extend(
            self.forks
                .iter()
                .map(|(name, state)| format!("  {name}, {}", units::bytes(state.bytes()))),
        );
        lines.join("\n")
    }
}

fn help() -> String {
    let line =
        |(name, arguments, about): &Help| format!("{:<18} {about}", format!("/{name} {arguments}"));
    let mut lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.push(KEYS.into());
    lines.join("\n")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn file_argument<'a>(command: &str, rest: &'a str) -> Result<&'a Path> {
    if rest.is_empty() {
        Err(Error::usage(format!("/{command} FILE: which file?")))
    } else {
        Ok(Path::new(rest))
    }
}

/// Sets one of the parameters, or lists them.
fn set(rest: &str, conversation: &mut Conversation, screen: &mut Screen) -> Result<()> {
    const MAX_TOKENS: &str = "max-tokens";
    const THINKING: &str = "thinking";
    let mut params = conversation.session().sampler().clone();
    let Some((key, value)) = rest.split_once([' ', '=']) else {
        let known = |name: &&str| rest.is_empty() || rest == *name;
        let values = sampling::NAMES.iter().filter(|name| known(name));
        let mut lines: Vec<String> = values
            .filter_map(|name| Some(format!("{name} {}", sampling::get(&params, name)?)))
            .collect();
        if known(&MAX_TOKENS) {
            lines.push(format!("{MAX_TOKENS} {}", conversation.limits().max_tokens));
        }
        if known(&THINKING) {
            lines.push(format!(
                "{THINKING} {}",
                thinking_name(conversation.thinking())
            ));
        }
        return match lines.is_empty() {
            true => Err(Error::usage(format!(
                "there is no setting {rest:?}; /set lists them"
            ))),
            false => screen.notice(&lines.join("\n")),
        };
    };
    let value = value.trim();
    if key == MAX_TOKENS {
        conversation.limits().max_tokens = number(key, value)?;
    } else if key == THINKING {
        let switch = thinking(value).map_err(Error::usage)?;
        conversation.set_thinking(Some(switch))?;
    } else if !sampling::NAMES.contains(&key) {
        return Err(Error::usage(format!(
            "there is no setting {key:?}; /set lists them"
        )));
    } else {
        sampling::set(&mut params, key, value)?;
        conversation.set_sampler(params)?;
    }
    screen.notice(&format!("{key} {value}"))
}

/// Reads a switch.
pub fn thinking(value: &str) -> std::result::Result<bool, String> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("thinking is on or off, not {other:?}")),
    }
}

fn thinking_name(thinking: Option<bool>) -> &'static str {
    match thinking {
        Some(true) => "on",
        Some(false) => "off",
        None => "as the template has it",
    }
}

fn stats(conversation: &Conversation) -> String {
    let session = conversation.session();
    let totals = conversation.totals();
    let each = |seconds: f64, tokens: usize| 1e3 * seconds / tokens.max(1) as f64;
    [
        format!(
            "messages   {}, position {}",
            conversation.messages().len(),
            session.position()
        ),
        format!(
            "read       {} tokens, {:.2} ms each",
            totals.read,
            each(totals.read_seconds, totals.read)
        ),
        format!(
            "generated  {} tokens, {:.2} ms each",
            totals.generated,
            each(totals.generate_seconds, totals.generated)
        ),
        format!(
            "memory     {} of state, {} to work with and to go back",
            units::bytes(session.state_bytes()),
            units::bytes(session.work_bytes())
        ),
        format!("threads    {}", session.threads()),
    ]
    .join("\n")
}

/// The slots of the session's state: those of one name and shape together, and the values of counters.
fn state(conversation: &Conversation) -> Result<String> {
    let session = conversation.session();
    let snapshot = session.snapshot()?;
    let mut groups: Vec<(String, usize, usize)> = Vec::new();
    let mut counters = Vec::new();
    for (slot, bytes) in snapshot.slots() {
        let what = format!("{} {:?} {:?}", slot.name, slot.dtype, slot.shape).to_lowercase();
        match groups.iter_mut().find(|(other, ..)| *other == what) {
            Some((_, times, sum)) => (*times, *sum) = (*times + 1, *sum + bytes.len()),
            None => groups.push((what, 1, bytes.len())),
        }
        let counts_members = slot.kind == SlotKind::Counter && slot.dtype == SlotDtype::U32;
        if let Some(block) = slot.block.filter(|_| counts_members) {
            let counts = bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|&count| u32::from_le_bytes(count).to_string());
            let counts = counts.collect::<Vec<_>>().join(" ");
            let capacity = capacity(&snapshot, block).map_or(String::new(), |n| format!(" of {n}"));
            counters.push(format!(
                "block {block:<3} {}: {counts}{capacity}",
                slot.name
            ));
        }
    }
    let width = groups
        .iter()
        .map(|(what, ..)| what.len())
        .max()
        .unwrap_or(0);
    let line = |(what, times, sum): &(String, usize, usize)| {
        format!("{what:<width$}  {times:>3} x  {:>10}", units::bytes(*sum))
    };
    let mut lines: Vec<String> = groups.iter().map(line).collect();
    lines.extend(counters);
    lines.push(format!(
        "position {}, {} ({} bytes)",
        session.position(),
        units::bytes(session.state_bytes()),
        session.state_bytes()
    ));
    Ok(lines.join("\n"))
}

/// How many members each set of a block can have.
fn capacity(snapshot: &Snapshot, block: usize) -> Option<usize> {
    let mut slots = snapshot.slots().map(|(slot, _)| slot);
    let set = slots.find(|slot| slot.block == Some(block) && slot.kind == SlotKind::Set)?;
    set.shape.get(1).copied()
}
