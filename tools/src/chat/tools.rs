//! Tools of a conversation: local commands that the model calls. Each call runs only after the person agrees.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::str::FromStr;

use serde_json::{Value, json};
use waterline::ToolCall;

use super::screen::Screen;
use crate::error::{Error, Result};
use crate::text::shown;

/// Maximum bytes of a command's output that the model reads.
const MOST_OUTPUT: usize = 16 << 10;

/// A command and its name in calls.
#[derive(Clone)]
pub struct Tool {
    name: String,
    command: String,
}

impl FromStr for Tool {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && name.chars().all(is_part) => Ok(Tool {
                name: name.into(),
                command: command.into(),
            }),
            _ => Err("expected NAME=COMMAND, NAME of letters, digits, _ and -".into()),
        }
    }
}

/// The schemas that the model sees. They allow any arguments.
pub fn schemas(tools: &[Tool]) -> Vec<Value> {
    let schema = |tool: &Tool| {
        json!({ "type": "function", "function": {
            "name": tool.name,
            "description": format!("Runs a command with the arguments as JSON: {}", tool.command),
            "parameters": { "type": "object", "properties": {} },
        }})
    };
    tools.iter().map(schema).collect()
}

/// Runs a call if the person agrees. Returns the command's output, or the reason why it did not run.
pub fn run(tools: &[Tool], call: &ToolCall, screen: &mut Screen) -> Result<String> {
    let Some(tool) = tools.iter().find(|tool| tool.name == call.name) else {
        return Ok(format!("There is no tool {:?}.", call.name));
    };
    let arguments = call.value().to_string();
    screen.notice(&format!("call of {}: {arguments}", tool.name))?;
    if !screen.interactive() {
        screen.notice("not run: there is no terminal to ask for permission")?;
        return Ok("The person did not allow this call.".into());
    }
    screen.notice(&format!("run {:?} with it? y or n", shown(&tool.command)))?;
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    read.map_err(|e| Error::io("standard input", e))?;
    if !matches!(line.trim(), "y" | "yes") {
        return Ok("The person did not allow this call.".into());
    }
    let output = output_of(&tool.command, &arguments);
    Ok(output.unwrap_or_else(|error| format!("The command cannot be run: {error}")))
}

/// Runs a command with `input` on its standard input and returns its output.
fn output_of(command: &str, input: &str) -> std::io::Result<String> {
    let (shell, flag) = if cfg!(windows) {
        ("cmd", "/C")
    } else {
        ("sh", "-c")
    };
    let mut child = Command::new(shell)
        .args([flag, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    // The command may exit without reading its arguments, or the arguments may not fit into the pipe, so a thread writes them.
    let stdin = child.stdin.take();
    let input = input.to_string();
    let writer =
        std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
    let mut bytes = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        // Closing the pipe afterwards ends a command that keeps writing.
        let mut most = stdout.take(MOST_OUTPUT as u64 + 1);
        most.read_to_end(&mut bytes)?;
    }
    let status = child.wait()?;
    let _ = writer.join();
    let is_cut = bytes.len() > MOST_OUTPUT;
    bytes.truncate(MOST_OUTPUT);
    let text = String::from_utf8_lossy(&bytes).trim_end().to_string();
    Ok(match (is_cut, status.success()) {
        (true, _) => format!("{text}\n(cut off after {MOST_OUTPUT} bytes)"),
        (false, true) => text,
        (false, false) => format!("{text}\n({status})"),
    })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_never_stops_writing_ends_where_its_output_is_cut() {
        let output = output_of("cat; yes", "{}").expect("it runs");
        assert!(
            output.starts_with("{}y\ny\n") && output.len() < MOST_OUTPUT + 40,
            "{output:.100}"
        );
        assert_eq!(
            output_of("echo x; exit 3", "").expect("it runs"),
            "x\n(exit status: 3)"
        );
    }
}
