//! Models of Hugging Face directories give the same logits when rewritten in llama.cpp's layout.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::{Workplace, fixture};
use waterline::internal::Checkpoint;
use waterline::{Kv, Model, OpenOptions, Session, SessionOptions};
use waterline_quant::F32;
use waterline_quant::gguf::{Array, NewTensor, Value, Writer};

/// A GGUF file under construction.
#[derive(Clone, Default)]
struct File {
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl File {
    fn number(&mut self, key: &str, number: usize) {
        self.keys.insert(key.into(), Value::U32(number as u32));
    }

    fn float(&mut self, key: &str, number: f32) {
        self.keys.insert(key.into(), Value::F32(number));
    }

    fn write(&self, path: &Path) {
        let keys: Vec<_> = self.keys.clone().into_iter().collect();
        let tensor = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| NewTensor {
            name: name.clone(),
            format: &F32,
            shape: shape.clone(),
        };
        let tensors: Vec<_> = self.tensors.iter().map(tensor).collect();
        let mut writer = Writer::create(path, &keys, &tensors).unwrap();
        for (_, values) in self.tensors.values() {
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.write_tensor(&bytes).unwrap();
        }
        writer.finish().unwrap();
    }

    /// Writes the file in three parts, as `llama-gguf-split` does; returns their paths.
    fn write_parts(&self, folder: &Path) -> Vec<PathBuf> {
        let tensors: Vec<_> = self.tensors.iter().collect();
        let each = tensors.len().div_ceil(3);
        let parts = tensors.chunks(each).enumerate().map(|(part, tensors)| {
            let mut file = File::default();
            if part == 0 {
                file.keys = self.keys.clone();
            }
            for (key, value) in [
                ("split.no", Value::U16(part as u16)),
                ("split.count", Value::U16(3)),
                ("split.tensors.count", Value::I32(self.tensors.len() as i32)),
            ] {
                file.keys.insert(key.into(), value);
            }
            for &(name, value) in tensors {
                file.tensors.insert(name.clone(), value.clone());
            }
            let path = folder.join(format!("m-{:05}-of-00003.gguf", part + 1));
            file.write(&path);
            path
        });
        parts.collect()
    }

    /// Returns the logits of the file's model.
    fn logits(&self) -> Vec<f32> {
        let place = Workplace::new();
        let path = place.path("model.gguf");
        self.write(&path);
        logits(&path)
    }
}

/// Returns the tensors of a model by waterline's names, with llama.cpp's names for the parts that all its models share.
fn tensors(case: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let checkpoint = Checkpoint::open(fixture(case)).unwrap();
    let renamed = |name: &str| {
        let names = [
            ("mixer.q_proj", "attn_q"),
            ("mixer.k_proj", "attn_k"),
            ("mixer.v_proj", "attn_v"),
            ("mixer.o_proj", "attn_output"),
            ("mixer.q_norm", "attn_q_norm"),
            ("mixer.k_norm", "attn_k_norm"),
        ];
        let found = names.iter().find(|(ours, _)| name.contains(ours));
        found.map_or(name.into(), |(ours, theirs)| name.replace(ours, theirs))
    };
    let tensors = checkpoint.tensors.iter();
    let tensors =
        tensors.map(|(name, tensor)| (renamed(name), (tensor.shape.clone(), tensor.to_f32())));
    tensors.collect()
}

/// Returns the rows of a tensor in another order.
fn reordered((shape, values): &(Vec<usize>, Vec<f32>), order: &[usize]) -> (Vec<usize>, Vec<f32>) {
    let width = values.len() / shape[0];
    let row = |&row: &usize| values[row * width..][..width].to_vec();
    (shape.clone(), order.iter().flat_map(row).collect())
}

/// Caches keys and values in f32: rounding them to 16 bits changes logits by 4e-4 from those of the model in f64, and a difference of 1e-6
/// before the rounding may become 2e-4 after it.
fn logits(path: &Path) -> Vec<f32> {
    let mut options = SessionOptions::default();
    options.state.kv = Kv::F32;
    let mut session = Session::new(Model::open(path).unwrap(), options).unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| i * 89 % 131).collect();
    let mut all = Vec::new();
    session
        .feed_each(&tokens, |_, logits| all.extend_from_slice(logits))
        .unwrap();
    all
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    let difference = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(a.len() == b.len() && difference < tolerance, "{difference}");
}

/// Returns Llama as llama.cpp's converter writes it: the two channels of a rotated pair are adjacent, and a tensor holds the divisor of
/// each frequency.
fn llama() -> File {
    let mut file = File {
        tensors: tensors("hf_llama3_scaled"),
        ..File::default()
    };
    file.keys
        .insert("general.architecture".into(), "llama".into());
    let numbers = [
        ("embedding_length", 48),
        ("block_count", 3),
        ("feed_forward_length", 80),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 20),
        ("attention.value_length", 20),
        ("rope.dimension_count", 20),
        ("rope.scaling.original_context_length", 32),
        ("context_length", 256),
        ("vocab_size", 131),
    ];
    for (key, number) in numbers {
        file.number(&format!("llama.{key}"), number);
    }
    file.float("llama.attention.layer_norm_rms_epsilon", 1e-6);
    file.float("llama.rope.freq_base", 500.0);
    for (name, tensor) in &mut file.tensors {
        if name.contains("attn_q.") || name.contains("attn_k.") {
            let stored = |row: usize| row / 20 * 20 + row % 20 / 2 + row % 2 * 10;
            let order: Vec<_> = (0..tensor.0[0]).map(stored).collect();
            *tensor = reordered(tensor, &order);
        }
    }
    let divisor = |i: usize| {
        let frequency = 500f64.powf(-(i as f64) / 10.0);
        let length = std::f64::consts::TAU / frequency;
        let smooth = (32.0 / length - 1.0) / 3.0;
        match length {
            _ if length < 8.0 => 1.0,
            _ if length > 32.0 => 8.0,
            _ => (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32,
        }
    };
    let divisors = (vec![10], (0..10).map(divisor).collect());
    file.tensors.insert("rope_freqs.weight".into(), divisors);
    file
}

#[test]
fn llama_is_the_same_from_rows_in_pairs() {
    let place = Workplace::new();
    let path = place.path("llama.gguf");
    let mut file = llama();
    file.write(&path);
    let expected = logits(&fixture("hf_llama3_scaled"));
    assert_close(&logits(&path), &expected, 1e-4);

    // Divisors that no choice of the four scaling parameters gives.
    file.tensors.get_mut("rope_freqs.weight").unwrap().1[4] = 5.0;
    file.write(&path);
    let inspect = ["inspect", &path.display().to_string()];
    place
        .run(inspect)
        .failed(2, &["llama.gguf", "rope_freqs.weight"]);
}

/// Returns the file as one of another architecture.
fn renamed(file: &File, architecture: &str) -> File {
    let key = |key: &String| key.replacen("llama.", &format!("{architecture}."), 1);
    let keys = file.keys.iter();
    let mut keys: BTreeMap<_, _> = keys
        .map(|(name, value)| (key(name), value.clone()))
        .collect();
    keys.insert("general.architecture".into(), architecture.into());
    File {
        keys,
        tensors: file.tensors.clone(),
    }
}

#[test]
fn a_mixture_of_equal_experts_is_a_dense_network() {
    const EXPERTS: usize = 3;
    for (dense, mixture, chosen) in [
        ("llama", "llama", 2),
        ("mistral3", "mistral3", 2),
        // Without a norm, the weights of all experts have a sum of one.
        ("qwen2", "qwen2moe", EXPERTS),
    ] {
        let dense = renamed(&llama(), dense);
        let mut file = renamed(&llama(), mixture);
        file.number(&format!("{mixture}.expert_count"), EXPERTS);
        file.number(&format!("{mixture}.expert_used_count"), chosen);
        file.number(&format!("{mixture}.expert_feed_forward_length"), 80);
        for block in 0..3 {
            for part in ["gate", "up", "down"] {
                let name = format!("blk.{block}.ffn_{part}");
                let (shape, values) = file.tensors.remove(&format!("{name}.weight")).unwrap();
                let shape = [&[EXPERTS], &shape[..]].concat();
                let all = (shape, values.repeat(EXPERTS));
                file.tensors.insert(format!("{name}_exps.weight"), all);
            }
            let router = (0..EXPERTS * 48).map(|i| (i as f32 * 0.7).sin());
            let router = (vec![EXPERTS, 48], router.collect());
            let name = format!("blk.{block}.ffn_gate_inp");
            file.tensors.insert(format!("{name}.weight"), router);
            if mixture != "qwen2moe" {
                continue;
            }
            // A shared expert without an output.
            file.number("qwen2moe.expert_shared_feed_forward_length", 16);
            let mut add = |name: String, shape: Vec<usize>, value: f32| {
                let values = vec![value; shape.iter().product()];
                file.tensors.insert(name, (shape, values));
            };
            add(format!("{name}_shexp.weight"), vec![48], 0.1);
            add(
                format!("blk.{block}.ffn_gate_shexp.weight"),
                vec![16, 48],
                0.1,
            );
            add(
                format!("blk.{block}.ffn_up_shexp.weight"),
                vec![16, 48],
                0.1,
            );
            add(
                format!("blk.{block}.ffn_down_shexp.weight"),
                vec![48, 16],
                0.0,
            );
        }
        assert_close(&file.logits(), &dense.logits(), 1e-4);
    }
}

/// Returns Qwen3.5 as llama.cpp's converter writes it: q, k and v of Gated DeltaNet are one matrix, value head t uses key head t % 3, and
/// each query head is followed by its gate.
fn qwen35() -> File {
    let (keys, values, key_dim, value_dim) = (3, 6, 12, 10);
    let ours = tensors("hf_qwen3_5_images");
    // Stored head j * 3 + k is head k * 2 + j.
    let heads: Vec<usize> = (0..values).map(|t| t % keys * 2 + t / keys).collect();
    let channels: Vec<usize> = heads
        .iter()
        .flat_map(|h| h * value_dim..(h + 1) * value_dim)
        .collect();
    let mut file = File::default();
    for block in 0..4 {
        let of = |name: &str| &ours[&format!("blk.{block}.{name}")];
        let mut add = |name: &str, tensor: (Vec<usize>, Vec<f32>)| {
            file.tensors.insert(format!("blk.{block}.{name}"), tensor);
        };
        for name in ["attn_norm", "ffn_gate", "ffn_up", "ffn_down"] {
            add(
                &format!("{name}.weight"),
                of(&format!("{name}.weight")).clone(),
            );
        }
        add("post_attention_norm.weight", of("ffn_norm.weight").clone());
        if block == 3 {
            for name in [
                "attn_k",
                "attn_v",
                "attn_output",
                "attn_q_norm",
                "attn_k_norm",
            ] {
                add(
                    &format!("{name}.weight"),
                    of(&format!("{name}.weight")).clone(),
                );
            }
            let (query, gate) = (&of("attn_q.weight").1, &of("mixer.g_proj.weight").1);
            let heads = query.chunks_exact(20 * 40).zip(gate.chunks_exact(20 * 40));
            let both = heads
                .flat_map(|(query, gate)| [query, gate].concat())
                .collect();
            add("attn_q.weight", (vec![6 * 2 * 20, 40], both));
            continue;
        }
        let stacked = |q: &str, k: &str, v: &str| {
            let v = reordered(of(v), &channels);
            let parts = [of(q).1.clone(), of(k).1.clone(), v.1];
            (
                vec![2 * keys * key_dim + values * value_dim, v.0[1]],
                parts.concat(),
            )
        };
        add(
            "attn_qkv.weight",
            stacked("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        );
        let convolutions = ["q", "k", "v"].map(|x| format!("mixer.{x}_conv1d.weight"));
        let [q, k, v] = &convolutions;
        add("ssm_conv1d.weight", stacked(q, k, v));
        add(
            "attn_gate.weight",
            reordered(of("mixer.g_proj.weight"), &channels),
        );
        add(
            "ssm_alpha.weight",
            reordered(of("mixer.a_proj.weight"), &heads),
        );
        add(
            "ssm_beta.weight",
            reordered(of("mixer.b_proj.weight"), &heads),
        );
        add("ssm_dt.bias", reordered(of("mixer.dt_bias"), &heads));
        let (shape, logarithms) = reordered(of("mixer.A_log"), &heads);
        add(
            "ssm_a",
            (shape, logarithms.iter().map(|x| -x.exp()).collect()),
        );
        add("ssm_norm.weight", of("mixer.o_norm.weight").clone());
        let (shape, out) = of("attn_output.weight");
        let rows = out.chunks_exact(values * value_dim);
        let columns = rows.flat_map(|row| channels.iter().map(|&c| row[c]));
        add("ssm_out.weight", (shape.clone(), columns.collect()));
    }
    for name in ["token_embd.weight", "output_norm.weight", "output.weight"] {
        file.tensors.insert(name.into(), ours[name].clone());
    }
    file.keys
        .insert("general.architecture".into(), "qwen35".into());
    let numbers = [
        ("embedding_length", 40),
        ("block_count", 4),
        ("feed_forward_length", 72),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 20),
        ("attention.value_length", 20),
        ("rope.dimension_count", 16),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", key_dim),
        ("ssm.group_count", keys),
        ("ssm.time_step_rank", values),
        ("ssm.inner_size", values * value_dim),
        ("full_attention_interval", 4),
    ];
    for (key, number) in numbers {
        file.number(&format!("qwen35.{key}"), number);
    }
    file.float("qwen35.attention.layer_norm_rms_epsilon", 1e-6);
    file.float("qwen35.rope.freq_base", 5000.0);
    file
}

#[test]
fn queries_keys_and_values_may_lie_in_one_tensor() {
    let mut file = llama();
    for block in 0..3 {
        let mut take = |part: &str| {
            let name = format!("blk.{block}.attn_{part}.weight");
            file.tensors.remove(&name).unwrap()
        };
        let parts = ["q", "k", "v"].map(&mut take);
        let rows = parts.iter().map(|(shape, _)| shape[0]).sum();
        let shape = vec![rows, parts[0].0[1]];
        let values = parts.into_iter().flat_map(|(_, values)| values).collect();
        let name = format!("blk.{block}.attn_qkv.weight");
        file.tensors.insert(name, (shape, values));
    }
    // One number per layer, as some converters write them.
    for (key, number) in [
        ("attention.head_count", 6),
        ("attention.head_count_kv", 2),
        ("feed_forward_length", 80),
    ] {
        let list = Value::Array(Array::U32(vec![number; 3]));
        file.keys.insert(format!("llama.{key}"), list);
    }
    let expected = logits(&fixture("hf_llama3_scaled"));
    assert_close(&file.logits(), &expected, 1e-4);
}

#[test]
fn gated_deltanet_is_the_same_from_value_heads_in_llama_cpps_order() {
    // A different order of value heads changes the order of summation: both sides are within 1.5e-5 of the model in f64.
    let mut file = qwen35();
    let expected = logits(&fixture("hf_qwen3_5_images"));
    assert_close(&file.logits(), &expected, 1e-4);

    // The last block predicts several tokens and is not read.
    file.number("qwen35.block_count", 5);
    file.number("qwen35.nextn_predict_layers", 1);
    let norm = file.tensors["blk.0.attn_norm.weight"].clone();
    file.tensors
        .insert("blk.4.attn_norm.weight".into(), norm.clone());
    file.tensors.insert("blk.4.nextn.enorm.weight".into(), norm);
    assert_close(&file.logits(), &expected, 1e-4);
}

#[test]
fn newer_files_list_the_recurrent_layers_beside_an_interval() {
    let mut file = qwen35();
    let expected = file.logits();
    let list = Array::Bool(vec![true, true, true, false]);
    let key = "qwen35.attention.recurrent_layers";
    file.keys.insert(key.into(), Value::Array(list));
    file.number("qwen35.full_attention_interval", 2);
    assert_eq!(file.logits(), expected);
}

#[test]
fn keys_that_cannot_be_are_errors() {
    let place = Workplace::new();
    let path = place.path("hostile.gguf");
    let list = |numbers: &[u32]| Value::Array(Array::U32(numbers.to_vec()));
    let inspect = ["inspect", &path.display().to_string()];
    for (key, value, expected) in [
        ("block_count", Value::U32(1 << 20), "qwen35.block_count"),
        ("block_count", Value::U32(0), "layers"),
        ("block_count", Value::F32(4.0), "qwen35.block_count"),
        (
            "nextn_predict_layers",
            Value::U32(5),
            "qwen35.nextn_predict_layers",
        ),
        (
            "feed_forward_length",
            list(&[72; 3]),
            "qwen35.feed_forward_length",
        ),
        (
            "feed_forward_length",
            list(&[72, 72, 72, u32::MAX]),
            "qwen35.feed_forward_length",
        ),
        (
            "feed_forward_length",
            Value::String("72".into()),
            "qwen35.feed_forward_length",
        ),
        (
            "attention.head_count_kv",
            Value::Array(Array::I32(vec![3, 3, 3, -3])),
            "qwen35.attention.head_count_kv",
        ),
        (
            "attention.head_count_kv",
            Value::Array(Array::F32(vec![3.0; 4])),
            "qwen35.attention.head_count_kv",
        ),
        ("attention.head_count_kv", Value::U32(0), "layers[3]"),
        (
            "attention.head_count",
            Value::U32(u32::MAX),
            "qwen35.attention.head_count",
        ),
        (
            "attention.value_length",
            Value::U32(10),
            "qwen35.attention.value_length",
        ),
        (
            "attention.recurrent_layers",
            Value::Array(Array::Bool(vec![true; 3])),
            "qwen35.attention.recurrent_layers",
        ),
        ("full_attention_interval", Value::U32(0), "blk.3"),
        ("rope.scaling.factor", Value::F32(-1.0), "above 0"),
        ("rope.scaling.factor", Value::F32(0.0), "above 0"),
        ("rope.scaling.factor", Value::F32(f32::NAN), "finite"),
        ("rope.scaling.factor", Value::F32(f32::INFINITY), "finite"),
        ("rope.scale_linear", Value::F32(-0.0), "above 0"),
        ("rope.freq_base", Value::F32(f32::INFINITY), "finite"),
        ("rope.freq_base", Value::F32(0.0), "positive"),
        (
            "ssm.time_step_rank",
            Value::U32(0),
            "qwen35.ssm.time_step_rank",
        ),
        ("ssm.group_count", Value::U32(4), "layers[0]"),
        ("ssm.group_count", Value::U32(0), "layers[0]"),
        ("ssm.state_size", Value::U32(13), "attn_qkv"),
        (
            "rope.scaling.type",
            Value::String("longrope".into()),
            "qwen35.rope.scaling.type",
        ),
        (
            "rope.scaling.type",
            Value::String("yarn".into()),
            "qwen35.rope.scaling.factor: found nothing",
        ),
        ("rope.dimension_count", Value::U32(40), "layers[3]"),
    ] {
        let mut file = qwen35();
        file.keys.insert(format!("qwen35.{key}"), value);
        file.write(&path);
        place.run(inspect).failed(2, &["hostile.gguf", expected]);
    }
    let mut file = qwen35();
    file.tensors.get_mut("blk.0.ssm_a").unwrap().1[2] = 1.0;
    file.write(&path);
    place.run(inspect).failed(2, &["blk.0.ssm_a", "positive"]);

    for (architecture, parts) in [
        ("plamo2", ["missing", "mamba2"]),
        ("clip", ["vision part", "language model"]),
        ("another", ["expected one of", "qwen35"]),
    ] {
        let mut file = File::default();
        file.keys
            .insert("general.architecture".into(), architecture.into());
        file.write(&path);
        place.run(inspect).failed(2, &parts);
    }
    let mut file = qwen35();
    file.number("split.count", 3);
    file.write(&path);
    place
        .run(inspect)
        .failed(2, &["of-00003.gguf", "parts of a file"]);
}

#[test]
fn a_split_file_opens_by_any_of_its_parts() {
    let place = Workplace::new();
    let file = qwen35();
    let whole = file.logits();
    let parts = file.write_parts(&place.path("."));
    assert_eq!(parts.len(), 3);
    for path in &parts {
        assert_eq!(logits(path), whole, "{}", path.display());
        place
            .run(["inspect", path.to_str().expect("a path")])
            .succeeded();
    }
    let bytes = std::fs::read(&parts[0]).expect("a part");
    let options = OpenOptions::default();
    let said = Model::from_bytes(&bytes, "part", &options).err();
    let said = said.expect("the other parts have no path").to_string();
    assert!(said.contains("3 files of a split model"), "{said}");
}
