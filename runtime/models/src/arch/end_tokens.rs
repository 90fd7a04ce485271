//! Tokens whose texts reveal their purpose: tokens that end a generation, and control tokens, which user text never
//! produces. Files often omit them or give them a wrong type; llama.cpp goes by their texts too (`src/llama-vocab.cpp`).

use std::collections::{BTreeSet, HashMap};

/// Texts of tokens that end a generation.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A kind of mark around code to fill in. The first token with one of its texts is the mark, unless the file names another one.
struct Mark {
    /// The key under `tokenizer.ggml` that names the token.
    key: &'static str,
    texts: &'static [&'static str],
    /// Whether the mark also ends a generation.
    ends: bool,
}

const MARKS: &[Mark] = &[
    Mark {
        key: "fim_pre_token_id",
        texts: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    Mark {
        key: "fim_suf_token_id",
        texts: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    Mark {
        key: "fim_mid_token_id",
        texts: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
    Mark {
        key: "fim_pad_token_id",
        texts: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    Mark {
        key: "fim_rep_token_id",
        texts: &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
        ends: true,
    },
    Mark {
        key: "fim_sep_token_id",
        texts: &["<|file_sep|>"],
        ends: true,
    },
];

/// Tokens classified by their texts.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Tokens that end a generation.
    pub ends: BTreeSet<u32>,
    /// Control tokens, whatever type the file gives them.
    pub control: BTreeSet<u32>,
}

/// Classifies tokens by their texts. `named` returns the id that the file gives under a key of `tokenizer.ggml`, if any.
pub(super) fn by_text<'a>(
    tokens: impl Iterator<Item = (u32, &'a str)>,
    named: impl Fn(&str) -> Option<u32>,
) -> Known {
    let mut marks: Vec<Option<u32>> = MARKS.iter().map(|mark| named(mark.key)).collect();
    let ends = marks.iter().zip(MARKS);
    let ends = ends.filter_map(|(id, mark)| id.filter(|_| mark.ends));
    let mut known = Known {
        ends: ends.collect(),
        control: BTreeSet::new(),
    };
    let of_mark = |(i, mark): (usize, &Mark)| mark.texts.iter().map(move |&text| (text, Some(i)));
    let mut kinds: HashMap<&str, Option<usize>> =
        MARKS.iter().enumerate().flat_map(of_mark).collect();
    kinds.extend(ENDS.iter().map(|&text| (text, None)));
    let mut found: HashMap<&str, u32> = HashMap::new();
    for (id, text) in tokens {
        let ends = match kinds.get(text) {
            None => continue,
            Some(None) => true,
            Some(&Some(mark)) if marks[mark].is_none() => {
                marks[mark] = Some(id);
                MARKS[mark].ends
            }
            Some(_) => continue,
        };
        found.insert(text, id);
        known.control.insert(id);
        if ends {
            known.ends.insert(id);
        }
    }
    // Two kinds of templates use a token of the list within an answer.
    let has = |text: &str| found.contains_key(text);
    let calls = has("<|call|>") || has("<|calls|>");
    let within = [
        ("<|end|>", calls && (has("<|return|>") || has("<|flush|>"))),
        ("</s>", has("<|tool_response>")),
    ];
    for (text, _) in within.into_iter().filter(|(_, within)| *within) {
        if let Some(id) = found.get(text) {
            known.ends.remove(id);
            known.control.remove(id);
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(texts: &[&str], named: &[(&str, u32)]) -> Vec<u32> {
        let tokens = (0..).zip(texts.iter().copied());
        let named = |key: &str| named.iter().find(|(k, _)| *k == key).map(|(_, id)| *id);
        by_text(tokens, named).ends.into_iter().collect()
    }

    #[test]
    fn texts_say_what_ends_a_generation() {
        let qwen = [
            "a",
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "<|fim_prefix|>",
        ];
        assert_eq!(ends(&qwen, &[]), [1, 3]);
        assert_eq!(ends(&["<|fim_pad|>", "[PAD]", "<|file_sep|>"], &[]), [0, 2]);
        assert_eq!(ends(&["<|fim_pad|>", "a"], &[("fim_pad_token_id", 1)]), [1]);
        assert!(ends(&["<|fim_prefix|>"], &[("fim_pre_token_id", 0)]).is_empty());
    }

    #[test]
    fn a_token_that_templates_use_within_an_answer_is_no_end() {
        assert_eq!(ends(&["<|end|>", "<|return|>"], &[]), [0, 1]);
        assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"], &[]), [1, 2]);
        assert_eq!(ends(&["</s>", "<eos>", "<|tool_response>"], &[]), [1, 2]);
    }

    #[test]
    fn control_tokens_are_those_of_all_lists() {
        let tokens = ["<|fim_prefix|>", "<|eot_id|>", "x", "<PRE>"];
        let known = by_text((0..).zip(tokens), |_| None);
        assert_eq!(known.control.into_iter().collect::<Vec<_>>(), [0, 1]);
    }
}
