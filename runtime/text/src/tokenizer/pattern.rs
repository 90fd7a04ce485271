use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::pattern::Pattern;
use tokenizers::{Offsets, Result};

/// Longest pattern, in bytes: four times that of any published tokenizer.
const MAX_PATTERN: usize = 4 << 10;
/// Times that one search may go back, and the memory of what a pattern is compiled to.
const MAX_BACKTRACKS: usize = 100_000;
const MAX_COMPILED: usize = 4 << 20;
/// Longest time of all searches in one text: this, and so much for each byte.
const MAX_TIME: Duration = Duration::from_secs(1);
const MAX_TIME_OF_A_BYTE: Duration = Duration::from_micros(4);

/// When the searches in a text of so many bytes must have ended.
pub(super) fn deadline(bytes: usize) -> Instant {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Instant::now() + MAX_TIME + MAX_TIME_OF_A_BYTE * bytes
}

/// A regular expression of a tokenizer, which came from a stranger: compiled and searched within bounds.
#[derive(Debug)]
pub(super) struct BoundedRegex {
    regex: Regex,
    /// Whether a match without characters counts, as where text is split before something.
    empty: bool,
}

impl BoundedRegex {
    /// Compiles a pattern; the error is a reason.
    pub fn new(pattern: &str) -> std::result::Result<Self, String> {
        let short: String = pattern.chars().take(80).collect();
        if pattern.len() > MAX_PATTERN {
            let length = pattern.len();
            return Err(format!(
                "the pattern {short:?}... has {length} bytes, at most {MAX_PATTERN} are read"
            ));
        }
        // Repetitions of repetitions multiply what is compiled.
        let largest = pattern.split('{').skip(1).filter_map(|rest| {
            let numbers = rest.split('}').next()?.split(',');
            numbers
                .filter_map(|number| number.trim().parse::<u64>().ok())
                .max()
        });
        if largest.fold(1u64, |product, count| product.saturating_mul(count.max(1))) > 1 << 30 {
            return Err(format!("the pattern {short:?} repeats too often"));
        }
        RegexBuilder::new(pattern)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED)
            .delegate_dfa_size_limit(MAX_COMPILED)
            .build()
            .map(|regex| BoundedRegex { regex, empty: true })
            .map_err(|error| format!("the pattern {short:?} cannot be compiled: {error}"))
    }

    /// The expression without its matches of nothing, which the crate cannot replace.
    pub fn without_empty(self) -> Self {
        BoundedRegex {
            empty: false,
            ..self
        }
    }
}

/// A search that ends by a time, which it shares with the other searches in a text: each of many may be short.
pub(super) struct Search<'r> {
    pub pattern: &'r BoundedRegex,
    pub deadline: Instant,
}

impl Pattern for Search<'_> {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        let late = || match Instant::now() > self.deadline {
            true => Err("its pattern takes too long"),
            false => Ok(()),
        };
        late()?;
        let mut parts = Vec::new();
        let mut end = 0;
        for found in self.pattern.regex.find_iter(inside) {
            let found = found?;
            if found.start() == found.end() && !self.pattern.empty {
                continue;
            }
            if found.start() > end {
                parts.push(((end, found.start()), false));
            }
            parts.push(((found.start(), found.end()), true));
            end = found.end();
            if parts.len() % 16 == 0 {
                late()?;
            }
        }
        if end < inside.len() || parts.is_empty() {
            parts.push(((end, inside.len()), false));
        }
        Ok(parts)
    }
}
