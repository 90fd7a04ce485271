//! Recall for models without a tokenizer: pairs of tokens, then questions.
//!
//! A sequence is BOS, body, ASK, questions. The body holds pairs of a key and a value, and filler, in random order. A
//! question is a key (in joint recall, a context and a key); the model must predict the value next, which is then fed.
//! Vocabulary:
//!
//! ```text
//! 0 PAD | 1 BOS | 2 ASK | 16..32 contexts | 32..160 keys | 160..224 values | 224..256 filler
//! ```
//!
//! The models of `tools/train/recall` are trained on these sequences, and its `tasks.py` draws exactly the same ones:
//! every random number comes from SplitMix64, in the order of the code below.

use std::ops::Range;

use super::{JOINT_CONTEXTS, Question, Sequence, Setting, Task};
use crate::splitmix::SplitMix64;

pub(super) const BOS: u32 = 1;
pub(super) const ASK: u32 = 2;
pub(super) const CONTEXTS: Range<u32> = 16..32;
pub(super) const KEYS: Range<u32> = 32..160;
pub(super) const VALUES: Range<u32> = 160..224;
pub(super) const FILLER: Range<u32> = 224..256;

/// Size of the vocabulary that a model needs.
pub const VOCAB: usize = 256;
/// Maximum keys of a sequence; for joint recall, of each context.
pub const MOST_KEYS: usize = (KEYS.end - KEYS.start) as usize;

/// The length of a sequence without filler, in tokens.
fn shortest(setting: &Setting) -> usize {
    match setting.task {
        Task::Joint => 2 + JOINT_CONTEXTS + 5 * setting.keys,
        _ => 2 + 4 * setting.keys,
    }
}

/// Draws the sequence of `seed`.
pub fn sequence(setting: &Setting, seed: u64) -> Sequence {
    let mut random = SplitMix64(seed);
    let (joint, keys) = (setting.task == Task::Joint, setting.keys);
    // A cue identifies a value: a key, or a context and a key.
    let cues: Vec<(Option<u32>, u32)> = if joint {
        let contexts = random.distinct(CONTEXTS.collect(), JOINT_CONTEXTS);
        let names = random.distinct(KEYS.collect(), keys / JOINT_CONTEXTS);
        let cues = |&context: &u32| names.iter().map(move |&name| (Some(context), name));
        contexts.iter().flat_map(cues).collect()
    } else {
        let names = random.distinct(KEYS.collect(), keys);
        names.into_iter().map(|name| (None, name)).collect()
    };
    let values: Vec<u32> = cues
        .iter()
        .map(|_| VALUES.start + random.below(VALUES.len()) as u32)
        .collect();
    // Cues in one block stay together. An item without cues is filler.
    let block = if joint { keys / JOINT_CONTEXTS } else { 1 };
    let mut items: Vec<Vec<usize>> = (0..keys)
        .step_by(block)
        .map(|first| (first..first + block).collect())
        .collect();
    if joint {
        items.iter_mut().for_each(|block| random.shuffle(block));
    }
    let filler = setting.length.saturating_sub(shortest(setting));
    items.resize(items.len() + filler, Vec::new());
    random.shuffle(&mut items);

    let mut tokens = vec![BOS];
    let mut written = vec![0; keys];
    for item in &items {
        match item.first() {
            None => tokens.push(FILLER.start + random.below(FILLER.len()) as u32),
            Some(&first) => tokens.extend(cues[first].0),
        }
        for &cue in item {
            tokens.extend([cues[cue].1, values[cue]]);
            written[cue] = tokens.len() - 1;
        }
    }
    let pair = |cue: usize| {
        let (context, key) = cues[cue];
        (
            context.into_iter().chain([key]).collect(),
            vec![values[cue]],
        )
    };
    ask(&mut random, tokens, &written, pair)
}

/// Appends to `tokens` one question for each pair, its cue and its value, in random order. The value of pair `i` was
/// written at `written[i]`.
pub(super) fn ask(
    random: &mut SplitMix64,
    mut tokens: Vec<u32>,
    written: &[usize],
    pair: impl Fn(usize) -> (Vec<u32>, Vec<u32>),
) -> Sequence {
    tokens.push(ASK);
    let mut order: Vec<usize> = (0..written.len()).collect();
    random.shuffle(&mut order);
    let mut questions = Vec::with_capacity(order.len());
    for index in order {
        let (cue, value) = pair(index);
        tokens.extend(cue);
        let first = tokens.len();
        tokens.extend(value);
        questions.push(Question {
            distance: first - 1 - written[index],
            answer: first..tokens.len(),
        });
    }
    Sequence { tokens, questions }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        task: Task,
        keys: usize,
        length: usize,
        seed: u64,
        tokens: &str,
        asked: &[(usize, usize)],
    ) {
        let setting = Setting { task, keys, length };
        let sequence = sequence(&setting, seed);
        let expected: Vec<u32> = tokens.split(' ').map(|n| n.parse().unwrap()).collect();
        assert_eq!(sequence.tokens, expected);
        let questions = sequence.questions.iter();
        let found: Vec<_> = questions
            .map(|q| (q.answer.start - 1, q.answer.start - 1 - q.distance))
            .collect();
        assert_eq!(found, asked);
    }

    /// The position of each question and of its value, as `tools/train/recall/tasks.py` draws them.
    #[test]
    fn the_trainer_draws_the_same_sequences() {
        check(
            Task::Mqar,
            4,
            0,
            1,
            "1 145 213 154 197 45 160 97 217 2 45 160 97 217 145 213 154 197",
            &[(10, 6), (12, 8), (14, 2), (16, 4)],
        );
        check(
            Task::Needle,
            1,
            16,
            2,
            "1 225 238 243 249 242 244 110 162 242 245 225 253 2 110 162",
            &[(14, 8)],
        );
        check(
            Task::Joint,
            8,
            52,
            3,
            "1 23 85 210 54 218 253 247 29 85 182 54 216 240 26 54 212 85 163 241 31 85 223 54 172 225 229 2 29 85 182 26 54 212 \
             31 85 223 26 85 163 23 85 210 23 54 218 31 54 172 29 54 216",
            &[
                (29, 10),
                (32, 16),
                (35, 22),
                (38, 18),
                (41, 3),
                (44, 5),
                (47, 24),
                (50, 12),
            ],
        );
    }

    #[test]
    fn filler_makes_up_the_length() {
        for (task, keys) in [(Task::Needles, 8), (Task::Joint, 16)] {
            for length in [0, 300] {
                let setting = Setting { task, keys, length };
                let expected = length.max(shortest(&setting));
                assert_eq!(sequence(&setting, 9).tokens.len(), expected);
            }
        }
    }
}
