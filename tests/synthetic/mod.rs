//! Models of any description with random weights, and helpers for tests of them.

#![allow(dead_code)] // each test binary uses a part

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};
use waterline::internal::TextFiles;
use waterline::internal::{Checkpoint, Precision, WeightSpec};
use waterline::{Model, ModelSpec, Session, SessionOptions};
use waterline_quant::{Bytes, F32, Format, Tensor};

/// A repeatable sequence of numbers.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    /// Returns a number in `low..=high`.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Returns one of `choices`.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    pub fn flip(&mut self) -> bool {
        self.below(2) == 0
    }

    /// Returns a number from -1 to 1.
    fn unit(&mut self) -> f32 {
        self.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0
    }
}

/// Returns random tokens below `vocab`.
pub fn tokens(vocab: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.below(vocab) as u32).collect()
}

/// Returns a layer with the mixer `kind` and these hyperparameters, as JSON.
pub fn block(kind: &str, parameters: Value, mlp: Option<usize>) -> Value {
    let mut layer = parameters;
    layer["mixer"] = kind.into();
    if let Some(intermediate) = mlp {
        layer["mlp"] = serde_json::json!({ "intermediate": intermediate });
    }
    layer
}

/// Returns a model description with layers of width `hidden` and an odd vocabulary.
pub fn spec(hidden: usize, layers: Vec<Value>) -> ModelSpec {
    described(&description(hidden, layers))
}

/// Returns that description as JSON.
pub fn description(hidden: usize, layers: Vec<Value>) -> Value {
    json!({ "vocab": 61, "hidden": hidden, "norm_eps": 1e-5, "tied": false, "layers": layers })
}

/// Parses a model description from JSON.
pub fn described(description: &Value) -> ModelSpec {
    ModelSpec::from_json("test", description).expect("a description")
}

/// Returns random weights for a description, by name.
pub fn weights(spec: &ModelSpec, seed: u64) -> HashMap<String, Vec<f32>> {
    let mut random = Random(seed);
    let values = |weight: WeightSpec| {
        let values = (0..weight.len())
            .map(|_| value(&weight, &mut random))
            .collect();
        (weight.name, values)
    };
    spec.weights().into_iter().map(values).collect()
}

/// Returns a value that keeps activations of order one, and states from vanishing or becoming
/// constant.
fn value(weight: &WeightSpec, random: &mut Random) -> f32 {
    let name = weight.name.as_str();
    let x = random.unit();
    if name.ends_with("norm.weight") {
        return 1.0 + 0.3 * x;
    }
    if name.ends_with("A_log") || name.ends_with("dt_bias") {
        return x;
    }
    if name.ends_with(".A") {
        return -1.25 - x;
    }
    if name.ends_with("lower_bound") {
        return 0.5 + 0.5 * x;
    }
    if weight.shape.len() == 1 || name.ends_with("bias") {
        return 0.5 * x;
    }
    let inputs: usize = weight.shape.iter().skip(1).product();
    2.0 * x / (inputs as f32).sqrt()
}

/// Builds a model from these weights.
pub fn model(spec: &ModelSpec, weights: &HashMap<String, Vec<f32>>) -> Arc<Model> {
    spec.check("test").expect("a description that fits");
    let tensor = |weight: WeightSpec| {
        let values = &weights[&weight.name];
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        let tensor = Tensor::new(&F32, weight.shape, Bytes::from_vec(bytes)).expect("a tensor");
        (weight.name, tensor)
    };
    let checkpoint = Checkpoint {
        file: "test".into(),
        name: "test".into(),
        spec: spec.clone(),
        tensors: spec.weights().into_iter().map(tensor).collect(),
        text: TextFiles::default(),
        trained_context: None,
        notes: Vec::new(),
    };
    Model::bind(checkpoint).unwrap_or_else(|error| panic!("{error}: {}", spec.to_json()))
}

/// Returns options with 32-bit keys and values, and one thread, since these models are too small to
/// split among threads.
pub fn options(chunk: usize, context: usize) -> SessionOptions {
    let mut options = SessionOptions::default();
    options.sampler.seed = 1;
    (options.state.context, options.state.history) = (context, 64);
    options.state.kv = waterline::Kv::F32;
    (options.chunk, options.threads) = (chunk, 1);
    options
}

/// Makes a session that has read a repetitive text, a different one for each `shift`.
pub fn repeating(model: &Arc<Model>, options: SessionOptions, shift: usize) -> Session {
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let vocab = model.spec().vocab;
    let token = |i| ((i % 8 * 5 + shift) % vocab) as u32;
    let prompt: Vec<u32> = (0..24 + shift).map(token).collect();
    session.feed(&prompt).expect("a prompt");
    session
}

/// Returns the session's state as bytes.
pub fn state_of(session: &Session) -> Vec<u8> {
    let mut state = Vec::new();
    let snapshot = session.snapshot().expect("a snapshot");
    snapshot.write(&mut state).expect("memory");
    state
}

/// Returns the model in `file`, a path below this repository's `tests`, with its matrices in `format`; `None` if their rows are not a
/// multiple of its blocks.
pub fn in_format(file: &str, format: &'static Format) -> Option<Arc<Model>> {
    let path = format!("{}/../tests/{file}", env!("CARGO_MANIFEST_DIR"));
    let mut checkpoint = Checkpoint::open(path).expect("a model");
    for weight in checkpoint.spec.weights() {
        let tensor = checkpoint.tensors.get_mut(&weight.name).expect("a tensor");
        let (_, cols) = tensor.rows_cols();
        if weight.precision != Precision::Quantized {
            continue;
        }
        if !cols.is_multiple_of(format.block_len) {
            return None;
        }
        let mut blocks = vec![0; format.tensor_bytes(&tensor.shape).expect("a size")];
        format.encode_or_imitate(&tensor.to_f32(), &mut blocks);
        let data = Bytes::copy_from(&blocks).expect("memory");
        *tensor = Tensor::new(format, tensor.shape.clone(), data).expect("a tensor");
    }
    Some(Model::bind(checkpoint).expect("a model"))
}
