//! Separates the thoughts of an answer, between `<think>` and `</think>`, from the rest.

const TAGS: [&str; 2] = ["<think>", "</think>"];

/// Splits an answer that arrives in pieces.
pub struct Thoughts {
    inside: bool,
    /// Text that may be the beginning of a tag.
    held: String,
}

impl Thoughts {
    /// Splits an answer that begins inside or outside a thought.
    pub fn new(inside: bool) -> Self {
        Thoughts {
            inside,
            held: String::new(),
        }
    }

    /// Whether the text so far ends inside a thought.
    pub fn are_open(&self) -> bool {
        self.inside
    }

    /// Adds a piece. Returns stretches of text, each with whether it is part of a thought; tags are part of the thought.
    pub fn push(&mut self, piece: &str) -> Vec<(bool, String)> {
        let text = std::mem::take(&mut self.held) + piece;
        let mut parts = Vec::new();
        let mut rest = text.as_str();
        loop {
            let tag = TAGS[usize::from(self.inside)];
            let Some(at) = rest.find(tag) else { break };
            let end = at + tag.len();
            if self.inside {
                parts.push((true, rest[..end].to_string()))
            } else {
                parts.push((false, rest[..at].to_string()));
                parts.push((true, tag.to_string()));
            }
            self.inside = !self.inside;
            rest = &rest[end..];
        }
        let tag = TAGS[usize::from(self.inside)];
        let held = (1..tag.len())
            .rev()
            .find(|&length| rest.ends_with(&tag[..length]));
        let (shown, held) = rest.split_at(rest.len() - held.unwrap_or(0));
        self.held = held.to_string();
        parts.push((self.inside, shown.to_string()));
        parts.retain(|(_, text)| !text.is_empty());
        parts
    }

    /// Returns the text that is still held back at the end of the answer.
    pub fn finish(&mut self) -> (bool, String) {
        (self.inside, std::mem::take(&mut self.held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(inside: bool, pieces: &[&str]) -> Vec<(bool, String)> {
        let mut thoughts = Thoughts::new(inside);
        let mut parts: Vec<(bool, String)> = pieces
            .iter()
            .flat_map(|piece| thoughts.push(piece))
            .collect();
        parts.push(thoughts.finish());
        let mut joined: Vec<(bool, String)> = Vec::new();
        for (thought, text) in parts.into_iter().filter(|(_, text)| !text.is_empty()) {
            match joined.last_mut() {
                Some((last, all)) if *last == thought => all.push_str(&text),
                _ => joined.push((thought, text)),
            }
        }
        joined
    }

    #[test]
    fn any_split_into_pieces_shows_the_same_thoughts() {
        let text = "a<think>b < c</think>d<b";
        let expected = [(false, "a"), (true, "<think>b < c</think>"), (false, "d<b")];
        let expected = expected.map(|(thought, text)| (thought, text.to_string()));
        for at in 0..text.len() {
            for to in at..text.len() {
                assert_eq!(
                    split(false, &[&text[..at], &text[at..to], &text[to..]]),
                    expected
                );
            }
        }
        assert_eq!(
            split(true, &["x</th", "ink>y"])[0],
            (true, "x</think>".to_string())
        );
        assert_eq!(split(false, &["a<"]), [(false, "a<".to_string())]);
    }
}
