//! Marked recall for models without a tokenizer: a few pairs have values of several tokens and a mark after the value, so
//! that a model must look ahead to know which tokens to retain. The other pairs are plain, have other keys, and no question
//! asks for them. The vocabulary is that of [`super::tokens`], with 3 for the mark; `tasks.py` of `tools/train/recall`
//! draws the same sequences.

use super::tokens::{BOS, KEYS, VALUES, ask};
use super::{Sequence, Setting};
use crate::splitmix::SplitMix64;

const MARK: u32 = 3;
/// Number of tokens in a marked value.
const VALUE: usize = 4;

/// The length of a sequence without plain pairs, in tokens.
fn shortest(setting: &Setting) -> usize {
    2 + (3 + 2 * VALUE) * setting.keys
}

/// Draws the sequence of `seed`. At least one key must stay unmarked.
pub fn sequence(setting: &Setting, seed: u64) -> Sequence {
    let mut random = SplitMix64(seed);
    let names = random.distinct(KEYS.collect(), setting.keys);
    let others: Vec<u32> = KEYS.filter(|key| !names.contains(key)).collect();
    let known: Vec<u32> = VALUES.collect();
    let mut value = |_: &u32| -> Vec<u32> { (0..VALUE).map(|_| random.one_of(&known)).collect() };
    let values: Vec<Vec<u32>> = names.iter().map(&mut value).collect();

    let plain = setting.length.saturating_sub(shortest(setting)) / 2;
    let mut items: Vec<Option<usize>> = (0..setting.keys).map(Some).collect();
    items.resize(setting.keys + plain, None);
    random.shuffle(&mut items);
    let mut tokens = vec![BOS];
    let mut written = vec![0; setting.keys];
    for item in items {
        match item {
            None => tokens.extend([random.one_of(&others), random.one_of(&known)]),
            Some(pair) => {
                tokens.push(names[pair]);
                written[pair] = tokens.len();
                tokens.extend(&values[pair]);
                tokens.push(MARK);
            }
        }
    }
    let pair = |pair: usize| (vec![names[pair]], values[pair].to_vec());
    ask(&mut random, tokens, &written, pair)
}

#[cfg(test)]
mod tests {
    use super::super::Task;
    use super::*;

    /// The position of each question and of its value, as `tools/train/recall/tasks.py` draws them.
    #[test]
    fn the_trainer_draws_the_same_sequences() {
        let setting = Setting {
            task: Task::Marked,
            keys: 2,
            length: 40,
        };
        let sequence = sequence(&setting, 5);
        let expected = [
            1, 152, 185, 123, 192, 122, 167, 165, 165, 164, 3, 120, 195, 98, 182, 85, 191, 70, 183,
            77, 223, 54, 175, 93, 193, 203, 200, 195, 3, 2, 122, 167, 165, 165, 164, 93, 193, 203,
            200, 195,
        ];
        assert_eq!(sequence.tokens, expected);
        let questions = sequence.questions.iter();
        let found: Vec<_> = questions
            .map(|q| {
                (
                    q.answer.start - 1,
                    q.answer.start - 1 - q.distance,
                    q.answer.len(),
                )
            })
            .collect();
        assert_eq!(found, [(30, 6, VALUE), (35, 24, VALUE)]);
    }
}
