//! Finds the commands in a document: code between backticks, and all lines of code blocks that begin with a command.

/// First words of commands. A script is recognized by its path.
const PROGRAMS: [&str; 11] = [
    "waterline",
    "cargo",
    "python",
    "python3",
    "pip",
    "cc",
    "pkg-config",
    "sudo",
    "export",
    "git",
    "perf",
];

/// The program's subcommands, which documents also write without its name: `bench MODEL --gen 60`.
const COMMANDS: [&str; 12] = [
    "chat", "run", "serve", "bench", "convert", "quantize", "imatrix", "inspect", "verify", "eval",
    "synth", "kernels",
];

pub type Words = Vec<String>;

fn is_script(word: &str) -> bool {
    word.ends_with(".py") || word.ends_with(".sh") || word.starts_with("ffi/") || word == "./stress"
}

fn is_command(words: &Words) -> bool {
    PROGRAMS.contains(&&*words[0]) || is_script(&words[0])
}

/// Parses lines of a shell; a loop runs once.
#[derive(Default)]
struct Shell {
    /// The variable of the last loop, with `$`, and its first value.
    variable: Option<(String, String)>,
}

impl Shell {
    /// Returns the words of each simple command in a line, without variable assignments, comments, and the brackets around optional parts.
    fn simple_commands(&mut self, line: &str) -> Vec<Words> {
        let line = line.split(" # ").next().unwrap_or(line);
        let line = line.split("  #").next().unwrap_or(line);
        let mut found = Vec::new();
        for part in line.split(';').map(str::trim) {
            if let Some((name, values)) =
                part.strip_prefix("for ").and_then(|l| l.split_once(" in "))
            {
                let first = values.split_whitespace().next().unwrap_or_default();
                self.variable = Some((format!("${name}"), first.into()));
                continue;
            }
            let words = part.trim_start_matches("do ").split_whitespace();
            let words = words.skip_while(|word| word.starts_with("WATERLINE_"));
            let words: Words = words.map(|word| self.value(word)).collect();
            if !words.is_empty() && !["do", "done"].contains(&&*words[0]) {
                found.push(named(words));
            }
        }
        found
    }

    fn value(&self, word: &str) -> String {
        let word = word.replace(['[', ']'], "");
        match &self.variable {
            Some((name, value)) => word.replace(name, value),
            None => word,
        }
    }
}

/// Puts the program's name before the words if it is missing.
fn named(words: Words) -> Words {
    let has_flag = words.iter().any(|word| word.starts_with('-'));
    let program = (has_flag && COMMANDS.contains(&&*words[0])).then(|| "waterline".into());
    program.into_iter().chain(words).collect()
}

/// Returns the commands in a document. The commands of a code block stay together, since one may use another's output.
pub fn commands(text: &str) -> Vec<Vec<Words>> {
    let text = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for (i, block) in text.split("\n```").enumerate() {
        let mut shell = Shell::default();
        if i % 2 == 0 {
            // A single word is only the name of a program or a file.
            let pieces = block.split('`').skip(1).step_by(2);
            let pieces = pieces.flat_map(|piece| shell.simple_commands(piece));
            let pieces = pieces.filter(|words| words.len() > 1 && is_command(words));
            found.extend(pieces.map(|words| vec![words]));
            continue;
        }
        // The first line is the block's language.
        let lines = block.lines().skip(1);
        let lines: Vec<_> = lines.flat_map(|line| shell.simple_commands(line)).collect();
        if lines.first().is_some_and(is_command) {
            found.push(lines);
        }
    }
    found
}
