//! GGUF files with pseudorandom weights generated here, and the logits that llama.cpp computes from them (commit 0c1e570, one CPU thread,
//! f32 keys and values, no flash attention): the first six logits after the last of twenty tokens, read in one chunk.
//!
//! `WATERLINE_DRAWN=FOLDER cargo test --test drawn_files` writes the files to FOLDER, for llama.cpp to read.

mod common;

use std::path::Path;

use common::Workplace;
use waterline::{Kv, Model, Session, SessionOptions};
use waterline_quant::F32;
use waterline_quant::gguf::{Array, NewTensor, Value, Writer};

const VOCAB: usize = 64;
const HIDDEN: usize = 32;

/// A GGUF file: keys, and the shapes of tensors, whose values are derived from their names.
#[derive(Clone)]
struct Drawn {
    architecture: &'static str,
    keys: Vec<(String, Value)>,
    shapes: Vec<(String, Vec<usize>)>,
}

impl Drawn {
    /// Makes a file with the embedding and the norm after the layers.
    fn new(architecture: &'static str, layers: usize) -> Self {
        let text = |text: &str| Value::String(text.into());
        let mut file = Drawn {
            architecture,
            keys: vec![
                ("general.architecture".into(), text(architecture)),
                ("tokenizer.ggml.model".into(), text("none")),
            ],
            shapes: Vec::new(),
        };
        file.numbers(&[
            ("vocab_size", VOCAB),
            ("context_length", 128),
            ("embedding_length", HIDDEN),
            ("block_count", layers),
            ("attention.head_count", 4),
        ]);
        file.floats(&[
            ("attention.layer_norm_rms_epsilon", 1e-5),
            ("rope.freq_base", 1e4),
        ]);
        file.tensors(
            "",
            &[
                ("token_embd.weight", &[VOCAB, HIDDEN]),
                ("output_norm.weight", &[HIDDEN]),
            ],
        );
        file
    }

    fn key(&mut self, name: &str, value: Value) {
        let name = format!("{}.{name}", self.architecture);
        self.keys.push((name, value));
    }

    fn numbers(&mut self, numbers: &[(&str, usize)]) {
        for &(name, number) in numbers {
            self.key(name, Value::U32(number as u32));
        }
    }

    fn floats(&mut self, numbers: &[(&str, f32)]) {
        for &(name, number) in numbers {
            self.key(name, Value::F32(number));
        }
    }

    fn tensors(&mut self, prefix: &str, shapes: &[(&str, &[usize])]) {
        let named = shapes
            .iter()
            .map(|(name, shape)| (format!("{prefix}{name}"), shape.to_vec()));
        self.shapes.extend(named);
    }

    fn write(&self, path: &Path) {
        let tensor = |(name, shape): &(String, Vec<usize>)| NewTensor {
            name: name.clone(),
            format: &F32,
            shape: shape.clone(),
        };
        let tensors: Vec<_> = self.shapes.iter().map(tensor).collect();
        let mut writer = Writer::create(path, &self.keys, &tensors).unwrap();
        for (name, shape) in &self.shapes {
            let bytes: Vec<u8> = values(name, shape)
                .iter()
                .flat_map(|x| x.to_le_bytes())
                .collect();
            writer.write_tensor(&bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    /// Returns the logits after the last token.
    fn logits(&self, name: &str) -> Vec<f32> {
        let place = Workplace::new();
        let path = place.path("model.gguf");
        self.write(&path);
        if let Some(folder) = std::env::var_os("WATERLINE_DRAWN") {
            self.write(&Path::new(&folder).join(format!("{name}.gguf")));
        }
        let mut options = SessionOptions::default();
        options.state.kv = Kv::F32;
        let mut session = Session::new(Model::open(&path).unwrap(), options).unwrap();
        let tokens: Vec<u32> = (0..20).map(|i| 7 * i * i % VOCAB as u32).collect();
        session.feed(&tokens).unwrap();
        session.logits().unwrap().to_vec()
    }
}

#[track_caller]
fn assert_llama_cpps(cases: &[(&str, Drawn, [f32; 6])]) {
    let mut failed = Vec::new();
    for (name, file, expected) in cases {
        let found = file.logits(name);
        let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
        if differences.fold(0.0, f32::max) > 2e-5 {
            failed.push(format!("{name}: {:?} instead of {expected:?}", &found[..6]));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Returns the values of a tensor: uniform around zero, adapted to the kind of tensor.
fn values(name: &str, shape: &[usize]) -> Vec<f32> {
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let cols = *shape.last().unwrap_or(&1) as f32;
    let of_kind = |x: f32| match () {
        () if name.ends_with("norm.weight") || name.ends_with("ssm_d") => 1.0 + 0.3 * x,
        () if name.ends_with("ssm_a") => -1.5 - x,
        () if name.ends_with("ssm_dt.bias") => x - 1.0,
        () if name.ends_with("bias") => 0.3 * x,
        () if name.contains("conv1d") || name.starts_with("token_embd") => x,
        () => 2.0 * x / cols.sqrt(),
    };
    (0..shape.iter().product())
        .map(|_| of_kind(draw()))
        .collect()
}

/// Granite: attention in the layers that have key/value heads, Mamba-2 in the others; with or without positions and experts.
fn granite(
    architecture: &'static str,
    kv_heads: &[usize],
    positions: bool,
    experts: bool,
) -> Drawn {
    let (ff, head_dim) = (24, 8);
    let mut file = Drawn::new(architecture, kv_heads.len());
    file.numbers(&[
        ("feed_forward_length", ff),
        ("rope.dimension_count", head_dim),
    ]);
    file.floats(&[
        ("attention.scale", 0.2),
        ("embedding_scale", 3.0),
        ("residual_scale", 0.4),
        ("logit_scale", 0.7),
    ]);
    file.key("rope.scaling.finetuned", Value::Bool(positions));
    let list = kv_heads.iter().map(|&heads| heads as i32).collect();
    file.key("attention.head_count_kv", Value::Array(Array::I32(list)));
    if architecture == "granitehybrid" {
        file.numbers(&[
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 16),
            ("ssm.group_count", 1),
            ("ssm.inner_size", 64),
            ("ssm.time_step_rank", 4),
        ]);
    }
    if experts {
        file.numbers(&[
            ("expert_count", 5),
            ("expert_used_count", 2),
            ("expert_shared_feed_forward_length", 40),
        ]);
    }
    for (i, &kv_heads) in kv_heads.iter().enumerate() {
        let block = format!("blk.{i}.");
        file.tensors(
            &block,
            &[
                ("attn_norm.weight", &[HIDDEN]),
                ("ffn_norm.weight", &[HIDDEN]),
            ],
        );
        let kv = kv_heads * head_dim;
        match kv_heads {
            0 => file.tensors(
                &block,
                &[
                    ("ssm_in.weight", &[164, HIDDEN]),
                    ("ssm_conv1d.weight", &[96, 4]),
                    ("ssm_conv1d.bias", &[96]),
                    ("ssm_dt.bias", &[4]),
                    ("ssm_a", &[4, 1]),
                    ("ssm_d", &[4, 1]),
                    ("ssm_norm.weight", &[1, 64]),
                    ("ssm_out.weight", &[HIDDEN, 64]),
                ],
            ),
            _ => file.tensors(
                &block,
                &[
                    ("attn_q.weight", &[32, HIDDEN]),
                    ("attn_k.weight", &[kv, HIDDEN]),
                    ("attn_v.weight", &[kv, HIDDEN]),
                    ("attn_output.weight", &[HIDDEN, 32]),
                ],
            ),
        }
        if experts {
            mixture(&mut file, &block, [5, ff, 40])
        } else {
            dense(&mut file, &block, ff)
        }
    }
    file
}

fn dense(file: &mut Drawn, block: &str, ff: usize) {
    file.tensors(
        block,
        &[
            ("ffn_gate.weight", &[ff, HIDDEN]),
            ("ffn_up.weight", &[ff, HIDDEN]),
            ("ffn_down.weight", &[HIDDEN, ff]),
        ],
    );
}

/// Adds experts of one width, and a shared expert with a different width.
fn mixture(file: &mut Drawn, block: &str, [experts, ff, shared]: [usize; 3]) {
    file.tensors(
        block,
        &[
            ("ffn_gate_inp.weight", &[experts, HIDDEN]),
            ("ffn_gate_exps.weight", &[experts, ff, HIDDEN]),
            ("ffn_up_exps.weight", &[experts, ff, HIDDEN]),
            ("ffn_down_exps.weight", &[experts, HIDDEN, ff]),
            ("ffn_gate_shexp.weight", &[shared, HIDDEN]),
            ("ffn_up_shexp.weight", &[shared, HIDDEN]),
            ("ffn_down_shexp.weight", &[HIDDEN, shared]),
        ],
    );
}

#[test]
fn granite_is_llama_cpps() {
    let transformer = [2, 2];
    let hybrid = [0, 2, 0];
    assert_llama_cpps(&[
        (
            "dense",
            granite("granite", &transformer, true, false),
            [
                1.362262, -4.449854, 5.262239, -1.934551, -0.4988607, -2.911398,
            ],
        ),
        (
            "dense_unturned",
            granite("granite", &transformer, false, false),
            [
                1.227896, -4.44989, 4.913428, -1.733214, -0.4080393, -2.983656,
            ],
        ),
        (
            "experts",
            granite("granitemoe", &transformer, true, true),
            [
                -2.081028, -7.183976, 7.416219, -3.816197, 2.363851, -3.844805,
            ],
        ),
        (
            "hybrid",
            granite("granitehybrid", &hybrid, true, false),
            [
                -0.7559941, -0.7237402, 3.613957, -2.705558, 4.570977, -2.315793,
            ],
        ),
        (
            "hybrid_unturned_experts",
            granite("granitehybrid", &hybrid, false, true),
            [
                -0.7855087, -7.599665, 8.685985, -6.392403, 4.304614, -2.99871,
            ],
        ),
    ]);
}

/// Kimi Linear: one dense layer, then mixtures of experts; latent attention in the second layer.
fn kimi_linear() -> Drawn {
    let (heads, dim, latent, rope, value) = (4, 16, 24, 8, 12);
    let mut file = Drawn::new("kimi-linear", 3);
    file.numbers(&[
        ("feed_forward_length", 48),
        ("leading_dense_block_count", 1),
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("expert_shared_count", 1),
        ("expert_feed_forward_length", 16),
        ("expert_gating_func", 2),
        ("kda.head_dim", dim),
        ("ssm.conv_kernel", 4),
        ("attention.kv_lora_rank", latent),
        ("rope.dimension_count", rope),
        ("attention.key_length_mla", 16 + rope),
        ("attention.value_length_mla", value),
        // The width of the cache, and a value that is not used.
        ("attention.key_length", latent + rope),
        ("attention.value_length", 16),
    ]);
    file.floats(&[("expert_weights_scale", 1.7)]);
    let kv_heads = Value::Array(Array::I32(vec![0, 1, 0]));
    file.key("attention.head_count_kv", kv_heads);
    file.tensors("", &[("output.weight", &[VOCAB, HIDDEN])]);
    for i in 0..3 {
        let block = format!("blk.{i}.");
        file.tensors(
            &block,
            &[
                ("attn_norm.weight", &[HIDDEN]),
                ("ffn_norm.weight", &[HIDDEN]),
            ],
        );
        match i {
            1 => file.tensors(
                &block,
                &[
                    ("attn_q.weight", &[heads * (16 + rope), HIDDEN]),
                    ("attn_kv_a_mqa.weight", &[latent + rope, HIDDEN]),
                    ("attn_kv_a_norm.weight", &[latent]),
                    ("attn_k_b.weight", &[heads, latent, 16]),
                    ("attn_v_b.weight", &[heads, value, latent]),
                    ("attn_output.weight", &[HIDDEN, heads * value]),
                ],
            ),
            _ => file.tensors(
                &block,
                &[
                    ("attn_q.weight", &[heads * dim, HIDDEN]),
                    ("attn_k.weight", &[heads * dim, HIDDEN]),
                    ("attn_v.weight", &[heads * dim, HIDDEN]),
                    ("ssm_conv1d_q.weight", &[1, heads * dim, 1, 4]),
                    ("ssm_conv1d_k.weight", &[1, heads * dim, 1, 4]),
                    ("ssm_conv1d_v.weight", &[1, heads * dim, 1, 4]),
                    ("ssm_f_a.weight", &[dim, HIDDEN]),
                    ("ssm_f_b.weight", &[heads * dim, dim]),
                    ("ssm_g_a.weight", &[dim, HIDDEN]),
                    ("ssm_g_b.weight", &[heads * dim, dim]),
                    ("ssm_beta.weight", &[heads, HIDDEN]),
                    ("ssm_a", &[1, 1, heads, 1]),
                    ("ssm_dt.bias", &[heads * dim]),
                    ("ssm_norm.weight", &[dim]),
                    ("attn_output.weight", &[HIDDEN, heads * dim]),
                ],
            ),
        }
        if i == 0 {
            dense(&mut file, &block, 48);
        } else {
            mixture(&mut file, &block, [5, 16, 16]);
            file.tensors(&block, &[("exp_probs_b.bias", &[5])]);
        }
    }
    file
}

#[test]
fn kimi_linear_is_llama_cpps() {
    assert_llama_cpps(&[(
        "kimi_linear",
        kimi_linear(),
        [
            -0.6397913, -0.4625439, 0.2713437, 0.8697206, -2.576805, 2.163914,
        ],
    )]);
}

#[test]
fn kimi_linear_without_an_output_matrix_uses_the_embedding() {
    let mut tied = kimi_linear();
    tied.shapes.retain(|(name, _)| name != "output.weight");
    let logits = tied.logits("kimi_linear_tied");
    // The output matrix is generated from its own name, so it differs from the embedding.
    assert_ne!(logits, kimi_linear().logits("kimi_linear"));
    let mut value_length = tied.clone();
    value_length
        .keys
        .retain(|(key, _)| !key.ends_with(".attention.value_length"));
    assert_eq!(logits, value_length.logits("kimi_linear_tied"));
}
