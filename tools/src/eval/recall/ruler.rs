//! A single needle in a haystack, as in RULER (S-NIAH, arXiv 2404.06654): plain text without the turns of a chat, for
//! any model with a tokenizer.
//!
//! ```text
//! A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the number afterwards.
//! HAYSTACK, in it: One of the special magic numbers for KEY is: VALUE.
//! What is the special magic number for KEY mentioned in the provided text? The special magic number for KEY mentioned in the
//! provided text is VALUE
//! ```
//! In the first task, the haystack repeats RULER's five sentences and the value is a number of seven digits. The second
//! and third tasks use sentences of stories in place of RULER's essays, and the third hides a UUID. RULER lets the
//! model generate text and searches the value in it. Here each token of the value must have the largest logit, which is
//! equivalent for a model that begins with the value.

use super::text::{Written, sentence};
use super::{Question, Sequence, Setting, Task};
use crate::error::Result;
use crate::splitmix::SplitMix64;
use waterline::Tokenizer;

const NOISE: [&str; 5] = [
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
];
const KINDS: [&str; 12] = [
    "brave", "calm", "early", "gentle", "humble", "jolly", "lucky", "modern", "proud", "quick",
    "rapid", "swift",
];
const WORDS: [&str; 12] = [
    "anchor", "bridge", "candle", "desert", "engine", "forest", "harbor", "island", "lantern",
    "meadow", "saddle", "violin",
];

/// Draws the value of a needle. Also returns the value's name in the text.
fn value(task: Task, random: &mut SplitMix64) -> (&'static str, String) {
    if task != Task::Sniah3 {
        return ("number", (1_000_000 + random.below(9_000_000)).to_string());
    }
    let bits = (u128::from(random.bits()) << 64) | u128::from(random.bits());
    let hex = format!("{bits:032x}");
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
    ("uuid", parts.map(|(from, to)| &hex[from..to]).join("-"))
}

/// Draws the sequence of `seed`, about as long as the setting requires. It begins with the model's BOS token, if there is one.
pub fn sequence(
    tokenizer: &Tokenizer,
    bos: Option<u32>,
    setting: &Setting,
    seed: u64,
) -> Result<Sequence> {
    let mut random = SplitMix64(seed);
    let key = format!("{}-{}", random.one_of(&KINDS), random.one_of(&WORDS));
    let (kind, value) = value(setting.task, &mut random);
    let before = format!(
        "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} afterwards.\n"
    );
    let needle = format!("One of the special magic {kind}s for {key} is: {value}.");
    let question = format!(
        "What is the special magic {kind} for {key} mentioned in the provided text? The special magic {kind} for {key} mentioned in the provided text is {value}"
    );
    let count = |text: &str| -> Result<usize> { Ok(tokenizer.encode(text)?.len()) };
    let others = count(&before)? + count(&needle)? + count(&question)?;
    let mut sentences: Vec<String> = Vec::new();
    loop {
        // A sentence alone can have more tokens than it has after another sentence.
        let mut tokens = others + count(&sentences.join(" "))?;
        if tokens >= setting.length {
            break;
        }
        while tokens < setting.length {
            let text = match setting.task {
                Task::Sniah1 => NOISE[sentences.len() % NOISE.len()].to_string(),
                _ => sentence(&mut random),
            };
            tokens += count(&text)?;
            sentences.push(text);
        }
    }
    sentences.insert(random.below(sentences.len() + 1), needle);
    let text = format!("{before}{}\n{question}", sentences.join(" "));

    let mut tokens: Vec<u32> = bos.into_iter().collect();
    tokens.extend(tokenizer.encode(&text)?);
    let written = Written::new(tokenizer, &tokens);
    let stated = written.find(0, &value)?;
    let asked = written.find(stated + value.len(), &value)?;
    let holding = |start: usize| written.holding(start..start + value.len());
    let answer = holding(asked);
    Ok(Sequence {
        questions: vec![Question {
            distance: answer.start - holding(stated).end,
            answer,
        }],
        tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin::OpenArgs;

    #[test]
    fn the_answer_is_the_hidden_value() {
        let model = OpenArgs::default().model(None).unwrap();
        let tokenizer = model.tokenizer().unwrap();
        let text = |tokens: &[u32]| {
            let bytes = tokens
                .iter()
                .flat_map(|&token| tokenizer.token_bytes(token));
            String::from_utf8(bytes.copied().collect()).unwrap()
        };
        for (task, width) in [(Task::Sniah1, 7), (Task::Sniah2, 7), (Task::Sniah3, 36)] {
            let setting = Setting {
                task,
                keys: 1,
                length: 400,
            };
            let sequence = sequence(&tokenizer, model.bos(), &setting, 3).unwrap();
            let length = sequence.tokens.len();
            assert!((395..450).contains(&length), "{length} tokens");
            let [question] = &sequence.questions[..] else {
                panic!("one question");
            };
            let value = text(&sequence.tokens[question.answer.clone()]);
            assert_eq!(value.trim().len(), width);
            // The last token of the value is `distance` tokens before the question's end.
            let end = question.answer.start - question.distance;
            let before = text(&sequence.tokens[..end]);
            assert!(
                before.trim_end_matches('.').ends_with(value.trim()),
                "{before}"
            );
            let whole = text(&sequence.tokens);
            assert_eq!(whole.matches(value.trim()).count(), 2);
        }
    }
}
