//! The list of the slash commands.

/// A command: its names, arguments and description.
pub struct Help {
    pub command: Command,
    /// The first name is listed; the others are aliases.
    pub names: &'static [&'static str],
    /// Arguments, empty if the command takes no arguments.
    pub arguments: &'static str,
    /// Description.
    about: &'static str,
}

/// A command.
#[derive(Clone, Copy)]
pub enum Command {
    Help,
    System,
    Prompt,
    Clear,
    Regenerate,
    Edit,
    Undo,
    Read,
    Copy,
    Export,
    Model,
    Fork,
    Save,
    Replace,
    Load,
    Sessions,
    Resume,
    Delete,
    Rename,
    State,
    Set,
    Sampling,
    Stats,
    Quit,
}

const fn help(
    command: Command,
    names: &'static [&'static str],
    arguments: &'static str,
    about: &'static str,
) -> Help {
    Help {
        command,
        names,
        arguments,
        about,
    }
}

/// All commands.
pub const COMMANDS: [Help; 24] = [
    help(Command::Help, &["help", "?"], "", "list the commands"),
    help(
        Command::System,
        &["system"],
        "[TEXT]",
        "set the instructions or show them; none removes them",
    ),
    help(
        Command::Prompt,
        &["prompt"],
        "",
        "show everything that the model has read, with the template's text",
    ),
    help(
        Command::Clear,
        &["clear", "new"],
        "",
        "begin a new conversation",
    ),
    help(
        Command::Regenerate,
        &["regen", "retry"],
        "",
        "another answer to the last message",
    ),
    help(
        Command::Undo,
        &["undo"],
        "",
        "undo the last message and its answer",
    ),
    help(
        Command::Edit,
        &["edit"],
        "",
        "edit the last message in $VISUAL or $EDITOR and send it again",
    ),
    help(
        Command::Read,
        &["read"],
        "FILE",
        "put the text of FILE in front of the next message",
    ),
    help(
        Command::Copy,
        &["copy"],
        "",
        "copy the last answer to the terminal's clipboard",
    ),
    help(
        Command::Export,
        &["export"],
        "FILE",
        "write the conversation to FILE as text",
    ),
    help(
        Command::Model,
        &["model"],
        "[MODEL]",
        "continue the conversation with another model, or show the model",
    ),
    help(
        Command::Fork,
        &["fork"],
        "[NAME]",
        "switch to the fork NAME (created if it is new), or list the forks",
    ),
    help(
        Command::Save,
        &["save"],
        "[FILE]",
        "save the conversation to FILE, or under a title made of its first words",
    ),
    help(
        Command::Replace,
        &["save!"],
        "FILE",
        "save the conversation and replace FILE",
    ),
    help(
        Command::Load,
        &["load"],
        "FILE",
        "continue the conversation in FILE, or the one with that title",
    ),
    help(
        Command::Sessions,
        &["sessions"],
        "[N]",
        "list the saved conversations, or continue number N",
    ),
    help(
        Command::Resume,
        &["resume"],
        "",
        "continue the last conversation",
    ),
    help(
        Command::Delete,
        &["delete"],
        "N",
        "remove the saved conversation N of /sessions",
    ),
    help(
        Command::Rename,
        &["rename"],
        "N NAME",
        "name the saved conversation N of /sessions",
    ),
    help(
        Command::State,
        &["state"],
        "[--all]",
        "show the contents of the session's memory; --all: every tensor",
    ),
    help(
        Command::Set,
        &["set"],
        "[KEY VALUE]",
        "change a setting, or list them",
    ),
    help(
        Command::Sampling,
        &["sampling"],
        "",
        "show the sampling parameters, and those that the model's files state",
    ),
    help(Command::Stats, &["stats"], "", "tokens and times so far"),
    help(
        Command::Quit,
        &["quit", "exit", "bye"],
        "",
        "leave, as Ctrl-D",
    ),
];

const KEYS: &str = "A backslash at the end of a line, or Alt-Enter, begins a new line; so does Enter between \"\"\" and \"\"\". \
                    Tab completes commands and what follows them. Ctrl-C stops an answer.";

/// Lists the commands and keys.
pub fn list() -> String {
    let line = |help: &Help| {
        let usage = format!("/{} {}", help.names[0], help.arguments);
        let others: Vec<String> = help.names[1..]
            .iter()
            .map(|name| format!("/{name}"))
            .collect();
        let others = if others.is_empty() {
            String::new()
        } else {
            format!(" ({})", others.join(", "))
        };
        format!("{usage:<18} {}{others}", help.about)
    };
    let mut lines: Vec<String> = COMMANDS.iter().map(line).collect();
    lines.push(KEYS.into());
    lines.join("\n")
}
