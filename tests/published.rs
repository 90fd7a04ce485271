//! Directories in published forms: token ids in five files, as numbers, lists and names; templates in four places; unknown keys. Each
//! directory opens, ends its answers as its files specify, and begins a text as its tokenizer does, and so does the GGUF file that
//! `convert` makes of it. The model is a lookup table: after "Q" come "ok" and an end token, after a chat's ":" come "Hi" and an end token,
//! after an end token comes "x".

mod common;

use std::path::Path;

use common::Workplace;
use serde_json::{Value, json};

/// Special tokens after the 256 bytes: the text, and whether the tokenizer marks the token as special.
const SPECIAL: [(&str, bool); 5] = [
    ("<|first|>", true),
    ("<|im_start|>", true),
    ("<|stop|>", true),
    ("<|eot|>", false),
    ("<|seen|>", true),
];
const FIRST: u32 = 256;
const STOP: u32 = 258;
const EOT: u32 = 259;
/// The rows of the model's matrices, a few more than there are tokens.
const ROWS: usize = 264;

/// Returns a chat template whose answers end with `end`.
fn template(end: &str) -> String {
    let turn = "<|im_start|>{{ m.role }}:{{ m.content }}";
    format!(
        "{{% for m in messages %}}{turn}{end}\n{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant:{{% endif %}}"
    )
}

/// Returns the characters that byte-level tokenizers use for bytes.
fn letters() -> Vec<char> {
    let visible = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let letter = |byte: u32| {
        if visible(byte) {
            byte
        } else {
            others.next().unwrap_or_default()
        }
    };
    let codes: Vec<u32> = (0..256).map(letter).collect();
    codes.into_iter().filter_map(char::from_u32).collect()
}

fn tokenizer() -> Value {
    let vocab: serde_json::Map<String, Value> = letters()
        .into_iter()
        .zip(0..)
        .map(|(letter, id)| (letter.to_string(), json!(id)))
        .collect();
    let added = |(&(content, special), id): (&(&str, bool), u32)| {
        json!({
            "id": id, "content": content, "special": special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0",
        "added_tokens": SPECIAL.iter().zip(FIRST..).map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}

/// Returns a post-processor that puts the first special token before a text.
fn adds_first() -> Value {
    let first = SPECIAL[0].0;
    json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": first, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [],
        "special_tokens": { first: { "id": first, "ids": [FIRST], "tokens": [first] } },
    })
}

fn config() -> Value {
    json!({
        "model_type": "llama", "vocab_size": ROWS, "hidden_size": ROWS, "num_hidden_layers": 1,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 4,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "tie_word_embeddings": false,
    })
}

/// Writes the weights of the table: the projections back into the residual stream are zero, so the next token depends only on the last one.
fn weights(path: &Path, end: u32) {
    let of = |letter: char| letter as u32;
    let mut follows = vec![of('x'); ROWS];
    for (last, next) in [
        ('Q', of('o')),
        ('o', of('k')),
        ('k', end),
        (':', of('H')),
        ('H', of('i')),
        ('i', end),
    ] {
        follows[of(last) as usize] = next;
    }
    let square = |one: &dyn Fn(usize) -> usize| {
        let mut values = vec![0.0f32; ROWS * ROWS];
        (0..ROWS).for_each(|token| values[one(token)] = 1.0);
        values
    };
    let zeros = |count: usize| vec![0.0f32; count];
    let ones = || vec![1.0f32; ROWS];
    let layer = "model.layers.0";
    let tensors = [
        (
            "model.embed_tokens.weight".to_string(),
            vec![ROWS, ROWS],
            square(&|i| i * ROWS + i),
        ),
        (
            "lm_head.weight".into(),
            vec![ROWS, ROWS],
            square(&|i| follows[i] as usize * ROWS + i),
        ),
        ("model.norm.weight".into(), vec![ROWS], ones()),
        (
            format!("{layer}.input_layernorm.weight"),
            vec![ROWS],
            ones(),
        ),
        (
            format!("{layer}.post_attention_layernorm.weight"),
            vec![ROWS],
            ones(),
        ),
        (
            format!("{layer}.self_attn.q_proj.weight"),
            vec![4, ROWS],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.self_attn.k_proj.weight"),
            vec![4, ROWS],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.self_attn.v_proj.weight"),
            vec![4, ROWS],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.self_attn.o_proj.weight"),
            vec![ROWS, 4],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.mlp.gate_proj.weight"),
            vec![4, ROWS],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.mlp.up_proj.weight"),
            vec![4, ROWS],
            zeros(4 * ROWS),
        ),
        (
            format!("{layer}.mlp.down_proj.weight"),
            vec![ROWS, 4],
            zeros(4 * ROWS),
        ),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let offsets = [start, data.len()];
        header.insert(
            name,
            json!({ "dtype": "F32", "shape": shape, "data_offsets": offsets }),
        );
    }
    let header = Value::Object(header).to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], &header, &data].concat()).expect("a file");
}

/// A variant of the plain directory, made by `with`.
struct Kind {
    name: &'static str,
    /// The token after "ok" and "Hi".
    end: u32,
    /// Files that are added or replace plain ones.
    files: Vec<(&'static str, Value)>,
    /// The number of tokens of "Q".
    plain: usize,
    /// A part of the expected standard error.
    note: &'static str,
}

impl Kind {
    fn new(name: &'static str, files: Vec<(&'static str, Value)>) -> Self {
        Kind {
            name,
            end: STOP,
            files,
            plain: 1,
            note: "",
        }
    }
}

/// Returns the configuration with more keys.
fn with(keys: Value) -> Value {
    let mut config = config();
    for (key, value) in keys.as_object().expect("keys") {
        config[key] = value.clone();
    }
    config
}

fn kinds() -> Vec<Kind> {
    let stop = SPECIAL[2].0;
    let named = json!({ "chat_template": template(stop) });
    let config_file = |keys: Value| ("config.json", with(keys));
    let tokenizer_config = |keys: Value| ("tokenizer_config.json", keys);
    let mut begun = tokenizer();
    begun["post_processor"] = adds_first();
    let mut surplus = tokenizer();
    let mut image = surplus["added_tokens"][0].clone();
    (image["id"], image["content"]) = (json!(ROWS), json!("<image>"));
    let fillers = (261..ROWS).map(|id| {
        let mut filler = image.clone();
        (filler["id"], filler["content"]) = (json!(id), json!(format!("<filler {id}>")));
        filler
    });
    let more: Vec<Value> = fillers.chain([image.clone()]).collect();
    surplus["added_tokens"]
        .as_array_mut()
        .expect("tokens")
        .extend(more);
    vec![
        Kind::new(
            "a number",
            vec![config_file(json!({ "eos_token_id": STOP }))],
        ),
        Kind::new(
            "a list",
            vec![config_file(json!({ "eos_token_id": [FIRST, STOP] }))],
        ),
        Kind::new(
            "a list of the generation",
            vec![
                config_file(json!({ "eos_token_id": FIRST })),
                (
                    "generation_config.json",
                    json!({ "eos_token_id": [FIRST, STOP] }),
                ),
            ],
        ),
        Kind::new(
            "an inner configuration",
            vec![config_file(
                json!({ "text_config": { "eos_token_id": STOP } }),
            )],
        ),
        Kind::new(
            "another inner configuration",
            vec![config_file(
                json!({ "llm_config": { "eos_token_id": [STOP] } }),
            )],
        ),
        Kind::new(
            "a name",
            vec![tokenizer_config(json!({ "eos_token": stop }))],
        ),
        Kind::new(
            "a name with flags",
            vec![tokenizer_config(
                json!({ "eos_token": { "content": stop, "special": true } }),
            )],
        ),
        Kind::new(
            "a map of names",
            vec![("special_tokens_map.json", json!({ "eos_token": stop }))],
        ),
        Kind {
            end: 260,
            ..Kind::new(
                "a token that only other files have",
                vec![
                    ("tokenizer.json", {
                        let mut fewer = tokenizer();
                        fewer["added_tokens"].as_array_mut().expect("tokens").pop();
                        fewer
                    }),
                    ("added_tokens.json", json!({ "<|seen|>": 260 })),
                    tokenizer_config(json!({ "eos_token": "<|seen|>" })),
                ],
            )
        },
        Kind {
            plain: 2,
            ..Kind::new(
                "a beginning that the tokenizer adds",
                vec![
                    ("tokenizer.json", begun),
                    config_file(json!({ "eos_token_id": STOP, "bos_token_id": 300 })),
                ],
            )
        },
        Kind::new(
            "a beginning that the tokenizer does not add",
            vec![
                config_file(json!({ "eos_token_id": STOP, "bos_token_id": FIRST })),
                tokenizer_config(json!({ "add_bos_token": true, "bos_token": SPECIAL[0].0 })),
            ],
        ),
        Kind {
            note: "nothing reads the keys a_new_key, is_new",
            ..Kind::new(
                "keys that nobody knows",
                vec![config_file(
                    json!({ "eos_token_id": STOP, "a_new_key": { "a": 1 }, "is_new": true }),
                )],
            )
        },
        Kind {
            note: "config.json names the token 300, but the model has 264",
            ..Kind::new(
                "an end beyond the model",
                vec![config_file(json!({ "eos_token_id": [300, STOP] }))],
            )
        },
        Kind::new(
            "a token without a row",
            vec![
                ("tokenizer.json", surplus),
                config_file(json!({ "eos_token_id": STOP })),
            ],
        ),
        Kind::new(
            "a template",
            vec![
                tokenizer_config(named.clone()),
                config_file(json!({ "eos_token_id": STOP })),
            ],
        ),
        Kind::new("a template alone", vec![tokenizer_config(named.clone())]),
        Kind {
            end: EOT,
            ..Kind::new(
                "a template that ends with a token that is not special",
                vec![tokenizer_config(
                    json!({ "chat_template": template(SPECIAL[3].0) }),
                )],
            )
        },
        Kind::new(
            "a template that ends with the name of the end",
            vec![tokenizer_config(
                json!({ "chat_template": template("{{ eos_token }}"), "eos_token": stop }),
            )],
        ),
        Kind::new(
            "a list of templates",
            vec![tokenizer_config(json!({ "chat_template": [
                { "name": "tool_use", "template": "{{ raise_exception('no') }}" },
                { "name": "default", "template": template(stop) },
            ] }))],
        ),
        Kind::new(
            "an object of templates",
            vec![tokenizer_config(
                json!({ "chat_template": { "rag": "none", "default": template(stop) } }),
            )],
        ),
        Kind::new(
            "a processor's template",
            vec![("chat_template.json", named)],
        ),
        Kind::new(
            "a tokenizer after a byte order mark",
            vec![
                config_file(json!({ "eos_token_id": STOP })),
                ("tokenizer.json", json!(format!("\u{feff}{}", tokenizer()))),
            ],
        ),
        Kind::new(
            "templates in files",
            vec![
                tokenizer_config(json!({ "chat_template": "another" })),
                ("chat_template.jinja", json!(template(stop))),
                (
                    "additional_chat_templates/tool_use.jinja",
                    json!("{{ tools }}"),
                ),
            ],
        ),
    ]
}

/// Returns the defects of a model of this kind.
fn wrong(place: &Workplace, model: &str, kind: &Kind) -> Vec<String> {
    let has_template = kind
        .files
        .iter()
        .any(|(name, file)| name.contains("template") || file.get("chat_template").is_some());
    let ends_alone = !kind.name.starts_with("a template alone")
        && kind.files.iter().any(|(name, file)| {
            *name != "tokenizer.json" && file.to_string().contains("eos_token")
        });
    let mut wrong = Vec::new();
    let mut run = |arguments: &[&str], text: &str, prompt: Option<usize>| {
        let command = ["run", model, "--greedy", "--json", "-n", "6"];
        let outcome = place.run(command.iter().chain(arguments));
        if outcome.status != Some(0) {
            return wrong.push(outcome.stderr);
        }
        let found = outcome.json();
        if (&found["text"], &found["finish"]) != (&json!(text), &json!("end")) {
            wrong.push(format!("{arguments:?} gives {found}"));
        }
        if prompt.is_some_and(|tokens| found["prompt_tokens"] != tokens) {
            wrong.push(format!("{arguments:?} is {}", found["prompt_tokens"]));
        }
    };
    if ends_alone {
        run(&["--raw", "-p", "Q"], "ok", Some(kind.plain));
    }
    if has_template {
        run(&["--chat", "-p", "hello"], "Hi", None);
    }
    wrong
}

#[test]
fn each_kind_of_directory_and_its_gguf_file_begin_and_end_as_its_files_say() {
    let place = Workplace::new();
    let mut failures = Vec::new();
    for kind in kinds() {
        let dir = place.path("model");
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("additional_chat_templates")).expect("a folder");
        weights(&dir.join("model.safetensors"), kind.end);
        let plain = [("config.json", config()), ("tokenizer.json", tokenizer())];
        for (name, content) in plain.iter().chain(&kind.files) {
            let text = content
                .as_str()
                .map_or_else(|| content.to_string(), str::to_string);
            std::fs::write(dir.join(name), text).expect("a file");
        }
        let (dir, gguf) = (place.name("model"), place.name("model.gguf"));
        let inspected = place.run(["inspect", &dir]);
        if !inspected.stderr.contains(kind.note) {
            failures.push(format!("{}: it says {:?}", kind.name, inspected.stderr));
        }
        let converted = place.run(["convert", &dir, "-o", &gguf, "--type", "f16"]);
        if converted.status != Some(0) {
            failures.push(format!("{}: {}", kind.name, converted.stderr));
            continue;
        }
        for model in [&dir, &gguf] {
            let found = wrong(&place, model, &kind);
            failures.extend(
                found
                    .into_iter()
                    .map(|found| format!("{}: {found}", kind.name)),
            );
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
