//! The examples at the end of each command's help.

use clap::Command;

/// The examples of each command, a line each.
const EXAMPLES: [(&str, &str); 22] = [
    (
        "chat",
        "waterline chat
waterline chat model.gguf --system \"Answer in one sentence.\"
waterline chat hf:org/name --resume",
    ),
    (
        "run",
        "waterline run \"Once upon a time\"
waterline run model.gguf \"Why is the sky blue?\" -n 200
waterline run model.gguf --raw -f beginning.txt
waterline run \"Once upon a time\" --exact --receipt answer.json
waterline run model.gguf \"A person\" --schema person.json --json --chat",
    ),
    (
        "serve",
        "waterline serve model.gguf
waterline serve model.gguf --port 8000 --parallel 8 --store-dir checkpoints",
    ),
    ("read", "waterline read book.txt -o book.state"),
    ("check", "waterline check book.state book.txt"),
    ("replay", "waterline replay answer.json"),
    (
        "embed",
        "waterline embed model.gguf \"A text\" \"Another text\"
waterline embed model.gguf --file lines.txt --json",
    ),
    (
        "inspect",
        "waterline inspect model.gguf
waterline inspect model.gguf --json --context 32k",
    ),
    (
        "convert",
        "waterline convert folder -o model.gguf --type q8_0",
    ),
    (
        "imatrix",
        "waterline imatrix text.txt model.gguf -o importance.gguf",
    ),
    (
        "quantize",
        "waterline quantize model.gguf -o small.gguf --type q4_k",
    ),
    ("pull", "waterline pull org/name:Q4_K_M"),
    ("list", "waterline list"),
    ("rm", "waterline rm name"),
    ("verify", "waterline verify folder"),
    (
        "synth",
        "waterline synth lalte-tiny -o random.gguf --type q4_0",
    ),
    ("eval", "waterline eval ppl text.txt model.gguf"),
    (
        "bench",
        "waterline bench model.gguf
waterline bench model.gguf --threads 1,2,4",
    ),
    (
        "kernels",
        "waterline kernels model.gguf --arch sm_90 -o kernels",
    ),
    ("tokenize", "waterline tokenize model.gguf \"Hello\""),
    (
        "completions",
        "waterline completions bash > ~/.local/share/bash-completion/completions/waterline
waterline completions zsh > ~/.zfunc/_waterline
waterline completions fish > ~/.config/fish/completions/waterline.fish",
    ),
    ("man", "waterline man ~/.local/share/man/man1"),
];

/// Adds the examples to the help of the commands.
pub fn added(mut all: Command) -> Command {
    for (name, examples) in EXAMPLES {
        if all.find_subcommand(name).is_none() {
            continue;
        }
        let lines = examples.lines().map(|line| format!("\n  {line}"));
        let text = format!("Examples:{}", lines.collect::<String>());
        all = all.mut_subcommand(name, |command| command.after_help(text));
    }
    all
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_example_is_a_command_line() {
        for line in EXAMPLES.iter().flat_map(|(_, lines)| lines.lines()) {
            // The shell takes where the output goes.
            let arguments = line.split_once(" > ").map_or(line, |(command, _)| command);
            let parts = arguments.split('"').enumerate();
            let words = parts.flat_map(|(index, part)| match index % 2 {
                0 => part.split_whitespace().collect(),
                _ => vec![part],
            });
            let parsed = crate::Cli::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
        }
    }

    #[test]
    fn every_command_has_examples() {
        let all = crate::Cli::command();
        let names: Vec<&str> = all.get_subcommands().map(Command::get_name).collect();
        for name in names {
            assert!(
                EXAMPLES.iter().any(|(command, _)| *command == name),
                "{name}"
            );
        }
    }
}
