//! Drafts by MTP blocks: small models of the three families that have one, with random weights, as Hugging Face directories and as
//! GGUF files. Their blocks choose mostly what the models choose.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Workplace, fixture, tokenizer_folder};
use serde_json::{Value, json};
use waterline::{
    Checkpoint, GenerateOptions, Kv, Model, OpenOptions, Piece, Session, SessionOptions,
};
use waterline_quant::F32;
use waterline_quant::gguf::{NewTensor, Value as Key, Writer};

/// A family.
#[derive(Clone, Copy)]
struct Kind {
    /// In `config.json`.
    model_type: &'static str,
    /// Of GGUF files.
    architecture: &'static str,
    /// Whether its networks are mixtures of experts.
    experts: bool,
}

const KINDS: [Kind; 3] = [
    Kind {
        model_type: "qwen3_5_text",
        architecture: "qwen35",
        experts: false,
    },
    // The language model of one that reads images too.
    Kind {
        model_type: "qwen3_5_moe",
        architecture: "qwen35moe",
        experts: true,
    },
    Kind {
        model_type: "qwen3_next",
        architecture: "qwen3next",
        experts: true,
    },
];

const VOCAB: usize = 4096;
const HIDDEN: usize = 32;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 8;
/// Heads of Gated DeltaNet, of keys and of values alike, and their width.
const DELTA_HEADS: usize = 2;
const WIDE: usize = 48;
const EXPERTS: usize = 4;
const EXPERT: usize = 16;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// From -1 to 1, the same for the same number.
fn noise(seed: u64) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Kind {
    fn is_next(self) -> bool {
        self.model_type == "qwen3_next"
    }

    /// The tensors as transformers names those of a language model alone, experts of a layer in one tensor.
    fn tensors(self) -> Tensors {
        let mut all = Tensors::new();
        let mut add = |name: String, shape: &[usize]| {
            let inputs: usize = shape[shape.len() - 1];
            // A norm's gain is stored as its distance from one. What the layers add is little beside the embedding.
            let scale = match name.as_str() {
                _ if shape.len() == 1 && name.contains("norm") => 0.0,
                _ if shape.len() == 1 => 0.5,
                _ if ["o_proj", "out_proj", "down_proj"]
                    .iter()
                    .any(|end| name.contains(end)) =>
                {
                    0.1
                }
                _ if name == "mtp.fc.weight" => 0.1,
                _ => 2.0,
            } / (inputs as f32).sqrt();
            let seed = all.len() as u64 * 1_000_003 + 17;
            let mut values: Vec<f32> = (0..shape.iter().product::<usize>())
                .map(|i| scale * noise(seed + i as u64))
                .collect();
            if name == "mtp.fc.weight" {
                (0..HIDDEN).for_each(|i| values[i * 2 * HIDDEN + i] += 1.0);
            }
            if name.ends_with("linear_attn.norm.weight") {
                values.fill(1.0);
            }
            all.insert(name, (shape.to_vec(), values));
        };
        for name in ["model.embed_tokens", "lm_head"] {
            add(format!("{name}.weight"), &[VOCAB, HIDDEN]);
        }
        let own = [
            "mtp.pre_fc_norm_embedding",
            "mtp.pre_fc_norm_hidden",
            "mtp.norm",
        ];
        for name in own.into_iter().chain(["model.norm"]) {
            add(format!("{name}.weight"), &[HIDDEN]);
        }
        add("mtp.fc.weight".into(), &[HIDDEN, 2 * HIDDEN]);
        for (layer, is_attention) in [
            ("model.layers.0", false),
            ("model.layers.1", true),
            ("mtp.layers.0", true),
        ] {
            let mut part = |name: &str, shape: &[usize]| add(format!("{layer}.{name}"), shape);
            part("input_layernorm.weight", &[HIDDEN]);
            part("post_attention_layernorm.weight", &[HIDDEN]);
            match is_attention {
                true => {
                    part("self_attn.q_proj.weight", &[2 * HEADS * HEAD, HIDDEN]);
                    part("self_attn.k_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
                    part("self_attn.v_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
                    part("self_attn.o_proj.weight", &[HIDDEN, HEADS * HEAD]);
                    part("self_attn.q_norm.weight", &[HEAD]);
                    part("self_attn.k_norm.weight", &[HEAD]);
                }
                false => {
                    let width = DELTA_HEADS * HEAD;
                    if self.is_next() {
                        part("linear_attn.in_proj_qkvz.weight", &[4 * width, HIDDEN]);
                        part("linear_attn.in_proj_ba.weight", &[2 * DELTA_HEADS, HIDDEN]);
                    } else {
                        part("linear_attn.in_proj_qkv.weight", &[3 * width, HIDDEN]);
                        part("linear_attn.in_proj_z.weight", &[width, HIDDEN]);
                        part("linear_attn.in_proj_a.weight", &[DELTA_HEADS, HIDDEN]);
                        part("linear_attn.in_proj_b.weight", &[DELTA_HEADS, HIDDEN]);
                    }
                    part("linear_attn.conv1d.weight", &[3 * width, 1, 4]);
                    part("linear_attn.A_log", &[DELTA_HEADS]);
                    part("linear_attn.dt_bias", &[DELTA_HEADS]);
                    part("linear_attn.norm.weight", &[HEAD]);
                    part("linear_attn.out_proj.weight", &[HIDDEN, width]);
                }
            }
            let (mlp, wide) = match self.experts {
                true => ("mlp.shared_expert", EXPERT),
                false => ("mlp", WIDE),
            };
            part(&format!("{mlp}.gate_proj.weight"), &[wide, HIDDEN]);
            part(&format!("{mlp}.up_proj.weight"), &[wide, HIDDEN]);
            part(&format!("{mlp}.down_proj.weight"), &[HIDDEN, wide]);
            if self.experts {
                part("mlp.gate.weight", &[EXPERTS, HIDDEN]);
                part("mlp.shared_expert_gate.weight", &[1, HIDDEN]);
                part("mlp.experts.gate_up_proj", &[EXPERTS, 2 * EXPERT, HIDDEN]);
                part("mlp.experts.down_proj", &[EXPERTS, HIDDEN, EXPERT]);
            }
        }
        all
    }

    fn config(self) -> Value {
        let text = json!({
            "model_type": self.model_type, "vocab_size": VOCAB, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
            "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "linear_num_key_heads": DELTA_HEADS, "linear_num_value_heads": DELTA_HEADS, "linear_key_head_dim": HEAD,
            "linear_value_head_dim": HEAD, "linear_conv_kernel_dim": 4, "tie_word_embeddings": false,
            "rope_parameters": { "partial_rotary_factor": 0.5, "rope_theta": 5000.0, "rope_type": "default" },
        });
        let mut text = text;
        if self.experts {
            text["num_experts"] = EXPERTS.into();
            text["num_experts_per_tok"] = 2.into();
            text["moe_intermediate_size"] = EXPERT.into();
            text["shared_expert_intermediate_size"] = EXPERT.into();
        } else {
            text["intermediate_size"] = WIDE.into();
        }
        if !self.is_next() {
            text["mtp_num_hidden_layers"] = 1.into();
            text["mtp_use_dedicated_embeddings"] = false.into();
        }
        match self.model_type {
            "qwen3_5_moe" => {
                text["model_type"] = "qwen3_5_moe_text".into();
                json!({ "model_type": self.model_type, "text_config": text, "tie_word_embeddings": false })
            }
            _ => text,
        }
    }

    /// Writes a Hugging Face directory.
    fn write_folder(self, folder: &Path, config: &Value) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tokenizer_folder().join(name), folder.join(name)).unwrap();
        }
        let mut header = serde_json::Map::new();
        let mut data: Vec<u8> = Vec::new();
        let mut add = |name: String, shape: Vec<usize>, values: &[f32]| {
            let start = data.len();
            data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            let entry =
                json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
            header.insert(name, entry);
        };
        for (name, (shape, values)) in self.tensors() {
            let nested = match self.model_type {
                "qwen3_5_moe" => name.replacen("model.", "model.language_model.", 1),
                _ => name.clone(),
            };
            let one_each = self.is_next() && shape.len() == 3 && name.contains(".experts.");
            if !one_each {
                add(nested, shape, &values);
                continue;
            }
            // Qwen3-Next has a tensor for each matrix of each expert.
            let (fused, parts): (&str, &[&str]) = match name.ends_with("down_proj") {
                true => ("down_proj", &["down_proj"]),
                false => ("gate_up_proj", &["gate_proj", "up_proj"]),
            };
            let rows = shape[1] / parts.len();
            for (i, values) in values.chunks_exact(rows * shape[2]).enumerate() {
                let (expert, part) = (i / parts.len(), parts[i % parts.len()]);
                let name = nested.replace(fused, &format!("{expert}.{part}.weight"));
                add(name, vec![rows, shape[2]], values);
            }
        }
        let header = Value::Object(header).to_string().into_bytes();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
    }

    /// The keys of a GGUF file.
    fn keys(self) -> BTreeMap<String, Key> {
        let tokenizer = std::fs::read_to_string(tokenizer_folder().join("tokenizer.json")).unwrap();
        let mut keys = BTreeMap::from([
            (
                "general.architecture".to_string(),
                Key::String(self.architecture.into()),
            ),
            (
                "tokenizer.huggingface.json".to_string(),
                Key::String(tokenizer),
            ),
        ]);
        let numbers = [
            ("embedding_length", HIDDEN),
            ("block_count", LAYERS + 1),
            ("nextn_predict_layers", 1),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", KV_HEADS),
            ("attention.key_length", HEAD),
            ("attention.value_length", HEAD),
            ("rope.dimension_count", HEAD / 2),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", HEAD),
            ("ssm.group_count", DELTA_HEADS),
            ("ssm.time_step_rank", DELTA_HEADS),
            ("ssm.inner_size", DELTA_HEADS * HEAD),
            ("full_attention_interval", LAYERS),
        ];
        let dense = [("feed_forward_length", WIDE)];
        let mixture = [
            ("expert_count", EXPERTS),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", EXPERT),
            ("expert_shared_feed_forward_length", EXPERT),
        ];
        let more = if self.experts { &mixture[..] } else { &dense };
        for (key, number) in numbers.iter().chain(more) {
            keys.insert(self.key(key), Key::U32(*number as u32));
        }
        keys.insert(self.key("attention.layer_norm_rms_epsilon"), Key::F32(1e-6));
        keys.insert(self.key("rope.freq_base"), Key::F32(5000.0));
        keys
    }

    fn key(self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The tensors of a GGUF file.
    fn stored(self) -> Tensors {
        let tensors = self.tensors().into_iter();
        let stored = tensors.map(|(name, (mut shape, mut values))| {
            if name.ends_with("norm.weight") && !name.contains("linear_attn")
                || name.contains("layernorm")
                || name.contains("mtp.pre_fc_norm")
            {
                values.iter_mut().for_each(|x| *x += 1.0);
            }
            if name.ends_with("A_log") {
                values.iter_mut().for_each(|x| *x = -x.exp());
            }
            shape.retain(|&n| n != 1);
            (stored_name(&name), (shape, values))
        });
        stored.collect()
    }
}

/// What a tensor is called in GGUF files.
fn stored_name(name: &str) -> String {
    const NAMES: &[(&str, &str)] = &[
        ("model.embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("mtp.fc", "blk.2.nextn.eh_proj"),
        ("mtp.pre_fc_norm_embedding", "blk.2.nextn.enorm"),
        ("mtp.pre_fc_norm_hidden", "blk.2.nextn.hnorm"),
        ("mtp.norm", "blk.2.nextn.shared_head_norm"),
        ("model.norm", "output_norm"),
        ("model.layers", "blk"),
        ("mtp.layers.0", "blk.2"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.", "attn_"),
        ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
        ("mlp.experts.down_proj", "ffn_down_exps.weight"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.gate", "ffn_gate_inp"),
        ("linear_attn.in_proj_qkvz", "ssm_in"),
        ("linear_attn.in_proj_ba", "ssm_ba"),
        ("linear_attn.in_proj_qkv", "attn_qkv"),
        ("linear_attn.in_proj_z", "attn_gate"),
        ("linear_attn.in_proj_a", "ssm_alpha"),
        ("linear_attn.in_proj_b", "ssm_beta"),
        ("linear_attn.conv1d", "ssm_conv1d"),
        ("linear_attn.A_log", "ssm_a"),
        ("linear_attn.dt_bias", "ssm_dt.bias"),
        ("linear_attn.norm", "ssm_norm"),
        ("linear_attn.out_proj", "ssm_out"),
    ];
    NAMES
        .iter()
        .fold(name.to_string(), |name, (theirs, stored)| {
            name.replacen(theirs, stored, 1)
        })
}

fn write_gguf(path: &Path, keys: &BTreeMap<String, Key>, tensors: &Tensors) {
    let keys: Vec<_> = keys.clone().into_iter().collect();
    let new = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| NewTensor {
        name: name.clone(),
        format: &F32,
        shape: shape.clone(),
    };
    let all: Vec<_> = tensors.iter().map(new).collect();
    let mut writer = Writer::create(path, &keys, &all).unwrap();
    for (_, values) in tensors.values() {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write_tensor(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// Writes a model opened with its block as a file of our own architecture.
fn write_own(path: &Path, checkpoint: &Checkpoint) {
    let stored = checkpoint.stored();
    let new = |stored: &waterline::WeightSpec| NewTensor {
        name: stored.name.clone(),
        format: &F32,
        shape: stored.shape.clone(),
    };
    let all: Vec<_> = stored.iter().map(|(_, stored)| new(stored)).collect();
    let mut writer = Writer::create(path, &checkpoint.metadata(), &all).unwrap();
    for (weight, _) in &stored {
        let values = checkpoint.tensors[&weight.name].to_f32();
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write_tensor(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn with_mtp() -> OpenOptions {
    OpenOptions {
        mtp: true,
        ..OpenOptions::default()
    }
}

fn options(mtp: usize, temperature: f32) -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.sampler.temperature, options.sampler.seed) = (temperature, 5);
    options.state.kv = Kv::F32;
    options.state.context = 256;
    (options.threads, options.chunk, options.mtp) = (1, 16, mtp);
    options
}

fn prompted(model: &Arc<Model>, mtp: usize, temperature: f32) -> Session {
    let mut session = Session::new(Arc::clone(model), options(mtp, temperature)).unwrap();
    let prompt: Vec<u32> = (0..37).map(|i| i * 89 % VOCAB as u32).collect();
    session.feed(&prompt).unwrap();
    session
}

/// Generates so many tokens.
fn generate(session: &mut Session, tokens: usize) -> Vec<u32> {
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.stop_at_eos) = (tokens, false);
    let pieces = session.generate(options).unwrap();
    let pieces: Vec<Piece> = pieces.collect::<Result<_, _>>().unwrap();
    pieces.iter().filter_map(|piece| piece.token).collect()
}

#[test]
fn drafts_by_a_block_change_no_token_in_any_form_of_file() {
    for kind in KINDS {
        let place = Workplace::new();
        let (folder, file, own) = (
            place.path("model"),
            place.path("a.gguf"),
            place.path("b.gguf"),
        );
        kind.write_folder(&folder, &kind.config());
        write_gguf(&file, &kind.keys(), &kind.stored());
        write_own(&own, &Checkpoint::open_with(&folder, &with_mtp()).unwrap());
        let mut texts = Vec::new();
        for path in [&folder, &file, &own] {
            let what = path.display();
            let plain = Model::open(path).unwrap();
            let model = Model::open_with(path, &with_mtp()).unwrap();
            assert!(model.weight_bytes() > plain.weight_bytes(), "{what}");
            for temperature in [0.0, 0.2] {
                let mut steps = prompted(&plain, 0, temperature);
                let expected = generate(&mut steps, 60);
                let mut session = prompted(&model, 4, temperature);
                let fixed = (session.state_bytes(), session.work_bytes());
                assert!(fixed.0 > steps.state_bytes(), "{what}");
                let mut found = generate(&mut session, 25);
                let middle = session.snapshot().unwrap();
                found.extend(generate(&mut session, 35));
                assert_eq!(found, expected, "{what} at {temperature}");
                assert_eq!((session.state_bytes(), session.work_bytes()), fixed);
                let (drafted, accepted) = session.drafts();
                println!("{what} at {temperature}: {accepted} of {drafted} accepted");
                assert!(accepted > 5, "{what}: {accepted} of {drafted}");
                let mut other = prompted(&model, 2, temperature);
                other.restore(&middle).unwrap();
                assert_eq!(generate(&mut other, 35), expected[25..], "{what}");
                texts.push(expected);
            }
        }
        assert!(
            texts
                .iter()
                .skip(2)
                .zip(&texts)
                .all(|(one, other)| one == other)
        );
    }
}

/// The sentence with which a file does not open.
fn refused(path: &Path, options: &OpenOptions) -> String {
    let checkpoint = Checkpoint::open_with(path, options);
    checkpoint.map(|_| ()).expect_err("an error").to_string()
}

fn assert_names(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
}

#[test]
fn a_block_that_is_missing_or_not_known_is_an_error_where_it_is_read_alone() {
    let place = Workplace::new();
    let (kind, path) = (KINDS[0], place.path("a.gguf"));
    let check = |keys: &BTreeMap<String, Key>, tensors: &Tensors, parts: &[&str]| {
        write_gguf(&path, keys, tensors);
        Model::open(&path).unwrap();
        assert_names(&refused(&path, &with_mtp()), parts);
    };
    let (keys, tensors) = (kind.keys(), kind.stored());
    let mut lacks = tensors.clone();
    lacks.remove("blk.2.nextn.eh_proj.weight");
    check(&keys, &lacks, &["a.gguf", "blk.2.nextn.eh_proj.weight"]);
    let mut more = tensors.clone();
    let norm = more["output_norm.weight"].clone();
    more.insert("blk.2.nextn.another.weight".into(), norm);
    check(&keys, &more, &["a.gguf", "blk.2.nextn.another.weight"]);
    let mut none = keys.clone();
    none.remove("qwen35.nextn_predict_layers");
    none.insert(kind.key("block_count"), Key::U32(2));
    let mut without = tensors.clone();
    without.retain(|name, _| !name.starts_with("blk.2."));
    check(
        &none,
        &without,
        &["a.gguf", "nextn_predict_layers", "nothing"],
    );
    none.insert(kind.key("nextn_predict_layers"), Key::U32(2));
    none.insert(kind.key("block_count"), Key::U32(4));
    check(
        &none,
        &without,
        &["a.gguf", "nextn_predict_layers", "found 2"],
    );

    let folder = place.path("model");
    for (key, value) in [
        ("mtp_num_hidden_layers", json!(2)),
        ("mtp_use_dedicated_embeddings", json!(true)),
    ] {
        let mut config = kind.config();
        config[key] = value;
        kind.write_folder(&folder, &config);
        Model::open(&folder).unwrap();
        assert_names(&refused(&folder, &with_mtp()), &["config.json", key]);
    }
    let images = refused(&fixture("hf_qwen3_5_images"), &with_mtp());
    assert_names(&images, &["config.json", "mtp.fc.weight"]);
    assert_names(
        &refused(&fixture("gdn_plain"), &with_mtp()),
        &["MTP", "model_type"],
    );
    write_own(&path, &Checkpoint::open(fixture("gdn_plain")).unwrap());
    assert_names(
        &refused(&path, &with_mtp()),
        &["a.gguf", "MTP", "waterline.spec"],
    );
}

#[test]
fn the_program_drafts_by_a_block() {
    let place = Workplace::new();
    let file: PathBuf = place.path("a.gguf");
    write_gguf(&file, &KINDS[1].keys(), &KINDS[1].stored());
    let file = file.display().to_string();
    let run = |flags: &[&str]| {
        let all = [
            "run",
            &file,
            "-p",
            "one two three",
            "-n",
            "40",
            "--ignore-eos",
            "--json",
        ];
        place.run(all.into_iter().chain(flags.iter().copied()))
    };
    for flags in [
        &["--greedy"][..],
        &["--seed", "4"],
        &["--greedy", "--drop-oldest"],
    ] {
        let plain = run(flags).succeeded().json();
        let drafted = run(&[flags, &["--mtp", "3"]].concat()).succeeded().json();
        assert_eq!(plain["text"], drafted["text"], "{flags:?}");
        assert_eq!(plain["tokens"], drafted["tokens"], "{flags:?}");
        assert!(drafted["drafts"]["accepted"].as_u64() <= drafted["drafts"]["drafted"].as_u64());
        assert!(plain.get("drafts").is_none());
    }
    let model = place.model("lalte-tiny").display().to_string();
    let run = |flags: &[&str]| {
        let all = ["run", &model, "-p", "one", "-n", "4"];
        place.run(all.into_iter().chain(flags.iter().copied()))
    };
    run(&["--mtp", "3"]).failed(2, &["lalte-tiny.gguf", "MTP"]);
    assert_eq!(run(&["--mtp", "3", "--lookup", "3"]).status, Some(2));
    assert_eq!(run(&["--mtp", "65"]).status, Some(2));
}
