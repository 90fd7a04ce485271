//! Joint recall over two levels of contexts (arXiv 2507.00449, appendix C), for models without a tokenizer. Every inner
//! context has the same keys, and every outer context has the same inner contexts. An item of the body is a complete
//! outer context: its token, then the token, keys and values of each inner context. A question is an outer context, an
//! inner context and a key. The vocabulary is that of [`super::tokens`], with the contexts split in halves; `tasks.py`
//! of `tools/train/recall` draws the same sequences.

use std::ops::Range;

use super::tokens::{BOS, FILLER, KEYS, VALUES, ask};
use super::{Sequence, Setting};
use crate::splitmix::SplitMix64;

const OUTER: Range<u32> = 16..24;
const INNER: Range<u32> = 24..32;
/// Number of contexts on each level.
const CONTEXTS: usize = 2;

/// The length of a sequence without filler, in tokens.
fn shortest(setting: &Setting) -> usize {
    2 + CONTEXTS + CONTEXTS * CONTEXTS + 6 * setting.keys
}

/// Draws the sequence of `seed`. The number of keys is a multiple of the total number of inner contexts.
pub fn sequence(setting: &Setting, seed: u64) -> Sequence {
    let mut random = SplitMix64(seed);
    let outer = random.distinct(OUTER.collect(), CONTEXTS);
    let inner = random.distinct(INNER.collect(), CONTEXTS);
    let names = random.distinct(KEYS.collect(), setting.keys / (CONTEXTS * CONTEXTS));
    let mut cues = Vec::with_capacity(setting.keys);
    for &first in &outer {
        for &second in &inner {
            cues.extend(names.iter().map(|&name| [first, second, name]));
        }
    }
    let known: Vec<u32> = VALUES.collect();
    let values: Vec<u32> = cues.iter().map(|_| random.one_of(&known)).collect();

    // Cues of an outer context, grouped by inner context. An item without cues is filler.
    let mut items: Vec<Vec<usize>> = Vec::new();
    for outer in 0..CONTEXTS {
        let mut blocks: Vec<Vec<usize>> = (0..CONTEXTS)
            .map(|inner| {
                let first = (outer * CONTEXTS + inner) * names.len();
                let mut block: Vec<usize> = (first..first + names.len()).collect();
                random.shuffle(&mut block);
                block
            })
            .collect();
        random.shuffle(&mut blocks);
        items.push(blocks.concat());
    }
    let filler = setting.length.saturating_sub(shortest(setting));
    items.resize(items.len() + filler, Vec::new());
    random.shuffle(&mut items);

    let noise: Vec<u32> = FILLER.collect();
    let mut tokens = vec![BOS];
    let mut written = vec![0; setting.keys];
    for item in &items {
        match item.first() {
            None => tokens.push(random.one_of(&noise)),
            Some(&first) => tokens.push(cues[first][0]),
        }
        for (i, &cue) in item.iter().enumerate() {
            if i.is_multiple_of(names.len()) {
                tokens.push(cues[cue][1]);
            }
            tokens.extend([cues[cue][2], values[cue]]);
            written[cue] = tokens.len() - 1;
        }
    }
    let pair = |cue: usize| (cues[cue].to_vec(), vec![values[cue]]);
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
            task: Task::Levels,
            keys: 8,
            length: 60,
        };
        let sequence = sequence(&setting, 7);
        let expected = [
            1, 233, 23, 26, 121, 222, 122, 214, 28, 121, 201, 122, 193, 250, 255, 231, 20, 28, 122,
            174, 121, 208, 26, 122, 203, 121, 204, 2, 23, 28, 121, 201, 23, 26, 121, 222, 23, 26,
            122, 214, 20, 28, 122, 174, 20, 28, 121, 208, 23, 28, 122, 193, 20, 26, 122, 203, 20,
            26, 121, 204,
        ];
        assert_eq!(sequence.tokens, expected);
        let questions = sequence.questions.iter();
        let found: Vec<_> = questions
            .map(|q| (q.answer.start - 1, q.answer.start - 1 - q.distance))
            .collect();
        let places = [
            (30, 10),
            (34, 5),
            (38, 7),
            (42, 19),
            (46, 21),
            (50, 12),
            (54, 24),
            (58, 26),
        ];
        assert_eq!(found, places);
    }
}
