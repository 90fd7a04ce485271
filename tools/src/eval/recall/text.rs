//! Recall for models with a chat template: notes among sentences of stories, then questions, one per turn.
//!
//! Keys are things ("the red kite"). Values are numbers of four or five digits, which cannot be guessed. When a
//! question is asked, the model has read the right answers to the previous questions. Notes are worded as in the
//! conversations that the built-in model was trained on. Joint recall, which these do not contain, puts the same things
//! into several places.

use std::ops::Range;
use std::sync::Arc;

use waterline::Model;
use waterline::{Message, Role, Tokenizer, Turns};

use super::{JOINT_CONTEXTS, Question, Sequence, Setting, Task};
use crate::error::{Error, Result};
use crate::splitmix::SplitMix64;

const COLORS: [&str; 14] = [
    "red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "white", "black",
    "gray", "golden", "silver", "striped",
];
const THINGS: [&str; 16] = [
    "ball", "kite", "boat", "hat", "box", "drum", "cup", "book", "bell", "key", "lamp", "chair",
    "basket", "blanket", "train", "spoon",
];
const PLACES: [&str; 8] = [
    "kitchen", "garden", "barn", "attic", "library", "bakery", "cave", "castle",
];
const NAMES: [&str; 10] = [
    "Tom", "Lily", "Ben", "Mia", "Sam", "Anna", "Max", "Rosa", "Leo", "Nora",
];
const ANIMALS: [&str; 10] = [
    "fox", "bear", "rabbit", "duck", "frog", "owl", "mouse", "dog", "cat", "goat",
];

/// Maximum keys of a sequence; for joint recall, of each context.
pub const MOST_KEYS: usize = COLORS.len() * THINGS.len();

/// Writes sequences for one model.
pub struct Writer {
    tokenizer: Arc<Tokenizer>,
    turns: Turns,
}

/// A note: the thing, its place, and its value.
struct Note {
    thing: String,
    place: Option<&'static str>,
    value: String,
}

/// A message, with the note number and the byte range of each value in it.
#[derive(Default)]
struct Text {
    text: String,
    values: Vec<(usize, Range<usize>)>,
}

impl Text {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends the value of note number `note`.
    fn push_value(&mut self, note: usize, value: &str) {
        let start = self.text.len();
        self.push(value);
        self.values.push((note, start..self.text.len()));
    }
}

impl Writer {
    /// Creates a writer. The model needs a tokenizer and a chat template.
    pub fn new(model: &Model) -> Result<Self> {
        let (tokenizer, template) = (model.tokenizer()?, Arc::new(model.chat_template()?));
        Ok(Writer {
            turns: Turns::new(template, Arc::clone(&tokenizer))?,
            tokenizer,
        })
    }

    /// Writes the sequence of `seed`. The first message is about as long as the setting requires, in tokens.
    pub fn sequence(&self, setting: &Setting, seed: u64) -> Result<Sequence> {
        let mut random = SplitMix64(seed);
        let notes = notes(setting, &mut random);
        let mut order: Vec<usize> = (0..notes.len()).collect();
        random.shuffle(&mut order);
        let mut first = self.statement(setting, &notes, &mut random)?;
        let mut messages = Vec::with_capacity(2 * notes.len());
        for (i, &asked) in order.iter().enumerate() {
            let mut question = if i == 0 {
                std::mem::take(&mut first)
            } else {
                Text::default()
            };
            question.push(&ask(setting.task, &notes[asked]));
            let mut answer = Text::default();
            if setting.task != Task::Mqar {
                answer.push(&format!("The {}: ", notes[asked].thing));
            }
            answer.push_value(asked, &notes[asked].value);
            if setting.task != Task::Mqar {
                answer.push(".");
            }
            messages.extend([(Role::User, question), (Role::Assistant, answer)]);
        }
        self.locate(messages)
    }

    /// Writes the first message up to its question.
    fn statement(
        &self,
        setting: &Setting,
        notes: &[Note],
        random: &mut SplitMix64,
    ) -> Result<Text> {
        let block = match setting.task {
            Task::Joint => notes.len() / JOINT_CONTEXTS,
            _ => 1,
        };
        let mut parts: Vec<Text> = notes
            .chunks(block)
            .enumerate()
            .map(|(i, notes)| tell(setting.task, i * block, notes))
            .collect();
        let mut tokens = 0;
        for part in &parts {
            tokens += self.tokenizer.encode(&part.text)?.len();
        }
        while tokens < setting.length {
            let text = sentence(random);
            tokens += self.tokenizer.encode(&text)?.len();
            parts.push(Text {
                text,
                values: Vec::new(),
            });
        }
        random.shuffle(&mut parts);
        let mut all = Text::default();
        all.push(match setting.task {
            Task::Mqar => "Here is a list.\n",
            _ => "Read this and remember the notes.\n\n",
        });
        for part in parts {
            let start = all.text.len();
            let values = part.values.into_iter();
            let moved = values.map(|(note, at)| (note, at.start + start..at.end + start));
            all.values.extend(moved);
            all.push(&part.text);
            all.push("\n");
        }
        all.push(match setting.task {
            Task::Mqar => "\nAnswer from the list. ",
            _ => "\n",
        });
        Ok(all)
    }

    /// Encodes the conversation and locates the tokens of the answers' values.
    fn locate(&self, messages: Vec<(Role, Text)>) -> Result<Sequence> {
        let plain = messages.iter();
        let plain: Vec<Message> = plain
            .map(|(role, text)| Message::new(role.clone(), text.text.as_str()))
            .collect();
        let tokens = self.turns.transcript(&plain)?;
        let text_of_tokens = Written::new(&self.tokenizer, &tokens);
        let mut written = std::collections::HashMap::new();
        let mut questions = Vec::new();
        let mut from = 0;
        for (role, text) in &messages {
            let start = text_of_tokens.find(from, &text.text)?;
            from = start + text.text.len();
            for (note, at) in &text.values {
                let range = text_of_tokens.holding(at.start + start..at.end + start);
                if *role == Role::User {
                    written.insert(*note, range.end - 1);
                } else {
                    questions.push(Question {
                        distance: range.start - 1 - written[note],
                        answer: range,
                    });
                }
            }
        }
        Ok(Sequence { tokens, questions })
    }
}

fn notes(setting: &Setting, random: &mut SplitMix64) -> Vec<Note> {
    let things = COLORS
        .iter()
        .flat_map(|color| THINGS.map(|thing| format!("{color} {thing}")));
    let places: Vec<Option<&str>> = match setting.task {
        Task::Joint => {
            let places = random.distinct(PLACES.to_vec(), JOINT_CONTEXTS);
            places.into_iter().map(Some).collect()
        }
        _ => vec![None],
    };
    let things = random.distinct(things.collect(), setting.keys / places.len());
    let mut notes = Vec::with_capacity(setting.keys);
    for place in places {
        for thing in &things {
            notes.push(Note {
                thing: thing.clone(),
                place,
                value: (1000 + random.below(99_000)).to_string(),
            });
        }
    }
    notes
}

/// Writes the part that states `notes`, the first of which has number `first`.
fn tell(task: Task, first: usize, notes: &[Note]) -> Text {
    let mut text = Text::default();
    for (i, note) in notes.iter().enumerate() {
        match (task, note.place) {
            (Task::Mqar, _) => text.push(&format!("{} = ", note.thing)),
            (_, Some(place)) if i == 0 => {
                text.push(&format!(
                    "In the {place}: the code for the {} is ",
                    note.thing
                ));
            }
            (_, Some(_)) => text.push(&format!(" The code for the {} is ", note.thing)),
            _ => text.push(&format!("Remember: the code for the {} is ", note.thing)),
        }
        text.push_value(first + i, &note.value);
        if task != Task::Mqar {
            text.push(".");
        }
    }
    text
}

fn ask(task: Task, note: &Note) -> String {
    match (task, note.place) {
        (Task::Mqar, _) => format!("{} = ?", note.thing),
        (_, Some(place)) => format!("In the {place}, what is the code for the {}?", note.thing),
        _ => format!("What is the code for the {}?", note.thing),
    }
}

/// Writes a random sentence with nothing to remember.
pub fn sentence(random: &mut SplitMix64) -> String {
    let (name, animal) = (random.one_of(&NAMES), random.one_of(&ANIMALS));
    let (color, thing) = (random.one_of(&COLORS), random.one_of(&THINGS));
    let (other, place) = (random.one_of(&NAMES), random.one_of(&PLACES));
    match random.below(5) {
        0 => format!("{name} the {animal} went to the {place} and found a {color} {thing}."),
        1 => format!("One day {name} and {other} played in the {place} until it was dark."),
        2 => format!("\"Look at my {thing}!\" said the little {animal}, and {name} laughed."),
        3 => format!("{name} was sad, so {other} gave the {animal} a big hug."),
        _ => format!("In the morning the {animal} woke up and saw that the {thing} was gone."),
    }
}

/// The text of tokens, in bytes; control tokens have no text.
pub struct Written {
    bytes: Vec<u8>,
    /// The length of the text up to the end of each token.
    ends: Vec<usize>,
}

impl Written {
    /// Decodes these tokens.
    pub fn new(tokenizer: &Tokenizer, tokens: &[u32]) -> Self {
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for &token in tokens {
            if !tokenizer.is_special(token) {
                bytes.extend_from_slice(tokenizer.token_bytes(token));
            }
            ends.push(bytes.len());
        }
        Written { bytes, ends }
    }

    /// Finds the first byte of `part`, searching from byte `from`.
    pub fn find(&self, from: usize, part: &str) -> Result<usize> {
        let mut windows = self.bytes[from..].windows(part.len());
        let found = windows.position(|window| window == part.as_bytes());
        let found = found.ok_or_else(|| {
            Error::usage("the model's chat template or tokenizer changes the text, so that the answers cannot be found in it")
        })?;
        Ok(from + found)
    }

    /// Returns the tokens that hold a part of these bytes.
    pub fn holding(&self, at: Range<usize>) -> Range<usize> {
        let first = self.ends.partition_point(|&end| end <= at.start);
        first..self.ends.partition_point(|&end| end < at.end) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::OpenArgs;

    #[test]
    fn answers_are_the_tokens_of_the_values() {
        let model = OpenArgs::default().model(None).unwrap();
        let (writer, tokenizer) = (Writer::new(&model).unwrap(), model.tokenizer().unwrap());
        let text = |tokens: &[u32]| {
            let bytes = tokens
                .iter()
                .flat_map(|&token| tokenizer.token_bytes(token));
            String::from_utf8(bytes.copied().collect()).unwrap()
        };
        for (task, keys, length) in [
            (Task::Mqar, 8, 0),
            (Task::Needles, 4, 300),
            (Task::Joint, 8, 0),
        ] {
            let setting = Setting { task, keys, length };
            let sequence = writer.sequence(&setting, 5).unwrap();
            assert_eq!(sequence.questions.len(), keys);
            assert!(sequence.tokens.len() > length);
            for question in &sequence.questions {
                let answer = &sequence.tokens[question.answer.clone()];
                let value = text(answer);
                let value = value.trim();
                assert!(
                    (1000..100_000).contains(&value.parse::<u32>().unwrap()),
                    "{value}"
                );
                // The last token of the value is `distance` tokens before the question's end.
                let written = question.answer.start - 1 - question.distance;
                assert_eq!(sequence.tokens[written], answer[answer.len() - 1]);
                let stated = text(&sequence.tokens[written + 1 - answer.len()..=written]);
                assert_eq!(stated.trim(), value);
            }
        }
    }

    #[test]
    fn a_seed_gives_a_sequence_again() {
        let model = OpenArgs::default().model(None).unwrap();
        let writer = Writer::new(&model).unwrap();
        let setting = Setting {
            task: Task::Needles,
            keys: 3,
            length: 100,
        };
        let tokens = |seed| writer.sequence(&setting, seed).unwrap().tokens;
        assert_eq!(tokens(1), tokens(1));
        assert_ne!(tokens(1), tokens(2));
    }
}
