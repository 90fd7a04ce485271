use std::collections::{BinaryHeap, HashMap};

/// A sentencepiece vocabulary with scores, as stored in GGUF files. Neighbours whose concatenation is a token are merged, best score
/// first, leftmost first among equals. Text that matches no token is written in bytes.
pub(super) struct SentencePiece {
    ids: HashMap<String, u32>,
    /// `[vocab]`
    scores: Vec<f32>,
    /// The token of each byte value.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Longest token in bytes.
    longest: usize,
}

/// A part of the text.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// End offset; equal to `start` once merged into a neighbour.
    end: usize,
    previous: usize,
    next: usize,
}

const NONE: usize = usize::MAX;

/// Two neighbours that can be merged. The greatest is merged first.
#[derive(PartialEq)]
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    length: usize,
}

impl Eq for Merge {}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let score = self.score.total_cmp(&other.score);
        score.then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl SentencePiece {
    /// Creates a vocabulary from tokens and an equal number of scores.
    pub fn new(tokens: &[(String, u32)], scores: Vec<f32>, unknown: Option<u32>) -> Self {
        let ids: HashMap<String, u32> = tokens.iter().cloned().collect();
        let byte = |byte: u32| ids.get(&format!("<0x{byte:02X}>")).copied();
        SentencePiece {
            bytes: (0..256).map(byte).collect(),
            longest: tokens
                .iter()
                .map(|(token, _)| token.len())
                .max()
                .unwrap_or(0),
            ids,
            scores,
            unknown,
        }
    }

    /// Splits `text`, in which spaces are U+2581, into tokens with byte offsets. The error is a reason.
    pub fn tokenize(&self, text: &str) -> Result<Vec<(u32, usize)>, String> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, character))| Symbol {
                start,
                end: start + character.len_utf8(),
                previous: index.wrapping_sub(1),
                next: index + 1,
            })
            .collect();
        match symbols.last_mut() {
            Some(last) => last.next = NONE,
            None => return Ok(Vec::new()),
        }
        let mut merges = BinaryHeap::new();
        for left in 0..symbols.len() - 1 {
            merges.extend(self.merge(text, &symbols, left, left + 1));
        }
        while let Some(Merge {
            left,
            right,
            length,
            ..
        }) = merges.pop()
        {
            let (a, b) = (symbols[left], symbols[right]);
            let stale = a.end == a.start || b.end == b.start || b.end - a.start != length;
            if stale {
                continue;
            }
            symbols[left].end = b.end;
            symbols[left].next = b.next;
            symbols[right].end = symbols[right].start;
            if b.next != NONE {
                symbols[b.next].previous = left;
                merges.extend(self.merge(text, &symbols, left, b.next));
            }
            if a.previous != NONE {
                merges.extend(self.merge(text, &symbols, a.previous, left));
            }
        }
        let mut found = Vec::new();
        for symbol in symbols.iter().filter(|symbol| symbol.end > symbol.start) {
            let part = &text[symbol.start..symbol.end];
            if let Some(&id) = self.ids.get(part) {
                found.push((id, symbol.start));
                continue;
            }
            for byte in part.bytes() {
                let id = self.bytes[usize::from(byte)].or(self.unknown);
                let id = id.ok_or_else(|| format!("the vocabulary has no token for {part:?}"))?;
                found.push((id, symbol.start));
            }
        }
        Ok(found)
    }

    fn merge(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Merge> {
        let (start, end) = (symbols[left].start, symbols[right].end);
        if end - start > self.longest {
            return None;
        }
        let id = *self.ids.get(&text[start..end])?;
        Some(Merge {
            score: self.scores.get(id as usize).copied()?,
            left,
            right,
            length: end - start,
        })
    }
}
