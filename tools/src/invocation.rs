//! Command lines as people type them: inserts a missing command, and suggests a correction for an invalid command line.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::flags;
use crate::theirs::translated;
use crate::units::in_words;
use crate::wrong_model::{advice, is_like_a_model, is_pulled, quoted};

/// Completes a command line: inserts an omitted command, `run` if there is a prompt and otherwise `chat`, and translates flags of other
/// programs. Also returns notes on flags that change nothing.
pub fn complete(mut arguments: Vec<OsString>, known: &Command) -> (Vec<OsString>, Vec<String>) {
    if arguments.is_empty() {
        arguments.push("waterline".into());
    }
    const OWN_FLAGS: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let is_omitted = match arguments.get(1) {
        None => true,
        Some(first) => {
            let text = first.to_string_lossy();
            if text.starts_with('-') {
                !OWN_FLAGS.contains(&text.as_ref())
            } else {
                let is_command = known.find_subcommand(first).is_some();
                let is_model = || text.starts_with("hf:") || is_pulled(&text);
                !is_command && (Path::new(first).exists() || is_model())
            }
        }
    };
    if is_omitted {
        let is_prompt = |word: &OsString| PROMPT.iter().any(|flag| word == flag);
        let name = if arguments.iter().any(is_prompt) {
            "run"
        } else {
            "chat"
        };
        arguments.insert(1, name.into());
    }
    let Some(command) = arguments
        .get(1)
        .and_then(|name| known.find_subcommand(name))
    else {
        return (arguments, Vec::new());
    };
    let (words, notes) = translated(&arguments[2..], command);
    arguments.truncate(2);
    arguments.extend(words);
    (arguments, notes)
}

/// Returns the likely meaning of invalid arguments with a correct command line; `None` if it is unknown.
pub fn meant(error: &clap::Error, arguments: &[OsString], known: &Command) -> Option<String> {
    let words: Vec<String> = arguments
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let suggested = match error.get(ContextKind::SuggestedSubcommand) {
                Some(ContextValue::Strings(names)) => names.last().cloned(),
                _ => None,
            };
            let word = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) => word,
                _ => return None,
            };
            Some(match words.first() {
                Some(first) if first == "help" => {
                    format!("there is no command {word:?}; waterline --help lists them")
                }
                Some(first) if first != word => unknown_measure(word, suggested),
                _ => unknown_command(&words, suggested),
            })
        }
        ErrorKind::UnknownArgument => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(argument)) => {
                let suggested = error.get(ContextKind::SuggestedArg).is_some();
                unknown_argument(argument, &words, known, suggested)
            }
            _ => None,
        },
        ErrorKind::ValueValidation => match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(argument)) => {
                letters(&words).or_else(|| wrong_value(error, argument))
            }
            _ => None,
        },
        ErrorKind::ArgumentConflict => letters(&words),
        _ => None,
    }
}

/// Advice on a flag of llama.cpp that was parsed as several one-letter flags, such as `-fa`.
fn letters(words: &[String]) -> Option<String> {
    let is_short = |word: &&String| word.len() > 2 && !word.starts_with("--");
    let mut short = words.iter().filter(is_short);
    short.find_map(|word| flags::counterpart(word))
}

/// Rephrases the error of a number parser for an invalid value.
fn wrong_value(error: &clap::Error, argument: &str) -> Option<String> {
    let reason = std::error::Error::source(error)?.to_string();
    let words = in_words(&reason).unwrap_or(&reason);
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value,
        _ => return None,
    };
    let flag = argument.split_whitespace().next().unwrap_or(argument);
    Some(format!("{flag}: {value:?}: {words}"))
}

/// Advice on a word after `eval` that is not a measure.
fn unknown_measure(word: &str, suggested: Option<String>) -> String {
    let name = suggested.unwrap_or_else(|| "ppl".into());
    format!(
        "eval measures bpb, ppl, choice or recall, found {word:?}; for instance: waterline eval {name} TEXT MODEL"
    )
}

fn unknown_command(words: &[String], suggested: Option<String>) -> String {
    let (word, rest) = words.split_first().expect("an unknown command is a word");
    if word.contains(char::is_whitespace) {
        return format!(
            "there is no command {word:?}; to complete a text: {}; to talk: waterline chat",
            command("run", words)
        );
    }
    if let Some(name) = suggested {
        return format!(
            "there is no command {word:?}; try: {}",
            command(&name, rest)
        );
    }
    let path = Path::new(word);
    match advice(path).filter(|_| is_like_a_model(path)) {
        Some(reason) => format!("{word}: {reason}"),
        None => format!(
            "there is no command {word:?}; waterline --help lists them; to complete a text: {}",
            command("run", words)
        ),
    }
}

/// Flags of a prompt, which `chat` does not have.
const PROMPT: [&str; 2] = ["-p", "--prompt"];

/// Advice on a flag that the command does not have; `None` if the parser already shows a `suggested` similar flag.
fn unknown_argument(
    argument: &str,
    words: &[String],
    known: &Command,
    suggested: bool,
) -> Option<String> {
    let (name, rest) = words.split_first()?;
    // For example `eval ppl`.
    let inner = known.find_subcommand(name).and_then(|command| {
        let word = rest.first()?;
        command
            .find_subcommand(word)
            .map(|_| format!("{name} {word}"))
    });
    let whole = inner.as_deref().unwrap_or(name);
    let advised = || {
        let letter = argument.trim_start_matches('-').chars().next();
        let is_flag = argument.starts_with('-') && letter.is_some_and(char::is_alphabetic);
        let elsewhere = flags::counterpart(argument)
            .or_else(|| flags::owners(argument, whole, known).filter(|_| is_flag));
        elsewhere.or_else(|| (is_flag && !suggested).then(|| flags::unknown(argument, whole)))
    };
    // A flag and its value may be in one word.
    if !rest.iter().any(|word| word == argument) {
        return advised();
    }
    match argument {
        "--lookup" | "--mtp" => Some(format!(
            "{argument}: {name} drafts no tokens, as run and chat do; to see how fast drafts are: \
             waterline run MODEL --prompt TEXT --json {argument} 3"
        )),
        _ if name == "chat" && PROMPT.contains(&argument) => Some(format!(
            "{argument}: chat takes messages line by line; to complete a text: {}",
            command("run", rest)
        )),
        _ if name == "chat" && !argument.starts_with('-') => Some(format!(
            "{argument:?}: chat takes messages line by line; to complete a text: {}",
            command("run", rest)
        )),
        _ => advised(),
    }
}

/// Formats a command line for the command `name`.
fn command(name: &str, words: &[String]) -> String {
    let words = words.iter().map(|word| quoted(word));
    ["waterline".into(), name.into()]
        .into_iter()
        .chain(words)
        .collect::<Vec<String>>()
        .join(" ")
}
