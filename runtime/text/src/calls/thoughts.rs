//! The texts around a model's thoughts.

/// The texts between which a model thinks. Most are tokens of its vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThoughtTags {
    /// The text before a thought.
    pub open: &'static str,
    /// The text after a thought: a budget of thoughts ends with it.
    pub close: &'static str,
}

/// Tags of published models. A template shows at least the closing one, by which it finds the thoughts of earlier answers.
static TAGS: [ThoughtTags; 9] = [
    tags("[THINK]", "[/THINK]"),
    tags("<seed:think>", "</seed:think>"),
    tags("<mm:think>", "</mm:think>"),
    tags("<|START_THINKING|>", "<|END_THINKING|>"),
    tags("<|inner_prefix|>", "<|inner_suffix|>"),
    tags("<|channel|>analysis<|message|>", "<|end|>"),
    tags("<|channel>thought\n", "<channel|>"),
    tags("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    ThoughtTags::THINK,
];

const fn tags(open: &'static str, close: &'static str) -> ThoughtTags {
    ThoughtTags { open, close }
}

impl ThoughtTags {
    /// The tags of most models.
    pub const THINK: ThoughtTags = tags("<think>", "</think>");

    /// The tags in the source of a chat template; `None` if it has none.
    pub fn of_template(source: &str) -> Option<ThoughtTags> {
        let shows = |tags: &&ThoughtTags| source.contains(tags.close.trim());
        let harmony = source.contains("<|channel|>");
        let fits = |tags: &&ThoughtTags| tags.close != "<|end|>" || harmony;
        TAGS.iter().filter(fits).find(shows).copied()
    }

    /// Whether a prompt ends inside a thought, so that the model generates only the rest of it.
    pub fn are_open(&self, prompt: &str) -> bool {
        prompt.rfind(self.open.trim_end()) > prompt.rfind(self.close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_name_their_tags() {
        for (source, expected) in [
            ("{{ m.content }}", None),
            ("{{ m.content.split('</think>')[-1] }}", Some("<think>")),
            (
                "<|START_THINKING|>{{ m }}<|END_THINKING|>",
                Some("<|START_THINKING|>"),
            ),
            ("<|user|>{{ m }}<|end|>", None),
            (
                "<|channel|>analysis<|message|>{{ m }}<|end|>",
                Some("<|channel|>analysis<|message|>"),
            ),
        ] {
            let open = ThoughtTags::of_template(source).map(|tags| tags.open);
            assert_eq!(open, expected, "{source}");
        }
    }

    #[test]
    fn a_prompt_opens_a_thought_by_its_last_tag() {
        let tags = ThoughtTags::THINK;
        assert!(tags.are_open("a<think>\n"));
        assert!(!tags.are_open("a<think>\n\n</think>\n"));
        assert!(!tags.are_open("a"));
    }
}
