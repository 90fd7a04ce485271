//! Advice on flags that a command does not have, and the commands that have them.

use clap::Command;

use crate::wrong_model::quoted;

/// Flags of llama.cpp's programs that have no counterpart here, with advice.
const ELSEWHERE: [(&[&str], &str); 8] = [
    (
        &["-i", "--interactive", "-cnv", "--conversation"],
        "to talk: waterline chat MODEL",
    ),
    (
        &["--chat-template", "--chat-template-file"],
        "the model's own template is used",
    ),
    (
        &["--json-schema", "-j"],
        "a schema is read from a file: --schema FILE",
    ),
    (
        &["--grammar-file"],
        "a grammar is read by --grammar FILE, in llguidance's variant of Lark",
    ),
    (
        &[
            "--mirostat",
            "--mirostat-lr",
            "--mirostat-ent",
            "--typical",
            "--xtc-probability",
            "--dry-multiplier",
            "--dynatemp-range",
            "--samplers",
        ],
        "tokens are chosen by --temperature, --top-k, --top-p, --min-p and the penalties",
    ),
    (
        &["-np", "--n-parallel"],
        "sessions that are answered together are serve --parallel N",
    ),
    (&["--gpu", "--cuda"], "a GPU is chosen by --device cuda"),
    (
        &["-md", "--model-draft"],
        "drafts come from the text (--lookup N) or the model's own block (--mtp N)",
    ),
];

/// Returns advice on a flag of llama.cpp's programs.
pub fn counterpart(flag: &str) -> Option<String> {
    let found = ELSEWHERE.iter().find(|(flags, _)| flags.contains(&flag))?;
    Some(format!("{flag}: {}", found.1))
}

/// Returns a sentence that the command `name` lacks the flag and which commands have it; `None` if no command has it.
pub fn owners(flag: &str, name: &str, all: &Command) -> Option<String> {
    let long = flag.trim_start_matches('-');
    let has = |command: &&Command| {
        let mut arguments = command.get_arguments();
        arguments.any(|argument| argument.get_long() == Some(long))
    };
    let owners = all.get_subcommands().filter(has);
    let owners: Vec<&str> = owners.map(Command::get_name).collect();
    if owners.is_empty() || !flag.starts_with("--") {
        return None;
    }
    let verb = if owners.len() == 1 { "has" } else { "have" };
    Some(format!(
        "{flag}: {name} has no such flag; {} {verb} it",
        list(&owners)
    ))
}

/// Returns a sentence that the command `name` lacks the flag.
pub fn unknown(flag: &str, name: &str) -> String {
    let flag = quoted(flag);
    format!("{flag}: {name} has no such flag; waterline {name} --help lists them")
}

/// Joins words as `a`, `a and b` or `a, b and c`.
fn list(words: &[&str]) -> String {
    match words {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_another_command_is_found_there() {
        let flag = |name: &'static str| clap::Arg::new(name).long(name);
        let all = Command::new("all")
            .subcommand(Command::new("run").arg(flag("raw")))
            .subcommand(Command::new("bench").arg(flag("ops")).arg(flag("json")))
            .subcommand(Command::new("eval").arg(flag("json")));
        let found = |wanted| owners(wanted, "run", &all).unwrap_or_default();
        assert!(found("--ops").ends_with("; bench has it"));
        assert!(found("--json").ends_with("; bench and eval have it"));
        assert!(found("--nowhere").is_empty());
    }
}
