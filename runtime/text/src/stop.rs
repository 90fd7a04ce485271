use crate::error::{Error, Result};

/// Ends a generation at any of a set of strings, wherever token boundaries fall.
///
/// Text that may begin a stop string is held back. The first stop string to be completed wins, and the longest if several end at the
/// same place, so the result does not depend on how the text was split.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// `[emitted by the last push][held back]`
    text: String,
    /// Bytes at the start of `text` that the last push emitted.
    emitted: usize,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

/// The text that a push releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released<'a> {
    /// Text to emit now.
    pub text: &'a str,
    /// The stop string found just after `text`, or by an earlier push.
    pub stop: Option<&'a str>,
}

impl Released<'_> {
    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stop.is_some()
    }
}

impl StopStrings {
    /// Watches for `stops`; with none, text passes through.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a stop string is empty.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::Invalid {
                what: "stop string".into(),
                reason: "found an empty string, which would stop before the first token".into(),
            });
        }
        Ok(Self {
            stops,
            text: String::with_capacity(256),
            emitted: 0,
            found: None,
        })
    }

    /// Adds the next piece of text. After a match nothing more is released.
    pub fn push(&mut self, text: &str) -> Released<'_> {
        self.text.drain(..self.emitted);
        self.emitted = 0;
        if self.found.is_none() {
            self.text.push_str(text);
            if let Some((start, stop)) = first_match(&self.text, &self.stops) {
                self.text.truncate(start);
                self.found = Some(stop);
                self.emitted = start;
            } else {
                self.emitted = self.text.len() - held_back(&self.text, &self.stops);
            }
        }
        Released {
            text: &self.text[..self.emitted],
            stop: self.found.map(|stop| &*self.stops[stop]),
        }
    }

    /// Ends the text and returns what was held back. The matcher can then be used again.
    pub fn finish(&mut self) -> &str {
        self.text.drain(..self.emitted);
        self.emitted = self.text.len();
        self.found = None;
        &self.text
    }
}

/// Start and index of the stop string that is completed first, the longest of several.
fn first_match(text: &str, stops: &[String]) -> Option<(usize, usize)> {
    let starts = stops
        .iter()
        .enumerate()
        .filter_map(|(index, stop)| Some((text.find(stop)?, index)));
    starts.min_by_key(|&(start, index)| (start + stops[index].len(), start))
}

/// Length of the longest suffix of `text` that begins a stop string.
fn held_back(text: &str, stops: &[String]) -> usize {
    let longest = stops.iter().map(String::len).max().unwrap_or(1) - 1;
    (1..=longest.min(text.len()))
        .rev()
        .filter(|&length| text.is_char_boundary(text.len() - length))
        .find(|&length| {
            stops
                .iter()
                .any(|stop| stop.starts_with(&text[text.len() - length..]))
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn watch(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|stop| stop.to_string()).collect()).unwrap()
    }

    #[test]
    fn a_stop_string_across_three_pushes_is_not_emitted() {
        let mut stops = watch(&["</end>", "STOP"]);
        assert_eq!(
            stops.push("one <"),
            Released {
                text: "one ",
                stop: None
            }
        );
        assert_eq!(
            stops.push("/en"),
            Released {
                text: "",
                stop: None
            }
        );
        assert_eq!(
            stops.push("d> two"),
            Released {
                text: "",
                stop: Some("</end>")
            }
        );
        assert_eq!(
            stops.push("three"),
            Released {
                text: "",
                stop: Some("</end>")
            }
        );
        assert_eq!(stops.finish(), "");
        assert_eq!(
            stops.push("again"),
            Released {
                text: "again",
                stop: None
            }
        );
    }

    #[test]
    fn a_false_beginning_is_released() {
        let mut stops = watch(&["aab"]);
        assert_eq!(stops.push("xaa").text, "x");
        assert_eq!(stops.push("a").text, "a");
        assert_eq!(stops.push("c").text, "aac");
        assert_eq!(stops.push("a").text, "");
        assert_eq!(stops.finish(), "a");
    }

    #[test]
    fn the_first_complete_string_wins_and_then_the_longest() {
        assert_eq!(
            watch(&["abcd", "bc"]).push("xabcd"),
            Released {
                text: "xa",
                stop: Some("bc")
            }
        );
        assert_eq!(
            watch(&["bc", "abc"]).push("xabcd"),
            Released {
                text: "x",
                stop: Some("abc")
            }
        );
    }

    #[test]
    fn borders_inside_characters_are_not_cut() {
        let mut stops = watch(&["🔥🔥é"]);
        assert_eq!(stops.push("é🔥").text, "é");
        assert_eq!(stops.push("🔥🔥").text, "🔥");
        assert_eq!(
            stops.push("é"),
            Released {
                text: "",
                stop: Some("🔥🔥é")
            }
        );
    }

    #[test]
    fn without_stop_strings_text_passes() {
        assert_eq!(
            watch(&[]).push("text"),
            Released {
                text: "text",
                stop: None
            }
        );
        assert!(StopStrings::new(vec!["x".into(), String::new()]).is_err());
    }

    /// Reference for the matcher on complete text: tries every end, then every start.
    fn naive<'a>(text: &str, stops: &'a [String]) -> (String, Option<&'a str>) {
        for end in 0..=text.len() {
            for start in 0..end {
                if let Some(stop) = stops
                    .iter()
                    .find(|s| text.as_bytes()[start..end] == *s.as_bytes())
                {
                    return (text[..start].to_string(), Some(stop));
                }
            }
        }
        (text.to_string(), None)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn any_split_equals_a_naive_search(
            pieces in prop::collection::vec("[abé]{0,4}", 0..10),
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
        ) {
            let mut matcher = StopStrings::new(stops.clone()).unwrap();
            let mut text = String::new();
            let mut stop = None;
            for piece in &pieces {
                let step = matcher.push(piece);
                prop_assert!(stop.is_none() || step.text.is_empty());
                text.push_str(step.text);
                stop = step.stop.map(str::to_string);
            }
            text.push_str(matcher.finish());
            let (expected, expected_stop) = naive(&pieces.concat(), &stops);
            prop_assert_eq!(text, expected);
            prop_assert_eq!(stop.as_deref(), expected_stop);
        }

        #[test]
        fn no_more_is_held_back_than_may_become_a_stop_string(
            text in "[abé]{0,12}",
            stops in prop::collection::vec("[abé]{1,5}", 1..4),
        ) {
            let mut matcher = StopStrings::new(stops.clone()).unwrap();
            let step = matcher.push(&text);
            if !step.stopped() {
                let held = text[step.text.len()..].to_string();
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.starts_with(&held)));
            }
        }
    }
}
