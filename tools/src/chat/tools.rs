//! `--tool NAME=COMMAND`: commands of this machine that the model may call. Each call is shown, and run only if the person agrees.

use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use waterline::{Message, Role};

use super::screen::Screen;
use crate::calls::{Call, Calls, Format, Said, Tools};
use crate::error::{Error, Result};

/// Most bytes of a command's output that the model reads.
const MOST_OUTPUT: u64 = 16 << 10;

/// A command that the model may call.
#[derive(Clone)]
pub struct LocalTool {
    name: String,
    command: String,
}

/// A tool from `NAME=COMMAND`.
pub fn parse(text: &str) -> Result<LocalTool, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && name.chars().all(is_plain) => Ok(LocalTool {
            name: name.into(),
            command: command.into(),
        }),
        _ => Err("expected NAME=COMMAND, such as date=date".into()),
    }
}

/// The commands, and the format in which the model calls them.
pub struct LocalTools {
    tools: Vec<LocalTool>,
    format: &'static Format,
}

impl LocalTools {
    /// Fails if the chat template shows the model no calls.
    pub fn new(tools: Vec<LocalTool>, template: &str) -> Result<Self> {
        match Format::of_template(template) {
            Some(format) => Ok(LocalTools { tools, format }),
            None => Err(Error::usage(
                "--tool: the model's chat template has no calls of tools",
            )),
        }
    }

    /// The names of control tokens around calls.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        self.format.marks()
    }

    /// The tools as JSON schemas of functions.
    pub fn schemas(&self) -> Vec<Value> {
        let schema = |tool: &LocalTool| {
            json!({ "type": "function", "function": {
                "name": tool.name,
                "description": format!("Runs the command: {}", tool.command),
                "parameters": { "type": "object", "properties": {
                    "input": { "type": "string", "description": "What the command reads" },
                }},
            }})
        };
        self.tools.iter().map(schema).collect()
    }

    /// The messages after `answer` if it calls tools: the answer with its calls, and what they gave.
    pub fn results(&self, answer: &str, screen: &mut Screen) -> Result<Option<Vec<Message>>> {
        let after_thought = answer.rsplit("</think>").next().unwrap_or(answer);
        let mut calls = Calls::new(self.format, Tools(self.schemas()));
        let mut said = calls.push(after_thought.trim_start());
        said.extend(calls.finish());
        let (mut text, mut called) = (String::new(), Vec::new());
        for said in said {
            match said {
                Said::Text(part) => text.push_str(&part),
                Said::Call(call) => called.push(call),
            }
        }
        if called.is_empty() {
            return Ok(None);
        }
        let id = |index: usize| format!("call-{index}");
        let shown = |(index, call): (usize, &Call)| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": id(index), "type": "function", "function": function })
        };
        let mut message = Message::new(Role::Assistant, text.trim_end());
        let shown: Vec<Value> = called.iter().enumerate().map(shown).collect();
        message.fields.insert("tool_calls".into(), shown.into());
        let mut messages = vec![message];
        for (index, call) in called.iter().enumerate() {
            let result = self.run(call, screen)?;
            let mut message = Message::new(Role::Other("tool".into()), result);
            message.fields.insert("tool_call_id".into(), id(index).into());
            message.fields.insert("name".into(), call.name.as_str().into());
            messages.push(message);
        }
        Ok(Some(messages))
    }

    /// The output of a command, or why there is none.
    fn run(&self, call: &Call, screen: &mut Screen) -> Result<String> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.name) else {
            return Ok(format!("there is no tool {:?}", call.name));
        };
        let input = match &call.arguments["input"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let question = format!("Run {:?} on {input:?}? [y/N]", tool.command);
        screen.notice(&question)?;
        if !screen.interactive() || !agrees() {
            screen.notice("It was not run.")?;
            return Ok("the user did not allow it".into());
        }
        Ok(output(&tool.command, &input).unwrap_or_else(|error| format!("it failed: {error}")))
    }
}

/// Whether the next line says yes.
fn agrees() -> bool {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.is_ok() && ["y", "yes"].contains(&line.trim().to_lowercase().as_str())
}

fn output(command: &str, input: &str) -> std::io::Result<String> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    let mut child = Command::new(shell)
        .args([flag, command])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let mut bytes = Vec::new();
    std::thread::scope(|scope| {
        // A command need not read its input.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        stdout.map(|stdout| stdout.take(MOST_OUTPUT).read_to_end(&mut bytes))
    })
    .transpose()?;
    let status = child.wait()?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match status.success() {
        true => text,
        false => format!("{text}\n({status})"),
    })
}
