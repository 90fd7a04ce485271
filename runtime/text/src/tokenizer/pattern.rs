use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::pattern::Pattern;
use tokenizers::{Offsets, Result};

/// Longest pattern in bytes: four times that of any published tokenizer.
const MAX_PATTERN: usize = 4 << 10;
/// Limits for the backtracking of one search and for the memory of a compiled pattern.
const MAX_BACKTRACKS: usize = 100_000;
const MAX_COMPILED: usize = 4 << 20;
/// Time limit of all searches in one text: a constant plus a time per byte.
const MAX_TIME: Duration = Duration::from_secs(1);
const MAX_TIME_OF_A_BYTE: Duration = Duration::from_micros(4);

/// The deadline for searches in a text of this many bytes.
pub(super) fn deadline(bytes: usize) -> Instant {
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Instant::now() + MAX_TIME + MAX_TIME_OF_A_BYTE * bytes
}

/// A regular expression of an untrusted tokenizer, compiled and searched within bounds.
#[derive(Debug)]
pub(super) struct BoundedRegex {
    regex: Regex,
    /// Whether empty matches count, as for a text that is split before something.
    empty: bool,
}

impl BoundedRegex {
    /// Compiles a pattern. The error is a reason.
    pub fn new(pattern: &str) -> std::result::Result<Self, String> {
        let short: String = pattern.chars().take(80).collect();
        if pattern.len() > MAX_PATTERN {
            let length = pattern.len();
            return Err(format!(
                "the pattern {short:?}... has {length} bytes, expected at most {MAX_PATTERN}"
            ));
        }
        // Nested repetitions multiply the compiled size.
        let largest = pattern.split('{').skip(1).filter_map(|rest| {
            let numbers = rest.split('}').next()?.split(',');
            numbers
                .filter_map(|number| number.trim().parse::<u64>().ok())
                .max()
        });
        if largest.fold(1u64, |product, count| product.saturating_mul(count.max(1))) > 1 << 30 {
            return Err(format!("the pattern {short:?} has too many repetitions"));
        }
        RegexBuilder::new(pattern)
            .backtrack_limit(MAX_BACKTRACKS)
            .delegate_size_limit(MAX_COMPILED)
            .delegate_dfa_size_limit(MAX_COMPILED)
            .build()
            .map(|regex| BoundedRegex { regex, empty: true })
            .map_err(|error| format!("the pattern {short:?} cannot be compiled: {error}"))
    }

    /// Ignores empty matches, which the crate cannot replace.
    pub(crate) fn without_empty(self) -> Self {
        BoundedRegex {
            empty: false,
            ..self
        }
    }
}

/// A search with a deadline, shared by all searches in a text: many short searches may take long too.
pub(super) struct Search<'r> {
    pub pattern: &'r BoundedRegex,
    pub deadline: Instant,
}

impl Pattern for Search<'_> {
    fn find_matches(&self, inside: &str) -> Result<Vec<(Offsets, bool)>> {
        let late = || {
            if Instant::now() > self.deadline {
                Err("its pattern takes too long")
            } else {
                Ok(())
            }
        };
        late()?;
        match self.parts(inside, &late) {
            Ok(parts) => Ok(parts),
            // The search keeps a backtracking position for each character of a run that a loop of the pattern consumes.
            Err(error) => match Shortened::new(inside) {
                Some(shortened) => {
                    let parts = self.parts(&shortened.text, &late)?;
                    Ok(shortened.whole(parts))
                }
                None => Err(error),
            },
        }
    }
}

impl Search<'_> {
    /// The matches in `inside` and the parts between them.
    fn parts(
        &self,
        inside: &str,
        late: &dyn Fn() -> std::result::Result<(), &'static str>,
    ) -> Result<Vec<(Offsets, bool)>> {
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

/// Longest run of one white space character in a shortened text, in bytes.
const LONGEST_RUN: usize = 1 << 14;

/// A text with long runs of one white space character shortened: a pattern that matches such a run matches it at any length.
struct Shortened {
    text: String,
    /// The middle of each shortened run, and the number of bytes missing there.
    cuts: Vec<(usize, usize)>,
}

impl Shortened {
    /// Shortens the runs of `text`; `None` if it has no long ones.
    fn new(text: &str) -> Option<Self> {
        let mut shortened = Shortened {
            text: String::new(),
            cuts: Vec::new(),
        };
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let after = rest.trim_start_matches(first);
            let (run, length) = (rest.len() - after.len(), LONGEST_RUN / 4 * first.len_utf8());
            let kept = if first.is_whitespace() {
                run.min(length)
            } else {
                run
            };
            if kept < run {
                // Cuts between characters: all characters of the run have the same length.
                let middle = kept / first.len_utf8() / 2 * first.len_utf8();
                shortened
                    .cuts
                    .push((shortened.text.len() + middle, run - kept));
            }
            shortened.text.push_str(&rest[..kept]);
            rest = after;
        }
        (!shortened.cuts.is_empty()).then_some(shortened)
    }

    /// Converts parts of the shortened text to parts of the original.
    fn whole(&self, parts: Vec<(Offsets, bool)>) -> Vec<(Offsets, bool)> {
        let place = |at: usize| {
            let cuts = self.cuts.iter().take_while(|(middle, _)| *middle < at);
            at + cuts.map(|(_, bytes)| bytes).sum::<usize>()
        };
        let whole = |((start, end), found)| ((place(start), place(end)), found);
        parts.into_iter().map(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(pattern: &str, text: &str) -> Vec<(Offsets, bool)> {
        let pattern = BoundedRegex::new(pattern).expect("a pattern");
        let deadline = deadline(text.len());
        let search = Search {
            pattern: &pattern,
            deadline,
        };
        search.find_matches(text).expect("parts")
    }

    #[test]
    fn a_million_spaces_are_one_part() {
        const GPT2: &str = r"'s| ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+";
        for space in [" ", "\n", "\u{3000}"] {
            for count in [1_000, 1_000_000] {
                let spaces = space.repeat(count);
                let whole = spaces.len();
                assert_eq!(parts(GPT2, &spaces), [((0, whole), true)]);
                let last = whole - space.len();
                let text = format!("{spaces}.{spaces}b");
                let found = parts(GPT2, &text);
                let starts: Vec<usize> = found.iter().map(|((start, _), _)| *start).collect();
                let expected = match space {
                    " " => vec![0, last, whole + 1, whole + 1 + last],
                    _ => vec![0, last, whole, whole + 1, whole + 1 + last, 2 * whole + 1],
                };
                assert_eq!(starts, expected, "{space:?}");
                assert_eq!(found.last().expect("a part").0.1, text.len());
            }
        }
    }
}
