//! Command lines as people type them: inserts a missing command, and suggests a correction for an invalid command line.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::flags;
use crate::session::MOST_TOKENS;
use crate::units::in_words;
use crate::wrong_model::{advice, is_like_a_model, quoted};

/// Inserts the omitted command `chat` if there are no arguments, or the first one is a flag or a model.
pub fn complete(mut arguments: Vec<OsString>, commands: &[String]) -> Vec<OsString> {
    if arguments.is_empty() {
        arguments.push("waterline".into());
    }
    const OWN_FLAGS: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let is_chat = match arguments.get(1) {
        None => true,
        Some(first) => {
            let text = first.to_string_lossy();
            let known = commands.iter().any(|command| *command == text);
            if text.starts_with('-') {
                !OWN_FLAGS.contains(&text.as_ref())
            } else {
                !known && text != "help" && (Path::new(first).exists() || text.starts_with("hf:"))
            }
        }
    };
    if is_chat {
        arguments.insert(1, "chat".into());
    }
    translated(arguments)
}

/// Translates llama.cpp's flags with one dash and several letters, which would be read as one flag per letter, and flags that are
/// values here. A number of GPU layers becomes a device, because a model is either completely on the GPU or not at all.
fn translated(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if let Some(system) = arguments.iter_mut().find(|word| *word == "-sys") {
        *system = "--system".into();
    }
    for (theirs, here) in [("--context-shift", "shift"), ("--no-context-shift", "stop")] {
        if let Some(at) = arguments.iter().position(|word| word == theirs) {
            arguments.splice(at..=at, ["--on-full".into(), here.into()]);
        }
    }
    const FLAGS: [&str; 3] = ["-ngl", "--gpu-layers", "--n-gpu-layers"];
    let is_flag = |word: &OsString| FLAGS.iter().any(|flag| word == flag);
    if let Some(at) = arguments.iter().position(is_flag)
        && let Some(layers) = arguments.get(at + 1)
    {
        let device = if layers == "0" { "cpu" } else { "cuda" };
        arguments.splice(at..at + 2, ["--device".into(), device.into()]);
    }
    arguments
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
            let measure = match error.get(ContextKind::InvalidSubcommand) {
                Some(ContextValue::String(word)) if words.first() != Some(word) => Some(word),
                _ => None,
            };
            Some(match measure {
                Some(word) => unknown_measure(word, suggested),
                None => unknown_command(&words, suggested),
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
            Some(ContextValue::String(argument)) => letters(&words)
                .or_else(|| {
                    let is_number = argument.starts_with("--max-tokens");
                    is_number.then(|| number_of_tokens(&words))?
                })
                .or_else(|| wrong_value(error, argument)),
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
    let words = in_words(&reason)?;
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

const PROMPT: [&str; 2] = ["-p", "--prompt"];

/// Suggests the largest number of tokens where a number below 1 meant no limit.
fn number_of_tokens(words: &[String]) -> Option<String> {
    let (name, rest) = words.split_first()?;
    let is_flag = |word: &String| ["-n", "--max-tokens"].contains(&word.as_str());
    let at = rest.iter().position(is_flag)?;
    let mut corrected = rest.to_vec();
    let given = std::mem::replace(corrected.get_mut(at + 1)?, MOST_TOKENS.to_string());
    Some(format!(
        "{} {given}: expected a number of tokens, 1 or more; to go on until the model ends: {}",
        rest[at],
        command(name, &corrected)
    ))
}

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
    let Some(at) = rest.iter().position(|word| word == argument) else {
        return advised();
    };
    let without = |at: usize| -> Vec<String> {
        let others = rest.iter().enumerate().filter(|(i, _)| *i != at);
        others.map(|(_, word)| word.clone()).collect()
    };
    let prompted = rest.iter().any(|word| PROMPT.contains(&word.as_str()));
    match argument {
        "-m" | "--model" => Some(format!(
            "{argument}: the model is named without a flag: {}",
            command(if prompted { "run" } else { name }, &without(at))
        )),
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
