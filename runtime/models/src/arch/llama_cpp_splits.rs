//! How llama.cpp's byte-level vocabularies split text into words: the values of `tokenizer.ggml.pre`, with the regular
//! expressions of the models' own tokenizers. Each expression splits the pieces left by the previous one.

/// A method of splitting text.
pub(super) struct Splits {
    /// Values of `tokenizer.ggml.pre`.
    pub names: &'static [&'static str],
    pub patterns: &'static [&'static str],
    /// Whether a word that is itself a token is taken without merges.
    pub ignore_merges: bool,
    /// Whether a token begins every sequence if the file does not specify it.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const CJK: &str = "[一-龥\u{800}-一\u{ac00}-\u{d7ff}]+";
/// Letters with an upper and a lower case, as DeepSeek's tokenizer lists them.
const CASED: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

/// Every known method.
static SPLITS: [Splits; 17] = [
    Splits {
        names: &[
            "gpt-2",
            "mpt",
            "olmo",
            "phi-2",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "mellum",
            "exaone4",
            "modern-bert",
            "a.x-4.0",
        ],
        patterns: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Splits {
        names: &["dbrx", "smaug-bpe"],
        patterns: &[LLAMA3],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["chatglm-bpe", "glm4", "glm5"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: false,
    },
    Splits {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
            "kormo",
        ],
        patterns: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["qwen35"],
        patterns: &[QWEN35],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        patterns: &[GPT4O],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["tekken"],
        patterns: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
    },
    Splits {
        names: &["kimi-k2"],
        patterns: &[KIMI],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        patterns: &[BAILING],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        patterns: &[r"\p{N}{1,3}", "[一-龥\u{3040}-ゟ゠-ヿ]+", DEEPSEEK3],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["deepseek-llm"],
        patterns: &[
            r"[\r\n]",
            CASED,
            r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+",
            r"\s+$",
            CJK,
            r"\p{N}+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["deepseek-coder"],
        patterns: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["falcon"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["superbpe"],
        patterns: &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
        ignore_merges: false,
        add_bos: false,
    },
    Splits {
        names: &["default"],
        patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
];

/// The method of this name. Files without a name use "default".
pub(super) fn splits(name: &str) -> Option<&'static Splits> {
    SPLITS.iter().find(|splits| splits.names.contains(&name))
}
