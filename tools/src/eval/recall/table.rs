//! Joint recall as its authors ask for it (arXiv 2507.00449), for models without a tokenizer: every pair of a square table of
//! contexts and keys is asked for, context by context, and a context is named once. The names are the first contexts and
//! keys of the vocabulary of [`super::tokens`], and a value is one of 16. An item of the body is a complete context;
//! `tasks.py` of `tools/train/recall` draws the same sequences.

use super::tokens::{ASK, BOS, CONTEXTS, FILLER, KEYS, VALUES};
use super::{Question, Sequence, Setting};
use crate::splitmix::SplitMix64;

/// Maximum number of contexts, and of keys in each.
pub const MOST_SIDE: usize = (CONTEXTS.end - CONTEXTS.start) as usize;
/// Number of different values.
const DIFFERENT: usize = 16;

/// Returns the number of contexts, which is that of keys in each, or `None` if no square table has this number of pairs.
pub fn side(keys: usize) -> Option<usize> {
    let side = keys.isqrt();
    (side * side == keys).then_some(side)
}

/// Draws the sequence of `seed`. The number of keys is a square number.
pub fn sequence(setting: &Setting, seed: u64) -> Sequence {
    let mut random = SplitMix64(seed);
    let side = side(setting.keys).expect("a square number of keys");
    let values: Vec<u32> = (0..setting.keys)
        .map(|_| VALUES.start + random.below(DIFFERENT) as u32)
        .collect();

    // The keys of a context in their order. An item without keys is filler.
    let mut items: Vec<(usize, Vec<usize>)> = (0..side)
        .map(|context| (context, random_order(&mut random, side)))
        .collect();
    let shortest = 2 + 2 * side * (1 + 2 * side);
    let filler = setting.length.saturating_sub(shortest);
    items.resize(side + filler, (0, Vec::new()));
    random.shuffle(&mut items);

    let mut tokens = vec![BOS];
    let mut written = vec![0; setting.keys];
    for (context, keys) in &items {
        if keys.is_empty() {
            tokens.push(FILLER.start + random.below(FILLER.len()) as u32);
            continue;
        }
        tokens.push(CONTEXTS.start + *context as u32);
        for key in keys {
            let pair = context * side + key;
            tokens.extend([KEYS.start + *key as u32, values[pair]]);
            written[pair] = tokens.len() - 1;
        }
    }
    tokens.push(ASK);
    let mut questions = Vec::with_capacity(setting.keys);
    for context in random_order(&mut random, side) {
        tokens.push(CONTEXTS.start + context as u32);
        for key in random_order(&mut random, side) {
            let pair = context * side + key;
            tokens.extend([KEYS.start + key as u32, values[pair]]);
            let answer = tokens.len() - 1..tokens.len();
            questions.push(Question {
                distance: answer.start - 1 - written[pair],
                answer,
            });
        }
    }
    Sequence { tokens, questions }
}

fn random_order(random: &mut SplitMix64, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    random.shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::super::Task;
    use super::*;

    /// The position of each question and of its value, as `tools/train/recall/tasks.py` draws them.
    #[test]
    fn the_trainer_draws_the_same_sequences() {
        let setting = Setting {
            task: Task::Table,
            keys: 9,
            length: 50,
        };
        let sequence = sequence(&setting, 7);
        let expected = [
            1, 255, 17, 34, 161, 32, 171, 33, 170, 18, 34, 161, 32, 166, 33, 174, 240, 16, 32, 167,
            33, 172, 34, 162, 233, 250, 255, 231, 2, 17, 33, 170, 32, 171, 34, 161, 16, 34, 162,
            33, 172, 32, 167, 18, 33, 174, 34, 161, 32, 166,
        ];
        assert_eq!(sequence.tokens, expected);
        let questions = sequence.questions.iter();
        let found: Vec<_> = questions
            .map(|q| (q.answer.start - 1, q.answer.start - 1 - q.distance))
            .collect();
        let places = [
            (30, 8),
            (32, 6),
            (34, 4),
            (37, 23),
            (39, 21),
            (41, 19),
            (44, 15),
            (46, 11),
            (48, 13),
        ];
        assert_eq!(found, places);
    }

    #[test]
    fn only_square_numbers_are_tables() {
        assert_eq!(side(36), Some(6));
        assert_eq!(side(35), None);
    }
}
