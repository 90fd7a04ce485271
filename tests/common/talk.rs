//! A conversation through a pipe.

use super::{Outcome, Workplace, outcome_of_input};

/// Talks with a model in a new process.
pub struct Talk<'a> {
    pub place: &'a Workplace,
    pub model: String,
    pub flags: Vec<&'a str>,
}

impl<'a> Talk<'a> {
    /// A model with random weights and answers of twelve tokens.
    pub fn new(place: &'a Workplace, preset: &str) -> Self {
        let model = place.model(preset).display().to_string();
        let flags = vec![
            "-n",
            "12",
            "--seed",
            "3",
            "--temperature",
            "1",
            "--ignore-eos",
        ];
        Talk {
            place,
            model,
            flags,
        }
    }

    pub fn say(&self, input: impl AsRef<[u8]>) -> Outcome {
        let arguments = ["chat", &self.model]
            .into_iter()
            .chain(self.flags.iter().copied());
        outcome_of_input(&mut self.place.command(arguments), input.as_ref())
    }

    /// Returns the output of a successful run.
    pub fn answers(&self, input: impl AsRef<[u8]>) -> String {
        let outcome = self.say(input);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        outcome.text()
    }
}
