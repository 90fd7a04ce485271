//! Command lines of llama.cpp and ollama: flags with another name here are translated, and flags that change nothing here are left out
//! with a note.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// A flag of another program.
enum Meaning {
    /// The flag changes nothing here: the reason, as part of a sentence.
    Idle(Values, &'static str),
    /// A flag here, with the same value if it takes one.
    Flag(&'static str),
    /// A flag here, with this value.
    Set(&'static str, &'static str),
    /// The model's file, which is the first argument here.
    Model,
    /// A repository of the hub.
    Hub,
    /// A file of that repository.
    HubFile,
    /// The number of layers on a GPU.
    Layers,
    /// The number format of cached keys and values.
    Cache,
}

/// The number of values of a flag.
#[derive(Clone, Copy)]
enum Values {
    None,
    One,
    /// `on`, `off` or `auto`, or none.
    Switch,
}

use Meaning::{Cache, Flag, Hub, HubFile, Idle, Layers, Set};
use Values::{None as Zero, One, Switch};

const MAPPED: &str = "weights are read where the file is mapped; --copy reads them into memory";
const WHOLE: &str = "a model is on one GPU as a whole, or on the CPU; --device chooses";
const CHUNK: &str = "the tokens of a prompt that are read at once are --chunk N";
const SILENT: &str = "nothing is logged";
const THREADS: &str = "the threads of prompts and answers are --threads N";
const TEMPLATE: &str = "the model's template is always used";
const STORE: &str = "nothing is read twice: checkpoints are kept without a flag";

/// Flags of llama.cpp's programs and of ollama.
const THEIRS: [(&[&str], Meaning); 26] = [
    (&["-m", "--model"], Meaning::Model),
    (&["-hf", "-hfr", "--hf-repo"], Hub),
    (&["-hff", "--hf-file"], HubFile),
    (&["-sys"], Flag("--system")),
    (&["--context-shift"], Set("--on-full", "shift")),
    (&["--no-context-shift"], Set("--on-full", "stop")),
    (&["-no-cnv", "--no-conversation"], Flag("--raw")),
    (&["-np", "--n-parallel"], Flag("--parallel")),
    (&["-to"], Flag("--timeout")),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Layers),
    (&["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"], Cache),
    (
        &[
            "--mlock",
            "--no-mmap",
            "--mmap",
            "-dio",
            "--direct-io",
            "-ndio",
            "--no-direct-io",
        ],
        Idle(Zero, MAPPED),
    ),
    (
        &["-fa", "--flash-attn"],
        Idle(Switch, "attention never writes its scores to memory"),
    ),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        Idle(One, CHUNK),
    ),
    (
        &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-mg",
            "--main-gpu",
            "-ot",
            "--override-tensor",
            "-ncmoe",
            "--n-cpu-moe",
            "-fit",
            "--fit",
        ],
        Idle(One, WHOLE),
    ),
    (
        &[
            "-cmoe",
            "--cpu-moe",
            "-kvo",
            "--kv-offload",
            "-nkvo",
            "--no-kv-offload",
            "--op-offload",
            "--no-op-offload",
            "--no-repack",
            "-nr",
        ],
        Idle(Zero, WHOLE),
    ),
    (
        &["-tb", "--threads-batch", "--threads-http"],
        Idle(One, THREADS),
    ),
    (
        &[
            "--numa",
            "--prio",
            "--poll",
            "--prio-batch",
            "--poll-batch",
            "--keepalive",
        ],
        Idle(One, "the system schedules threads and memory"),
    ),
    (
        &[
            "-v",
            "--verbose",
            "--log-disable",
            "--no-perf",
            "--perf",
            "--log-prefix",
            "--log-timestamps",
            "--log-colors",
            "--no-log-prefix",
        ],
        Idle(Zero, SILENT),
    ),
    (
        &["-lv", "--verbosity", "--log-verbosity", "--log-file"],
        Idle(One, SILENT),
    ),
    (
        &[
            "--color",
            "-co",
            "--simple-io",
            "--nowordwrap",
            "--no-display-prompt",
            "-st",
            "--single-turn",
        ],
        Idle(Zero, "the answer alone is printed"),
    ),
    (
        &["--no-warmup", "--warmup"],
        Idle(Zero, "a model needs no warm-up"),
    ),
    (&["--jinja", "--no-prefill-assistant"], Idle(Zero, TEMPLATE)),
    (
        &[
            "-cb",
            "--cont-batching",
            "-nocb",
            "-kvu",
            "--kv-unified",
            "--swa-full",
            "--metrics",
            "--slots",
            "--no-slots",
            "--props",
            "--webui",
            "--no-webui",
            "--cache-prompt",
        ],
        Idle(Zero, "the server does this without a flag"),
    ),
    (
        &[
            "-cram",
            "--cache-ram",
            "--cache-reuse",
            "-ctxcp",
            "--ctx-checkpoints",
            "-sps",
            "--slot-prompt-similarity",
            "-dt",
            "--defrag-thold",
        ],
        Idle(One, STORE),
    ),
    (
        &["--reasoning-format"],
        Idle(One, "thoughts are always separate from the answer"),
    ),
];

/// Translates the words of a command line after `program` and the name of the command, which is `command`. Returns the words and the
/// notes on flags that are left out.
pub fn translated(words: &[OsString], command: &Command) -> (Vec<OsString>, Vec<String>) {
    let (mut here, mut notes) = (Vec::new(), Vec::new());
    let (mut model, mut file): (Option<OsString>, Option<OsString>) = (None, None);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        if word == "--" {
            here.push(word.clone());
            here.extend(rest.cloned());
            break;
        }
        let text = word.to_string_lossy();
        let (flag, glued) = match text.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(OsString::from(value))),
            _ => (&*text, None),
        };
        if let Some(known) = argument(command, flag) {
            here.push(word.clone());
            if known.get_action().takes_values() && glued.is_none() {
                here.extend(rest.next().cloned());
            }
            continue;
        }
        let named = THEIRS.iter().find(|(names, _)| names.contains(&flag));
        let Some((_, meaning)) = named.filter(|(_, meaning)| is_here(meaning, command)) else {
            here.push(word.clone());
            continue;
        };
        let mut value = || glued.clone().or_else(|| rest.next().cloned());
        match meaning {
            Idle(Zero, why) => notes.push(format!("{flag}: {why}")),
            Idle(One, why) => {
                value();
                notes.push(format!("{flag}: {why}"));
            }
            Idle(Switch, why) => {
                let is_switch = |next: &OsString| {
                    ["on", "off", "auto", "0", "1"]
                        .iter()
                        .any(|one| next == one)
                };
                if glued.is_none() && rest.as_slice().first().is_some_and(is_switch) {
                    rest.next();
                }
                notes.push(format!("{flag}: {why}"));
            }
            Flag(ours) => {
                here.push(ours.into());
                if takes_value(command, ours) {
                    here.extend(value());
                }
            }
            Set(ours, value) => here.extend([ours.into(), value.into()]),
            Meaning::Model => model = value(),
            Hub => {
                model = value().map(|name| joined("hf:", &name));
            }
            HubFile => file = value(),
            Layers => {
                let is_none = value().is_some_and(|layers| layers == "0");
                let device = if is_none { "cpu" } else { "auto" };
                here.extend(["--device".into(), device.into()]);
                notes.push(format!("{flag}: {WHOLE}"));
            }
            Cache => match value() {
                Some(kind) if kind == "f32" => here.extend(["--kv".into(), "f32".into()]),
                _ => notes.push(format!(
                    "{flag}: keys and values are cached by --kv f16 or f32"
                )),
            },
        }
    }
    if let Some(mut model) = model {
        if let Some(file) = file {
            model.push(":");
            model.push(file);
        }
        here.insert(0, model);
    }
    (here, notes)
}

fn joined(prefix: &str, rest: &OsStr) -> OsString {
    let mut whole = OsString::from(prefix);
    whole.push(rest);
    whole
}

/// The argument of a command with this flag.
fn argument<'c>(command: &'c Command, flag: &str) -> Option<&'c Arg> {
    let has = |argument: &&Arg| match (flag.strip_prefix("--"), flag.strip_prefix('-')) {
        (Some(long), _) => {
            let aliases = argument.get_all_aliases().unwrap_or_default();
            argument.get_long() == Some(long) || aliases.contains(&long)
        }
        (None, Some(letter)) => {
            let mut letters = letter.chars();
            letters
                .next()
                .is_some_and(|short| argument.get_short() == Some(short))
                && letters.next().is_none()
        }
        (None, None) => false,
    };
    command.get_arguments().find(has)
}

fn takes_value(command: &Command, flag: &str) -> bool {
    argument(command, flag).is_some_and(|argument| argument.get_action().takes_values())
}

/// Whether the command has what the flag means.
fn is_here(meaning: &Meaning, command: &Command) -> bool {
    match meaning {
        Idle(..) => true,
        Flag(ours) | Set(ours, _) => argument(command, ours).is_some(),
        Layers => argument(command, "--device").is_some(),
        Cache => argument(command, "--kv").is_some(),
        Meaning::Model | Hub | HubFile => {
            // Elsewhere the model is not the first argument.
            let first = command.get_positionals().next();
            first.is_some_and(|first| ["model", "first"].contains(&first.get_id().as_str()))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction, Command};

    use super::*;

    /// A command with a model, a prompt, a device, a switch and a number of tokens.
    fn command() -> Command {
        Command::new("run")
            .arg(Arg::new("model"))
            .arg(Arg::new("prompt").long("prompt").short('p'))
            .arg(Arg::new("device").long("device"))
            .arg(Arg::new("raw").long("raw").action(ArgAction::SetTrue))
            .arg(
                Arg::new("tokens")
                    .long("max-tokens")
                    .alias("predict")
                    .short('n'),
            )
    }

    fn words(line: &str) -> (String, usize) {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (here, notes) = translated(&words, &command());
        let here = here.iter().map(|word| word.to_string_lossy().into_owned());
        (here.collect::<Vec<_>>().join(" "), notes.len())
    }

    #[test]
    fn flags_are_translated_or_left_out_with_a_note() {
        for (theirs, here, notes) in [
            ("-m a.gguf -p x -n 3", "a.gguf -p x -n 3", 0),
            ("-p x -m a.gguf -m b.gguf", "b.gguf -p x", 0),
            ("-hf org/name:Q4_0 -p x", "hf:org/name:Q4_0 -p x", 0),
            ("--hf-repo org/name -hff a.gguf", "hf:org/name:a.gguf", 0),
            ("x -ngl 99 -fa on --no-mmap -b 512", "x --device auto", 4),
            ("x -ngl 0 -fa --predict 4", "x --device cpu --predict 4", 2),
            ("x --flash-attn=on --ubatch-size=8", "x", 2),
            ("x -no-cnv", "x --raw", 0),
            ("-p --mlock -n 3", "-p --mlock -n 3", 0),
            ("x -- --mlock", "x -- --mlock", 0),
            ("x -np 4 --nonsense", "x -np 4 --nonsense", 0),
        ] {
            assert_eq!(words(theirs), (here.to_string(), notes), "{theirs}");
        }
    }
}
