//! Zamba2's shared blocks, reused by later layers: in files of transformers, in published files that repeat the blocks' tensors, and as
//! separate blocks with equal weights.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::Workplace;
use serde_json::{Map, json};
use waterline::{Model, Session, SessionOptions};

const HIDDEN: usize = 16;
/// The layers that use a block: the first and the last one use the same block, unless there are three blocks.
const USES: [usize; 3] = [1, 3, 4];

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// Returns values around zero, or around one for norms, that depend only on the name.
fn drawn(name: &str, shape: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let mut state = name.bytes().fold(1u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut draw = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        0.4 * ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let around = if name.contains("norm") { 1.0 } else { 0.0 };
    let values = (0..shape.iter().product()).map(|_| around + draw());
    (shape.to_vec(), values.collect())
}

/// The tensors of a shared block without its adapters.
const BLOCK: [(&str, [usize; 2]); 8] = [
    ("input_layernorm", [2 * HIDDEN, 1]),
    ("pre_ff_layernorm", [HIDDEN, 1]),
    ("self_attn.q_proj", [32, 2 * HIDDEN]),
    ("self_attn.k_proj", [32, 2 * HIDDEN]),
    ("self_attn.v_proj", [32, 2 * HIDDEN]),
    ("self_attn.o_proj", [HIDDEN, 32]),
    ("feed_forward.gate_up_proj", [48, HIDDEN]),
    ("feed_forward.down_proj", [HIDDEN, 24]),
];

/// The adapters of a block: rows and columns of the matrices that they correct.
const CORRECTED: [(&str, [usize; 2]); 4] = [
    ("self_attn.linear_q_adapter_list", [32, 2 * HIDDEN]),
    ("self_attn.linear_k_adapter_list", [32, 2 * HIDDEN]),
    ("self_attn.linear_v_adapter_list", [32, 2 * HIDDEN]),
    ("feed_forward.gate_up_proj_adapter_list", [48, HIDDEN]),
];

const RANK: usize = 3;

/// Returns the tensors of a model with `blocks` shared blocks, where a third block has the weights of the first. If `repeated`, every layer
/// that uses a block has the block's tensors, not only the first.
fn zamba2(blocks: usize, repeated: bool) -> Tensors {
    let mut tensors = Tensors::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name.clone(), drawn(&name, shape));
    };
    add("model.embed_tokens.weight".into(), &[64, HIDDEN]);
    add("model.final_layernorm.weight".into(), &[HIDDEN]);
    for layer in 0..5 {
        let mut prefix = format!("model.layers.{layer}.");
        if USES.contains(&layer) {
            add(format!("{prefix}linear.weight"), &[HIDDEN, HIDDEN]);
            prefix += "mamba_decoder.";
        }
        add(format!("{prefix}input_layernorm.weight"), &[HIDDEN]);
        for (name, shape) in [
            ("A_log", &[4][..]),
            ("D", &[4]),
            ("dt_bias", &[4]),
            ("conv1d.weight", &[64, 1, 4]),
            ("conv1d.bias", &[64]),
            ("in_proj.weight", &[100, HIDDEN]),
            ("norm.weight", &[32]),
            ("out_proj.weight", &[HIDDEN, 32]),
        ] {
            add(format!("{prefix}mamba.{name}"), shape);
        }
    }
    for (layer_use, &own) in USES.iter().enumerate() {
        let number = layer_use % blocks;
        let mut places = vec![USES[number]];
        if repeated {
            let users = (0..USES.len()).filter(|other| other % blocks == number);
            places.extend(users.map(|other| USES[other]));
            places.push(own);
        }
        for place in places {
            let prefix = format!("model.layers.{place}.shared_transformer.");
            for (part, [rows, cols]) in BLOCK {
                let shape = if cols == 1 {
                    vec![rows]
                } else {
                    vec![rows, cols]
                };
                // The third block equals the first.
                let source = format!("block {} {part}", number % 2);
                tensors.insert(format!("{prefix}{part}.weight"), drawn(&source, &shape));
            }
            for (part, [rows, cols]) in CORRECTED {
                for (i, shape) in [[RANK, cols], [rows, RANK]].iter().enumerate() {
                    let name = format!("{part}.{layer_use}.{i}.weight");
                    let values = drawn(&name, shape);
                    tensors.insert(prefix.clone() + &name, values);
                }
            }
        }
    }
    tensors
}

fn write(folder: &Path, blocks: usize, tensors: &Tensors) {
    let config = json!({
        "model_type": "zamba2", "vocab_size": 64, "hidden_size": HIDDEN, "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"],
        "num_mem_blocks": blocks, "num_attention_heads": 4, "num_key_value_heads": 4, "attention_head_dim": 8,
        "attention_hidden_size": 32, "intermediate_size": 24, "adapter_rank": RANK, "hidden_act": "gelu",
        "use_mem_rope": true, "use_shared_attention_adapter": true, "rms_norm_eps": 1e-5, "tie_word_embeddings": true,
        "mamba_expand": 2, "n_mamba_heads": 4, "mamba_headdim": 8, "mamba_ngroups": 2, "mamba_d_state": 8, "mamba_d_conv": 4
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let (mut header, mut body) = (Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let start = body.len();
        body.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let entry = json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, body.len()] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(body);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

fn logits(blocks: usize, tensors: &Tensors) -> Vec<f32> {
    let place = Workplace::new();
    let folder = place.path("zamba2");
    std::fs::create_dir(&folder).unwrap();
    write(&folder, blocks, tensors);
    let model = Model::open(&folder).unwrap();
    let mut session = Session::new(model, SessionOptions::default()).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| 7 * i * i % 64).collect();
    session.feed(&tokens).unwrap();
    session.logits().unwrap().to_vec()
}

#[test]
fn a_block_that_is_used_again_is_the_same_as_another_with_its_weights() {
    let shared = logits(2, &zamba2(2, false));
    assert!(shared.iter().all(|x| x.is_finite()));
    assert_eq!(shared, logits(3, &zamba2(3, false)));
    assert_ne!(shared, logits(1, &zamba2(1, false)));
}

#[test]
fn published_files_repeat_shared_blocks() {
    let (once, repeated) = (zamba2(2, false), zamba2(2, true));
    assert!(repeated.len() > once.len());
    assert_eq!(logits(2, &once), logits(2, &repeated));
}

#[test]
fn every_use_has_corrections_of_its_own() {
    let model = zamba2(2, false);
    let expected = logits(2, &model);
    for number in 0..USES.len() {
        let place = USES[number % 2];
        let part = "self_attn.linear_v_adapter_list";
        let name = format!("model.layers.{place}.shared_transformer.{part}.{number}.1.weight");
        let mut other = model.clone();
        let (_, values) = other.get_mut(&name).expect("a correction");
        values.iter_mut().for_each(|x| *x = -*x);
        assert_ne!(expected, logits(2, &other), "{name}");
    }
}
