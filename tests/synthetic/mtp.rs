//! Small models with an MTP block and random weights, as Hugging Face directories and as GGUF files.

#![allow(dead_code)] // each test binary uses a part

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use waterline::internal::Checkpoint;
use waterline_quant::F32;
use waterline_quant::gguf::{NewTensor, Value as Key, Writer};

use crate::common::tokenizer_folder;

/// A model family.
#[derive(Clone, Copy)]
pub struct Kind {
    /// The `model_type` in `config.json`.
    pub model_type: &'static str,
    /// The architecture in GGUF files.
    pub architecture: &'static str,
    /// Whether its MLPs are mixtures of experts.
    pub experts: bool,
}

pub const KINDS: [Kind; 3] = [
    Kind {
        model_type: "qwen3_5_text",
        architecture: "qwen35",
        experts: false,
    },
    // The language model of a family that also reads images.
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

pub const VOCAB: usize = 4096;
pub const HIDDEN: usize = 32;
pub const LAYERS: usize = 2;
pub const HEADS: usize = 4;
pub const KV_HEADS: usize = 2;
pub const HEAD: usize = 8;
/// The number of key heads, and of value heads, of Gated DeltaNet.
pub const DELTA_HEADS: usize = 2;
pub const WIDE: usize = 48;
pub const EXPERTS: usize = 4;
pub const EXPERT: usize = 16;

pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Returns a number from -1 to 1 that depends only on `seed`.
pub fn noise(seed: u64) -> f32 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ x >> 31) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Kind {
    pub fn is_next(self) -> bool {
        self.model_type == "qwen3_next"
    }

    /// Returns the tensors under transformers' names for a language model without vision, with a layer's experts in one tensor.
    pub fn tensors(self) -> Tensors {
        let mut all = Tensors::new();
        let mut add = |name: String, shape: &[usize]| {
            let inputs: usize = shape[shape.len() - 1];
            // A norm's gain is stored minus one. The layers contribute little compared with the embedding.
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
            if is_attention {
                part("self_attn.q_proj.weight", &[2 * HEADS * HEAD, HIDDEN]);
                part("self_attn.k_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
                part("self_attn.v_proj.weight", &[KV_HEADS * HEAD, HIDDEN]);
                part("self_attn.o_proj.weight", &[HIDDEN, HEADS * HEAD]);
                part("self_attn.q_norm.weight", &[HEAD]);
                part("self_attn.k_norm.weight", &[HEAD]);
            } else {
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
            let (mlp, wide) = if self.experts {
                ("mlp.shared_expert", EXPERT)
            } else {
                ("mlp", WIDE)
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

    pub fn config(self) -> Value {
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
    pub fn write_folder(self, folder: &Path, config: &Value) {
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
            // Qwen3-Next stores each matrix of each expert as a separate tensor.
            let (fused, parts): (&str, &[&str]) = if name.ends_with("down_proj") {
                ("down_proj", &["down_proj"])
            } else {
                ("gate_up_proj", &["gate_proj", "up_proj"])
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

    /// Returns the keys of a GGUF file.
    pub fn keys(self) -> BTreeMap<String, Key> {
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

    pub fn key(self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Returns the tensors of a GGUF file.
    pub fn stored(self) -> Tensors {
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

/// Returns the name of a tensor in GGUF files.
pub fn stored_name(name: &str) -> String {
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

pub fn write_gguf(path: &Path, keys: &BTreeMap<String, Key>, tensors: &Tensors) {
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

/// Writes a model that was opened with its MTP block as a file of waterline's own architecture.
pub fn write_own(path: &Path, checkpoint: &Checkpoint) {
    let stored = checkpoint.stored();
    let new = |stored: &waterline::internal::WeightSpec| NewTensor {
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
