//! The earlier tokens that a query of sparse attention sees, and their weights.

mod cpu;
mod hash;
mod scorer;

pub(super) use cpu::{Measures, State, advance_means};
pub use hash::Hash;
pub use scorer::Scorer;

/// The tokens that a source keeps.
pub enum Pattern {
    /// The last tokens.
    Window,
    /// The first tokens of the sequence.
    Sink,
    /// Every n-th token.
    Dilated(usize),
    /// The last tokens in the bin of the query.
    Bins(Hash),
    /// The tokens with the highest scores; among equal scores, the older token.
    Best(Scorer),
}

/// A source and its place in the table.
pub(super) struct KeySource {
    pub pattern: Pattern,
    /// The source's first row.
    pub first: usize,
    /// Rows that a query sees. Each bin has this many.
    pub rows: usize,
}

/// Sources that share a table.
pub struct Sources {
    list: Vec<KeySource>,
    rows: usize,
}

/// Marks an absent row in a plan.
const NONE: u32 = u32::MAX;

impl Sources {
    /// Creates sources from patterns and the number of tokens that a query sees of each.
    pub fn new(patterns: Vec<(Pattern, usize)>, width: usize) -> Self {
        let mut rows = 0;
        let mut list = Vec::new();
        for (pattern, seen) in patterns {
            let bins = match &pattern {
                Pattern::Bins(hash) => hash.bins(width),
                _ => 1,
            };
            let source = KeySource {
                pattern,
                first: rows,
                rows: seen,
            };
            list.push(source);
            rows += bins * seen;
        }
        Sources { list, rows }
    }

    /// Rows of the table.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of bins, 0 without a hash.
    pub(super) fn bins(&self, width: usize) -> usize {
        let bins = |source: &KeySource| match &source.pattern {
            Pattern::Bins(hash) => hash.bins(width),
            _ => 0,
        };
        self.list.iter().map(bins).sum()
    }

    /// Number of keys with scores.
    pub(super) fn scored(&self) -> usize {
        let scored = |source: &KeySource| match &source.pattern {
            Pattern::Best(_) => source.rows,
            _ => 0,
        };
        self.list.iter().map(scored).sum()
    }

    /// Bytes of weights that one token reads.
    pub fn weight_bytes(&self) -> usize {
        let floats = |source: &KeySource| match &source.pattern {
            Pattern::Bins(hash) => hash.weight.len(),
            Pattern::Best(scorer) => scorer.weights.iter().map(|w| w.len()).sum(),
            Pattern::Window | Pattern::Sink | Pattern::Dilated(_) => 0,
        };
        self.list.iter().map(floats).sum::<usize>() * size_of::<f32>()
    }

    /// The sources, in the order of their rows.
    pub(super) fn list(&self) -> &[KeySource] {
        &self.list
    }

    /// Most rows of earlier tokens that the query at `position` sees, and the number of rows that its token takes.
    pub(super) fn touched(&self, position: u64) -> (usize, usize) {
        let (mut seen, mut taken) = (0, 0);
        for source in &self.list {
            let rows = source.rows as u64;
            let (sees, takes) = match &source.pattern {
                Pattern::Window => (position.min(rows - 1), true),
                Pattern::Sink => (position.min(rows), position < rows),
                Pattern::Dilated(every) => {
                    let every = *every as u64;
                    let takes = position % every == every - 1;
                    let rows = rows - u64::from(takes);
                    ((position / every).min(rows), takes)
                }
                Pattern::Bins(_) | Pattern::Best(_) => (position.min(rows), true),
            };
            seen += sees as usize;
            taken += usize::from(takes);
        }
        (seen, taken)
    }

    /// Most rows that a query sees.
    pub(super) fn most(&self) -> usize {
        self.list.iter().map(|source| source.rows).sum()
    }

    /// Floats of one token's plan: for each source the row that the token takes; the number of rows that its query sees; these
    /// rows; their weights. Row numbers and counts are stored as bits.
    pub fn plan_width(&self) -> usize {
        self.list.len() + 1 + 2 * self.most()
    }
}

#[cfg(test)]
mod tests;
