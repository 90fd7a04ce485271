//! Simulates a person at a pseudo-terminal who chats with the program.

#![allow(dead_code)] // each test binary uses a part

use std::path::Path;
use std::process::{Command, Stdio};

use rexpect::error::Error;
use rexpect::process::{Signal, WaitStatus};
use rexpect::session::{PtySession, spawn_command};

use super::common::Workplace;

/// The milliseconds that a slow and busy machine may take for one step.
const PATIENCE: u64 = 120_000;

/// The status line below each answer, before and after the position. (`rexpect` treats each byte as a character, so these are ASCII.)
pub const STATS: (&str, &str) = (" tok/s ", " tokens read");

/// A person at a terminal.
pub struct Person {
    pub terminal: PtySession,
}

impl Person {
    /// Starts a chat and waits for its prompt.
    pub fn sits_down(place: &Workplace, model: &Path, flags: &[&str]) -> Self {
        let mut command = place.command(["chat".as_ref(), model.as_os_str()]);
        command
            .args([
                "-n",
                "6",
                "--seed",
                "3",
                "--temperature",
                "1",
                "--ignore-eos",
            ])
            .args(flags);
        Self::starts(command)
    }

    pub fn starts(mut command: Command) -> Self {
        command.env("NO_COLOR", "1");
        let mut person = Self::waits(command);
        person.sees("/help lists");
        person.sees("Try:");
        person.sees_prompt();
        person
    }

    /// Kills the program, as a power cut would.
    pub fn loses_power(mut self) {
        let killed = self.terminal.process_mut().kill(Signal::SIGKILL);
        killed.expect("the program was there");
    }

    /// Starts a chat without waiting for its prompt.
    pub fn waits(mut command: Command) -> Self {
        command.stdin(Stdio::inherit()).env("TERM", "xterm");
        Person {
            terminal: spawn_command(command, Some(PATIENCE)).expect("a terminal"),
        }
    }

    /// Waits for `text`; returns the text before it.
    #[track_caller]
    pub fn sees(&mut self, text: &str) -> String {
        self.terminal
            .exp_string(text)
            .unwrap_or_else(|error| panic!("{text:?} was not seen: {error}"))
    }

    #[track_caller]
    pub fn sees_prompt(&mut self) {
        self.sees("> ");
    }

    pub fn presses(&mut self, keys: &str) {
        self.terminal
            .send(keys)
            .and_then(|_| self.terminal.flush())
            .expect("the terminal takes keys");
    }

    /// Types a line and Enter.
    pub fn types(&mut self, line: &str) {
        self.presses(line);
        self.sees_typed(line);
        self.presses("\r");
    }

    /// Waits until the typed text is shown completely; keys sent earlier could arrive too soon.
    #[track_caller]
    pub fn sees_typed(&mut self, line: &str) {
        let start = line.char_indices().rev().take(4).last();
        self.sees(&line[start.map_or(0, |(at, _)| at)..]);
    }

    /// Sends a message and waits for the end of the answer; returns the position after it.
    #[track_caller]
    pub fn says(&mut self, line: &str) -> u64 {
        self.types(line);
        let position = self.sees_position();
        self.sees_prompt();
        position
    }

    /// Gives a command and waits for `reply`.
    #[track_caller]
    pub fn commands(&mut self, line: &str, reply: &str) {
        self.types(line);
        self.sees(reply);
        self.sees_prompt();
    }

    #[track_caller]
    pub fn sees_position(&mut self) -> u64 {
        self.sees(STATS.0);
        let position = self.sees(STATS.1);
        let digits: String = position.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("a position")
    }

    pub fn presses_ctrl(&mut self, key: char) {
        self.terminal
            .send_control(key)
            .expect("the terminal takes keys");
    }

    /// Checks that the program ends with `status`.
    #[track_caller]
    pub fn ends_with(mut self, status: i32) {
        match self.terminal.exp_eof() {
            // Systems report the end of a terminal differently.
            Ok(_) | Err(Error::EOF { .. }) => {}
            Err(error) => panic!("the program goes on: {error}"),
        }
        let ended = self.terminal.process().wait().expect("a status");
        assert!(
            matches!(ended, WaitStatus::Exited(_, found) if found == status),
            "{ended:?}"
        );
    }
}
