//! Variants of published files: tensor names wrapped by a training program, quantized numbers, vocabularies without a `tokenizer.json`,
//! text in place of a file. Also tests how the program shows a model's input. The model is a lookup table: after "Q" come "ok" and an end
//! token.

mod common;

use std::path::PathBuf;

use common::Workplace;
use serde_json::{Map, Value, json};

/// The rows of the matrices: one per byte, and eight special tokens.
const ROWS: usize = 264;
const STOP: usize = 258;
const SPECIAL: [&str; 3] = ["<|first|>", "<|im_start|>", "<|stop|>"];
const TEMPLATE: &str = "{% if messages[0].role != 'system' %}<|im_start|>system:be kind<|stop|>{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|stop|>{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant:Q{% endif %}";

/// A tensor of a file: name, type, shape, bytes.
type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

/// A model directory.
struct Folder {
    config: Value,
    tensors: Vec<Stored>,
    files: Vec<(&'static str, Vec<u8>)>,
}

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Returns the characters that byte-level tokenizers use for bytes.
fn letters() -> Vec<char> {
    let is_visible = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let code = |byte| {
        if is_visible(byte) {
            byte
        } else {
            others.next().unwrap_or_default()
        }
    };
    let codes: Vec<u32> = (0..256).map(code).collect();
    codes.into_iter().filter_map(char::from_u32).collect()
}

fn tokenizer() -> Value {
    let vocab: Map<String, Value> = letters()
        .into_iter()
        .zip(0..)
        .map(|(letter, id)| (letter.to_string(), json!(id)))
        .collect();
    let added = |(content, id): (&&str, usize)| {
        json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0",
        "added_tokens": SPECIAL.iter().zip(256..).map(added).collect::<Vec<_>>(),
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    })
}

impl Folder {
    /// Makes the plain directory.
    fn new() -> Self {
        let of = |letter: char| letter as usize;
        let mut follows = vec![of('x'); ROWS];
        for (last, next) in [(of('Q'), of('o')), (of('o'), of('k')), (of('k'), STOP)] {
            follows[last] = next;
        }
        let square = |one: &dyn Fn(usize) -> usize| {
            let mut values = vec![0.0f32; ROWS * ROWS];
            (0..ROWS).for_each(|token| values[one(token)] = 1.0);
            floats(&values)
        };
        let matrix = |name: &str, rows: usize, cols: usize, bytes: Vec<u8>| -> Stored {
            (name.into(), "F32", vec![rows, cols], bytes)
        };
        let ones =
            |name: &str| -> Stored { (name.into(), "F32", vec![ROWS], floats(&[1.0; ROWS])) };
        let mut tensors = vec![
            matrix(
                "model.embed_tokens.weight",
                ROWS,
                ROWS,
                square(&|i| i * ROWS + i),
            ),
            matrix(
                "lm_head.weight",
                ROWS,
                ROWS,
                square(&|i| follows[i] * ROWS + i),
            ),
            ones("model.norm.weight"),
            ones("model.layers.0.input_layernorm.weight"),
            ones("model.layers.0.post_attention_layernorm.weight"),
        ];
        for part in [
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
        ] {
            let name = format!("model.layers.0.{part}.weight");
            tensors.push(matrix(&name, 4, ROWS, vec![0; 16 * ROWS]));
        }
        for part in ["self_attn.o_proj", "mlp.down_proj"] {
            let name = format!("model.layers.0.{part}.weight");
            tensors.push(matrix(&name, ROWS, 4, vec![0; 16 * ROWS]));
        }
        Folder {
            config: json!({
                "model_type": "llama", "vocab_size": ROWS, "hidden_size": ROWS, "num_hidden_layers": 1,
                "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 4,
                "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 64,
                "tie_word_embeddings": false, "eos_token_id": STOP,
            }),
            tensors,
            files: vec![("tokenizer.json", tokenizer().to_string().into_bytes())],
        }
    }

    /// Renames the tensors.
    fn renamed(mut self, name: impl Fn(&str) -> String) -> Self {
        for tensor in &mut self.tensors {
            tensor.0 = name(&tensor.0);
        }
        self
    }

    /// Adds or replaces a file.
    fn with(mut self, name: &'static str, content: impl AsRef<[u8]>) -> Self {
        self.files.retain(|(other, _)| *other != name);
        self.files.push((name, content.as_ref().to_vec()));
        self
    }

    fn without(mut self, name: &str) -> Self {
        self.files.retain(|(other, _)| *other != name);
        self
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    /// Writes the directory.
    fn write(&self, place: &Workplace, name: &str) -> PathBuf {
        let folder = place.path(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in &self.tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            data.extend(bytes);
            header.insert(
                name.clone(),
                json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets }),
            );
        }
        let header = Value::Object(header).to_string().into_bytes();
        let length = (header.len() as u64).to_le_bytes();
        let weights = [&length[..], &header, &data].concat();
        std::fs::write(folder.join("model.safetensors"), weights).expect("a file");
        std::fs::write(folder.join("config.json"), self.config.to_string()).expect("a file");
        for (name, content) in &self.files {
            std::fs::write(folder.join(name), content).expect("a file");
        }
        folder
    }
}

/// Returns the model's answer to "Q".
fn answer(place: &Workplace, model: &std::path::Path) -> Value {
    let model = model.display().to_string();
    let run = place.run([
        "run", &model, "-p", "Q", "--raw", "--greedy", "-n", "8", "--json",
    ]);
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    run.json()
}

fn says_ok(place: &Workplace, model: &std::path::Path) {
    let answer = answer(place, model);
    assert_eq!(
        (&answer["text"], &answer["finish"]),
        (&json!("ok"), &json!("end")),
        "{}",
        model.display()
    );
}

#[test]
fn wrapped_and_headless_names_open() {
    let place = Workplace::new();
    let headless = |name: &str| name.strip_prefix("model.").unwrap_or(name).to_string();
    for (kind, folder) in [
        ("plain", Folder::new()),
        (
            "compiled",
            Folder::new().renamed(|name| format!("_orig_mod.{name}")),
        ),
        (
            "parallel",
            Folder::new().renamed(|name| format!("module.{name}")),
        ),
        ("headless", Folder::new().renamed(headless)),
    ] {
        says_ok(&place, &folder.write(&place, kind));
    }
    let folder = Folder::new();
    let marked = format!("\u{feff}{}", folder.config);
    says_ok(
        &place,
        &folder.with("config.json", marked).write(&place, "marked"),
    );
}

#[test]
fn quantized_directories_are_read_or_named() {
    let place = Workplace::new();
    // The output matrix is in FP8, with a scale of two for each 128x128 block.
    let mut fp8 = Folder::new().set(
        "quantization_config",
        json!({ "quant_method": "fp8", "weight_block_size": [128, 128] }),
    );
    let head = &mut fp8.tensors[1];
    let codes = head
        .3
        .chunks(4)
        .map(|number| if number == [0; 4] { 0 } else { 0x38 })
        .collect();
    (head.1, head.3) = ("F8_E4M3", codes);
    fp8.tensors.push((
        "lm_head.weight_scale_inv".into(),
        "F32",
        vec![3, 3],
        floats(&[2.0; 9]),
    ));
    let folder = fp8.write(&place, "fp8");
    says_ok(&place, &folder);
    let file = place.path("fp8.gguf");
    let names = [&folder, &file].map(|path| path.display().to_string());
    place
        .run(["convert", &names[0], "-o", &names[1], "--type", "f16"])
        .succeeded();
    says_ok(&place, &file);

    for (method, tensor) in [
        ("awq", ".qweight"),
        ("gptq", ".qweight"),
        ("bitsandbytes", ".weight.absmax"),
    ] {
        let mut folder =
            Folder::new().set("quantization_config", json!({ "quant_method": method }));
        folder
            .tensors
            .retain(|tensor| tensor.0 != "model.layers.0.mlp.up_proj.weight");
        folder.tensors.push((
            format!("model.layers.0.mlp.up_proj{tensor}"),
            "I32",
            vec![1],
            vec![0; 4],
        ));
        let name = folder.write(&place, method).display().to_string();
        let run = place.run(["run", &name, "-p", "Q"]);
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(
            run.stderr.to_lowercase().contains(method) && run.stderr.contains("GGUF"),
            "{}",
            run.stderr
        );
    }
}

#[test]
fn what_a_failed_download_left_is_named() {
    let place = Workplace::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n";
    for (kind, file, text, said) in [
        ("weights", "model.safetensors", pointer, "git-lfs pointer"),
        ("configuration", "config.json", pointer, "git-lfs pointer"),
        ("tokenizer", "tokenizer.json", pointer, "git-lfs pointer"),
        (
            "page",
            "model.safetensors",
            "<!DOCTYPE html><html></html>",
            "page of HTML",
        ),
    ] {
        let name = Folder::new()
            .with(file, text)
            .write(&place, kind)
            .display()
            .to_string();
        let run = place.run(["run", &name, "-p", "Q"]);
        assert_eq!(run.status, Some(2), "{}", run.stderr);
        assert!(
            run.stderr.contains(said) && run.stderr.contains(file),
            "{}",
            run.stderr
        );
    }
    let file = place.file("model.gguf", pointer).display().to_string();
    place
        .run(["run", &file, "-p", "Q"])
        .failed(2, &["model.gguf", "git-lfs pointer"]);
}

#[test]
fn vocabularies_of_other_files_make_tokens_and_convert() {
    let place = Workplace::new();
    let data = |name: &str| {
        let folder =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../runtime/models/tests/data/vocab");
        std::fs::read(folder.join(name)).expect("recorded data")
    };
    let bare = || Folder::new().without("tokenizer.json");
    // Byte b is token b, except token 0, which ends a text.
    let world: String = (1..=255u8)
        .map(|byte| format!("{byte} b'\\x{byte:02x}' 1\n"))
        .collect();
    let vocab: Map<String, Value> = letters()
        .into_iter()
        .zip(0..)
        .map(|(letter, id)| (letter.to_string(), json!(id)))
        .collect();
    let pairs = bare()
        .with("vocab.json", Value::Object(vocab).to_string())
        .with("merges.txt", "#version: 0.2\n");
    for (kind, folder) in [
        ("rwkv", bare().with("rwkv_vocab_v20230424.txt", world)),
        ("pairs", pairs),
    ] {
        let folder = folder.write(&place, kind);
        let file = place.path(&format!("{kind}.gguf"));
        let names = [&folder, &file].map(|path| path.display().to_string());
        place
            .run(["convert", &names[0], "-o", &names[1], "--type", "f16"])
            .succeeded();
        for model in [&folder, &file] {
            let answer = answer(&place, model);
            assert_eq!(
                (&answer["text"], &answer["prompt_tokens"]),
                (&json!("ok"), &json!(1)),
                "{kind}"
            );
        }
    }
    // These have more tokens than the table has rows: unit tests compare their tokens.
    let wide = bare().with("tokenizer.model", data("bpe.model"));
    let name = wide.write(&place, "wide").display().to_string();
    let run = place.run(["run", &name, "-p", "Q"]);
    assert!(
        run.status == Some(2) && run.stderr.contains("tokens"),
        "{}",
        run.stderr
    );
    let broken = bare()
        .with("tiktoken.model", "????")
        .write(&place, "broken")
        .display()
        .to_string();
    place
        .run(["run", &broken, "-p", "Q"])
        .failed(2, &["tiktoken.model", "line 1"]);
}

#[test]
fn longer_texts_than_the_training_are_warned_of() {
    let place = Workplace::new();
    let folder = Folder::new().write(&place, "short").display().to_string();
    let run = |text: &str| {
        place.run([
            "run", &folder, "-p", text, "--raw", "--greedy", "-n", "2", "--json",
        ])
    };
    run(&"Q".repeat(60)).succeeded();
    for text in ["Q".repeat(100), "Q".repeat(63)] {
        let long = run(&text);
        assert_eq!(long.status, Some(0));
        assert!(
            long.stderr.starts_with("warning: ") && long.stderr.contains("up to 64"),
            "{}",
            long.stderr
        );
        assert_eq!(long.stderr.lines().count(), 1);
    }
    let shown = place.run(["inspect", &folder]).succeeded().text();
    assert!(shown.contains("texts of up to 64 tokens"), "{shown}");
    let file = place.name("short.gguf");
    place
        .run(["convert", &folder, "-o", &file, "--type", "f16"])
        .succeeded();
    let json = place.run(["inspect", &file, "--json"]).succeeded().json();
    assert_eq!(json["trained_context"], json!(64));
}

#[test]
fn a_prompt_is_shown_as_the_model_sees_it() {
    let place = Workplace::new();
    let folder = Folder::new()
        .with("chat_template.jinja", TEMPLATE)
        .write(&place, "model");
    let folder = folder.display().to_string();
    let run = |flags: &[&str]| {
        let first = [
            "run",
            &folder,
            "--greedy",
            "-n",
            "4",
            "--json",
            "--show-prompt",
        ];
        place.run(first.iter().chain(flags))
    };
    let check = |flags: &[&str], prompt: &str, tokens: usize| {
        let run = run(flags);
        assert_eq!(
            (run.status, run.stderr.trim_end()),
            (Some(0), prompt),
            "{flags:?}"
        );
        assert_eq!(run.json()["prompt_tokens"], json!(tokens), "{flags:?}");
    };
    check(&["-p", "<|stop|>Q", "--raw"], "<|stop|>Q", 9);
    check(&["-p", "<|stop|>Q", "--special"], "<|stop|>Q", 2);
    let begin =
        "<|im_start|>system:be kind<|stop|><|im_start|>user:a<|stop|><|im_start|>assistant:Q";
    check(&["-p", "a", "--chat"], begin, 36);
    let told = begin.replace("be kind", "b");
    check(&["-p", "a", "--system", "b"], &told, 30);
    let refused = run(&["-p", "a", "--chat", "--special"]);
    assert_eq!(refused.status, Some(2));

    let tokens = |flags: &[&str]| {
        let first = ["tokenize", &folder];
        place.run(first.iter().chain(flags)).succeeded()
    };
    assert_eq!(
        tokens(&["-p", "a\n"]).text(),
        "     97  \"a\"\n     10  \"\\n\"\n"
    );
    let json = tokens(&["-p", "\u{e9}<|stop|>", "--special", "--json"]).json();
    assert_eq!(json["tokens"], json!([0xc3, 0xa9, STOP]));
    assert_eq!(
        (&json["pieces"][2], &json["count"]),
        (&json!("<|stop|>"), &json!(3))
    );
    assert!(tokens(&["-p", "\u{e9}"]).text().contains("\"\\xc3\""));
    let marked = place.file("marked.txt", "\u{feff}Q").display().to_string();
    assert_eq!(tokens(&["-f", &marked, "--json"]).json()["count"], json!(1));

    let lines = "/system\n/prompt\na\n/prompt\n";
    let mut chat = place.command(["chat", &folder, "--greedy", "-n", "4"]);
    let said = common::outcome_of_input(&mut chat, lines.as_bytes());
    let both = said.stderr.clone() + &said.text();
    let beginning = "<|im_start|>system:be kind<|stop|><|im_start|>user:";
    assert!(
        both.contains(&format!(
            "no instructions; the template begins with:\n{beginning}\n"
        )),
        "{both}"
    );
    assert!(
        both.contains(&format!(
            "nothing yet; the template begins with:\n{beginning}\n"
        )),
        "{both}"
    );
    assert!(both.contains(&format!("{begin}ok")), "{both}");
}
